"""What can be done to connections: the words that every fault proxy understands.

`FaultProxy` carries them out in this process, `ProxyProcess` sends them to a proxy in another one, and the
command ``python -m openenv.testing.proxy`` reads them as lines: ``cut rst``, ``hold reply``, ``heal`` ...
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, get_args

__all__ = ["BOTH", "COMMANDS", "CutMode", "Direction", "ProxyControls", "RefuseMode", "parse"]

CutMode = Literal["rst", "fin"]
"""``rst`` resets a connection, as a crash or a firewall does; ``fin`` closes it, as an orderly end does."""

Direction = Literal["request", "reply", "both"]
"""``request`` is what the client sends, ``reply`` what the server sends."""

RefuseMode = Literal["rst", "closed"]
"""``rst`` accepts a connection and resets it; ``closed`` does not listen."""

BOTH: Direction = "both"
WAIT_S = 30.0


class ProxyControls(ABC):
    """The methods of a fault proxy. All may be called from any thread.

    ``connection`` is a connection's number, counted from 1 in the order they were accepted. Without it a method
    means all connections, those that are made later included. Every ``wait_for_...`` returns at once if what it
    waits for has happened already, and raises `TimeoutError` after ``timeout_s`` seconds.
    """

    host: str

    @abstractmethod
    def _do(self, command: str, *arguments: str | float | None) -> int:
        """Carry out a command; each has a number as its result."""

    @property
    @abstractmethod
    def port(self) -> int:
        """The port it listens on."""

    @property
    def url(self) -> str:
        """Base URL for a client."""
        return f"http://{self.host}:{self.port}"

    # ---------------------------------------------------------------- faults

    def cut(self, mode: CutMode = "rst", connection: int | None = None) -> int:
        """Cut open connections, on both sides. Connections made afterwards are forwarded as before.

        Args:
            mode: with ``fin``, bytes that the proxy has taken and does not hold are still delivered.
            connection: only this one.

        Returns:
            How many were cut; their sockets are closed when this returns.

        Raises:
            ValueError: an unknown mode.
        """
        return self._do("cut", mode, connection)

    def black_hole(self, connection: int | None = None) -> int:
        """Let nothing through from now on, neither bytes nor ends; new connections are accepted and get no answer."""
        return self._do("hold", BOTH, connection)

    def hold(self, direction: Direction, connection: int | None = None) -> int:
        """Keep back what is sent one way, until `release` or `heal`. A sender notices only when buffers are full."""
        return self._do("hold", direction, connection)

    def release(self, direction: Direction = "both", connection: int | None = None) -> int:
        """Let through what was held, and all that follows."""
        return self._do("release", direction, connection)

    def delay(self, seconds: float, direction: Direction = "both", connection: int | None = None) -> int:
        """Forward everything this many seconds later."""
        return self._do("delay", seconds, direction, connection)

    def cut_after(self, count: int, direction: Direction, mode: CutMode = "rst", connection: int | None = None) -> int:
        """Forward ``count`` more bytes one way, then cut the connection that carries them.

        With 0, the cut comes when the next bytes arrive, and before any of them is forwarded. Happens once.
        """
        return self._do("cut_after", count, direction, mode, connection)

    def cut_on_reply(self, mode: CutMode = "rst", connection: int | None = None) -> int:
        """Cut when the next bytes of the server arrive, before the client sees any: it ran, and nobody hears of it."""
        return self.cut_after(0, "reply", mode, connection)

    def refuse(self, mode: RefuseMode = "rst") -> int:
        """Refuse new connections, until `heal`. Open ones go on."""
        return self._do("refuse", mode)

    def heal(self) -> int:
        """End every hold, delay, pending cut and refusal; what was held is delivered."""
        return self._do("heal")

    # ---------------------------------------------------------------- events

    @property
    def connections(self) -> int:
        """Connections that are open on both sides."""
        return self._do("connections")

    @property
    def accepted(self) -> int:
        """Connections that were accepted so far; the number of the newest."""
        return self._do("accepted")

    def passed(self, direction: Direction) -> int:
        """Bytes that were forwarded so far."""
        return self._do("passed", direction)

    def wait_for_connections(self, count: int, timeout_s: float = WAIT_S) -> int:
        """Wait until this many connections were accepted in all; returns how many."""
        return self._do("wait_for_connections", count, timeout_s)

    def wait_for_open(self, count: int, timeout_s: float = WAIT_S) -> int:
        """Wait until exactly this many connections are open."""
        return self._do("wait_for_open", count, timeout_s)

    def wait_for_held(self, direction: Direction, count: int = 1, timeout_s: float = WAIT_S) -> int:
        """Wait until at least this many bytes (or an end) are held; returns how many."""
        return self._do("wait_for_held", direction, count, timeout_s)

    def wait_for_passed(self, direction: Direction, count: int, timeout_s: float = WAIT_S) -> int:
        """Wait until this many bytes were forwarded in all; returns how many."""
        return self._do("wait_for_passed", direction, count, timeout_s)

    def wait_for_cuts(self, count: int, timeout_s: float = WAIT_S) -> int:
        """Wait until this many connections were cut in all, by `cut` or `cut_after`; returns how many."""
        return self._do("wait_for_cuts", count, timeout_s)


# ---------------------------------------------------------------- commands as text


def _one_of(choices: object) -> dict[str, str]:
    return {choice: choice for choice in get_args(choices)}


_WORDS = {
    "mode": _one_of(CutMode),
    "direction": _one_of(Direction),
    "refusal": _one_of(RefuseMode),
}
_NUMBERS: dict[str, Callable[[str | float], float]] = {
    "count": int,
    "connection": int,
    "seconds": float,
    "timeout_s": float,
}

COMMANDS: dict[str, tuple[tuple[str, str | float | None], ...]] = {
    "cut": (("mode", "rst"), ("connection", None)),
    "hold": (("direction", "both"), ("connection", None)),
    "release": (("direction", "both"), ("connection", None)),
    "delay": (("seconds", 0.0), ("direction", "both"), ("connection", None)),
    "cut_after": (("count", 0), ("direction", "reply"), ("mode", "rst"), ("connection", None)),
    "refuse": (("refusal", "rst"),),
    "heal": (),
    "connections": (),
    "accepted": (),
    "passed": (("direction", "both"),),
    "wait_for_connections": (("count", 1), ("timeout_s", WAIT_S)),
    "wait_for_open": (("count", 0), ("timeout_s", WAIT_S)),
    "wait_for_held": (("direction", "both"), ("count", 1), ("timeout_s", WAIT_S)),
    "wait_for_passed": (("direction", "both"), ("count", 1), ("timeout_s", WAIT_S)),
    "wait_for_cuts": (("count", 1), ("timeout_s", WAIT_S)),
}
"""Each command's arguments, with their defaults."""

