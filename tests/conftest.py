"""What holds for all tests."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

from support.fault_report import pytest_runtest_logreport, pytest_terminal_summary

__all__ = ["pytest_runtest_logreport", "pytest_terminal_summary"]

# By default hypothesis fails an example that takes 0.2 s, or a slow draw of one: on a busy machine any of them may.
settings.register_profile("openenv", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("openenv")

# A run that a shell has put into the background ignores Ctrl-C, and so would every process that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

collect_ignore = ["sb3", "trl"]  # need torch: `make test-sb3`, `make test-trl`
