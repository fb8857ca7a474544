"""How commands end with one line for the user, and how they take ``KEY=VALUE``.

Messages go to stderr. Values of secrets are in none of them. What a server says is text: of what a terminal would obey,
colours alone get through.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import typer

__all__ = ["failed", "note", "pairs", "printable", "wrong"]

_CONTROL = re.compile(r"(\x1b\[[0-9;:]*m)|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_PLAIN = "\x1b[0m"
_KEY = re.compile(r"[A-Za-z_]\w*")


def note(text: str) -> None:
    """Tell how it goes."""
    typer.echo(printable(text), err=True)


def printable(text: str) -> str:
    """A text that moves no cursor and asks nothing of a terminal; colours stay, and end with it."""
    shown = _CONTROL.sub(lambda found: found[1] or f"\\x{ord(found[0]):02x}", text.replace("\r\n", "\n"))
    return f"{shown}{_PLAIN}" if "\x1b" in shown else shown


def failed(command: str, text: str) -> typer.Exit:
    """What to raise when it was tried and did not work: exit code 1."""
    note(f"openenv {command}: {text}")
    return typer.Exit(1)


def wrong(command: str, text: str) -> typer.Exit:
    """What to raise when it cannot be tried: exit code 2."""
    note(f"openenv {command}: {text}")
    return typer.Exit(2)


def pairs(command: str, option: str, given: Sequence[str], *, from_environment: bool = False) -> dict[str, str]:
    """Read an option that is given as ``KEY=VALUE``, again and again.

    Args:
        command: for messages.
        option: for messages.
        given: what was given.
        from_environment: whether ``KEY`` alone takes its value from the environment, so that a secret need not stand in
            a shell's history.

    Raises:
        typer.Exit: one is not of that form. Its value is not shown.
    """
    found = {}
    for number, entry in enumerate(given, start=1):
        key, sign, value = entry.partition("=")
        key = key.strip()
        if not sign and from_environment and key in os.environ:
            value = os.environ[key]
        elif not sign:
            more = "; KEY alone takes a variable of the environment, which is not set" if from_environment else ""
            raise wrong(command, f"{option}, number {number} of them, is not KEY=VALUE{more}")
        if _KEY.fullmatch(key) is None:
            raise wrong(command, f"{option}, number {number} of them: a key is letters, digits and underscores")
        found[key] = value
    return found
