"""The server under test: what is known of it, and sockets that speak its two dialects."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from openenv.conformance.clauses import clause
from openenv.conformance.report import NotGraded, Skip, Violation
from openenv.conformance.socket import SUBPROTOCOL, Frame, Socket, read_json, short

__all__ = ["CHECKS", "V1", "Check", "Plain", "Target", "check", "error_of", "observation_of"]

ALL_USES = ("seq", "cancel", "resume")


@dataclass
class Target:
    """The server under test.

    Attributes:
        url: its base URL, ``http://host:port``, with or without ``/ws``.
        timeout_s: bound of every wait, in seconds.
        fill: most sessions to open to see it full.
        eviction_s: within what time a lease must give way to a client that waits, in seconds.
        action: an action that its environment takes.
        plain_only: leave ``openenv.v1`` alone.
        wants: features that it must offer.
        probe: it serves the probe environment.
        welcome: data of its welcome; None for a plain server.
        leases: sessions that checks have left, and their tokens.
        silent: a socket that never says anything, and since when.
    """

    url: str
    timeout_s: float = 10.0
    fill: int = 32
    eviction_s: float = 20.0
    action: Frame | None = None
    plain_only: bool = False
    wants: frozenset[str] = frozenset()
    probe: bool = False
    welcome: Frame | None = None
    leases: dict[str, str] = field(default_factory=dict)
    silent: tuple[Socket, float] | None = None

    @property
    def ws(self) -> str:
        """Address of the route."""
        url = self.url.rstrip("/")
        for scheme in ("http", "ws"):
            if url.startswith((f"{scheme}://", f"{scheme}s://")):
                url = "ws" + url.removeprefix(scheme)
                return url if url.endswith("/ws") else f"{url}/ws"
        raise NotGraded(f"{self.url!r} is no URL: it must begin with http://, https://, ws:// or wss://")

    @property
    def features(self) -> frozenset[str]:
        """What it offers."""
        listed = (self.welcome or {}).get("features")
        return frozenset(one for one in listed if isinstance(one, str)) if isinstance(listed, list) else frozenset()

    def plain(self, query: str = "") -> Plain:
        """A socket of the plain dialect."""
        return Plain(self, query)

    def v1(self) -> V1:
        """A socket of ``openenv.v1``, welcomed."""
        return V1(self)

    def need_probe(self) -> None:
        """Skip where the environment does not do as it is told."""
        if not self.probe:
            raise Skip("needs the probe environment")

    def step_frame(self) -> Frame:
        """A step that the environment takes."""
        if self.probe:
            return {"type": "step", "data": {"op": "inc"}}
        if self.action is None:
            raise Skip("needs the probe environment, or --action")
        return {"type": "step", "data": self.action}

    def look(self) -> None:
        """Learn what there is to learn before the checks.

        Raises:
            NotGraded: nobody listens there.
        """
        with self.plain() as one:
            try:
                seen = observation_of(one.ask({"type": "step", "data": {"op": "inc"}}))["observation"]
                self.probe = seen.get("count") == 1 and _env(seen) is not None
            except Violation:
                self.probe = False  # another environment; the checks say what else is wrong
        if not self.plain_only:
            with Socket(self.ws, offers=(SUBPROTOCOL,), timeout_s=self.timeout_s) as socket:
                if socket.subprotocol == SUBPROTOCOL:
                    self.welcome = {}
                    try:
                        data = socket.recv("welcome").get("data")
                        self.welcome = data if isinstance(data, dict) else {}
                    except Violation:
                        pass  # E2 says so

    def sweep(self) -> None:
        """Give back what the last check has left."""
        leases, self.leases = self.leases, {}
        if not leases:
            return
        try:
            with self.v1() as one:
                for session, token in leases.items():
                    one.release(session, token)
                one.send({"type": "close"})
                one.closed(2.0)
        except (Violation, NotGraded):
            pass  # a server that does not take a release has its own clause for it


def _env(seen: Frame) -> Any:
    return seen.get("env", seen.get("env_no"))


class _Talker(Socket):
    """What sockets of both dialects have."""

    target: Target

    def count(self, seen: Frame) -> int:
        """The steps that the probe environment has counted."""
        return int(observation_of(seen)["observation"].get("count", -1))

    def env(self, seen: Frame) -> Any:
        """Which environment answered."""
        return _env(observation_of(seen)["observation"])


class Plain(_Talker):
    """A socket of the plain dialect."""

    def __init__(self, target: Target, query: str = "") -> None:
        self.target = target
        super().__init__(target.ws + query, timeout_s=target.timeout_s)

    def step(self, op: str = "inc", arg: Any = None) -> Frame:
        """One step of the probe environment."""
        return self.ask({"type": "step", "data": {"op": op, "arg": arg}})

    def alive(self, after: str) -> None:
        """See that the session goes on.

        Raises:
            Violation: it does not.
        """
        try:
            frame = self.ask({"type": "state"}, f"the answer to state after {after}")
        except Violation as said:
            raise Violation("session-lost", f"the session did not outlive {after}: {said.text}") from None
        if frame["type"] != "state":
            raise Violation("session-lost", f"after {after}, state was answered by {short(frame)}")


class V1(_Talker):
    """A socket of ``openenv.v1``, up to and including its welcome. It counts its calls, and has no rules."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.session = self.token = ""
        self.seq = 0
        self.raw = ""
        super().__init__(target.ws, offers=(SUBPROTOCOL,), timeout_s=target.timeout_s)
        if self.subprotocol != SUBPROTOCOL:
            raise Violation("not-echoed", "the server does not echo openenv.v1 on this connection")
        self.welcome = self.recv("welcome")
        if self.welcome["type"] != "welcome" or not isinstance(self.welcome.get("data"), dict):
            raise Violation("no-welcome", f"the first frame is {short(self.welcome)} and not welcome")
        self.epoch = str(self.welcome["data"].get("epoch", ""))

    def open(self, *uses: str, **data: Any) -> Self:
        """Open a session."""
        frame = self.ask({"type": "open", "data": {"uses": list(uses or ALL_USES), **data}}, "opened")
        if frame["type"] != "opened":
            raise Violation("not-opened", f"open was answered by {short(frame)}")
        self.took(frame)
        return self

    def took(self, opened: Frame) -> None:
        """Take the session of an ``opened``."""
        data = opened.get("data")
        data = data if isinstance(data, dict) else {}
        session, token = data.get("session"), data.get("token")
        if not (isinstance(session, str) and isinstance(token, str)):
            raise Violation("bad-opened", "opened lacks a session or a token")
        self.session, self.token = session, token
        self.target.leases[session] = token

    def request(self, kind: str, seq: int | None = None, **data: Any) -> str:
        """The text of a request, by default with the next number."""
        self.seq = self.seq + 1 if seq is None else seq
        body = {} if kind == "state" else {"data": data}
        return json.dumps({"type": kind, "seq": self.seq, **body})

    def call(self, kind: str, seq: int | None = None, **data: Any) -> Frame:
        """Send a request and read the answer, passing over ``running``."""
        self.send(self.request(kind, seq, **data))
        return self.answer()

    def answer(self, timeout_s: float | None = None) -> Frame:
        """Read an answer, passing over ``running``."""
        while True:
            raw = self.recv_raw(f"the answer to call {self.seq}", timeout_s)
            self.raw = raw if isinstance(raw, str) else ""
            frame = read_json(raw)
            if frame["type"] != "running":
                return frame

    def step(self, op: str = "inc", arg: Any = None) -> Frame:
        """One step of the probe environment."""
        return self.call("step", op=op, arg=arg)

    def release(self, session: str, token: str) -> None:
        """Give a session up."""
        self.send({"type": "release", "data": {"session": session, "token": token}})

    def resumed(self, last_reply: int | None = None, attempt: int = 1, **data: Any) -> tuple[V1, Frame]:
        """Come back on another socket. Returns it, and the first frame on it."""
        other = V1(self.target)
        last = self.seq if last_reply is None else last_reply
        known = {"session": self.session, "token": self.token, "epoch": self.epoch}
        frame = other.ask({"type": "resume", "data": {**known, "last_reply": last, "attempt": attempt, **data}})
        other.session, other.token, other.seq = self.session, self.token, self.seq
        if frame["type"] == "resumed" and isinstance(frame.get("data"), dict):
            other.token = str(frame["data"].get("token", ""))
            self.target.leases[self.session] = other.token
        return other, frame

    def back(self, last_reply: int | None = None, attempt: int = 1) -> tuple[V1, Frame]:
        """Come back on another socket, and see that it is granted. Returns it, and the data of ``resumed``."""
        other, frame = self.resumed(last_reply, attempt)
        if frame["type"] != "resumed":
            raise Violation("not-resumed", f"resume was answered by {short(frame)}")
        data = frame.get("data")
        return other, data if isinstance(data, dict) else {}

    def gone(self, *reasons: str, **data: Any) -> None:
        """See that the session cannot be resumed.

        Args:
            reasons: what the server may say for it.
            data: members of the resume to change.

        Raises:
            Violation: it can, or the reason is another.
        """
        other, frame = self.resumed(**data)
        with other:
            reason = frame.get("data", {}).get("reason") if isinstance(frame.get("data"), dict) else None
            if frame["type"] != "lost" or (reasons and reason not in reasons):
                expected = " or ".join(reasons) or "any reason"
                raise Violation("not-lost", f"resume was answered by {short(frame)} where lost ({expected}) was due")