_SHORT = {"blackhole": ["hold", "both"], "black_hole": ["hold", "both"], "cut_on_reply": ["cut_after", "0", "reply"]}


def parse(line: str) -> tuple[str, list[str | float | None]]:
    """Read a command line: its name and its arguments, where ``-`` and what is missing take the default.

    Raises:
        ValueError: no such command, or an argument that does not fit.
    """
    words = line.split()
    head = words[0].replace("-", "_") if words else ""
    words = [*_SHORT.get(head, [head]), *words[1:]]
    wanted = COMMANDS.get(words[0])
    if wanted is None:
        raise ValueError(f"no such command: {head or 'an empty line'}; there are {', '.join([*COMMANDS, *_SHORT])}")
    given = words[1:]
    if len(given) > len(wanted):
        raise ValueError(f"{words[0]} takes {' '.join(name for name, _ in wanted) or 'no arguments'}")
    given += ["-"] * (len(wanted) - len(given))
    return words[0], [check(name, word, default) for (name, default), word in zip(wanted, given, strict=True)]


def check(name: str, word: str | float | None, default: str | float | None) -> str | float | None:
    """One argument as its own type.

    Raises:
        ValueError: it does not fit.
    """
    if word is None or word == "-":
        return default
    if name in _WORDS:
        if word not in _WORDS[name]:
            raise ValueError(f"{name} must be {' or '.join(map(repr, _WORDS[name]))}, not {word!r}")
        return word
    return _NUMBERS[name](word)
