"""Looking at an environment from outside: a package on disk, or a server that runs.

`validate_package` and `validate_server` return a `Report`; ``openenv validate`` prints it.
"""

from __future__ import annotations

from openenv.validation.look import Options
from openenv.validation.report import RULES, Finding, NotValidated, Report, Verdict
from openenv.validation.whole import validate_package, validate_server

__all__ = [
    "RULES",
    "Finding",
    "NotValidated",
    "Options",
    "Report",
    "Verdict",
    "validate_package",
    "validate_server",
]