# ---------------------------------------------------------------- frames


def observation_of(frame: Frame) -> Frame:
    """The data of an ``observation`` frame.

    Raises:
        Violation: it is none.
    """
    data = frame.get("data")
    if frame["type"] != "observation" or not isinstance(data, dict) or not isinstance(data.get("observation"), dict):
        raise Violation("no-observation", f"{short(frame)} came where an observation was due")
    return data


def error_of(frame: Frame, *codes: str, **expected: Any) -> Frame:
    """The data of an ``error`` frame with one of these codes, and these members.

    Raises:
        Violation: it is none.
    """
    data = frame.get("data")
    if frame["type"] != "error" or not isinstance(data, dict):
        raise Violation("no-error", f"{short(frame)} came where an error ({' or '.join(codes)}) was due")
    if not isinstance(data.get("code"), str) or not isinstance(data.get("message"), str):
        raise Violation("bad-error", f"an error lacks code or message: {short(frame)}")
    if codes and data["code"] not in codes:
        raise Violation("wrong-code", f"error {data['code']} came where {' or '.join(codes)} was due: {short(frame)}")
    for name, value in expected.items():
        if name not in data or data[name] is not value:
            raise Violation("bad-error", f"'{name}' must be {json.dumps(value)} in {short(frame)}")
    return data


# ---------------------------------------------------------------- the list of checks

Body = Callable[[Target], None]


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        clause: number of the clause it is for.
        name: what it checks.
        run: raises a verdict if the clause is not simply kept.
        needs: features that it needs.
        probe: it needs the probe environment.
    """

    clause: str
    name: str
    run: Body
    needs: tuple[str, ...]
    probe: bool


CHECKS: list[Check] = []


def check(number: str, *needs: str, probe: bool = False) -> Callable[[Body], Body]:
    """Add a check, whose docstring says what it checks.

    Args:
        number: of its clause.
        needs: features that it needs.
        probe: it needs the probe environment.
    """

    def add(body: Body) -> Body:
        clause(number)
        CHECKS.append(Check(number, (body.__doc__ or body.__name__).strip(), body, needs, probe))
        return body

    return add
