"""The browser that tests use: Chromium, as the machine has it."""

from __future__ import annotations

import os
import shutil

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")


def find_browser() -> str:
    """The path of a browser. Without one the test is skipped, unless ``OPENENV_BROWSER_REQUIRED`` is set: then it
    fails."""
    found = os.environ.get("OPENENV_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        if os.environ.get("OPENENV_BROWSER_REQUIRED"):
            pytest.fail("no browser: install Debian's chromium-headless-shell, or name one in OPENENV_BROWSER")
        pytest.skip("no browser found; Debian: apt-get install chromium-headless-shell")
    return found
