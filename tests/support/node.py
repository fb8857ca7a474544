"""Node, as the machine has it."""

from __future__ import annotations

import shutil
import subprocess


def node_command() -> list[str]:
    """The command, with the option that Node needs before version 22 for its own WebSocket."""
    path = shutil.which("node")
    assert path is not None, "this test needs Node 20 or later as 'node' on the path"
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    major = int(version.strip().lstrip("v").split(".")[0])
    assert major >= 20, f"this test needs Node 20 or later, and 'node' is {version.strip()}"
    return [path] if major >= 22 else [path, "--no-warnings", "--experimental-websocket"]
