"""Raw frames of the plain dialect, for tests that talk to a server byte by byte."""

from __future__ import annotations

import json
from typing import Any

from pydantic import field_validator
from websockets.sync.client import ClientConnection

from support.envs import CountAction


class PickyAction(CountAction):
    """Refuses the argument "value error" as it should, and "runtime error" as it should not."""

    @field_validator("arg")
    @classmethod
    def check(cls, value: Any) -> Any:
        if value == "value error":
            raise ValueError("I do not like it")
        if value == "runtime error":
            raise RuntimeError("validator broke")
        return value


def ask(ws: ClientConnection, frame: str | bytes) -> str:
    """Send a frame and return the text of its answer."""
    ws.send(frame)
    reply = ws.recv(20)
    assert isinstance(reply, str)
    return reply


def call(ws: ClientConnection, kind: str, **data: Any) -> dict[str, Any]:
    """Make a call and return its answer."""
    message = {"type": kind} if kind == "state" else {"type": kind, "data": data}
    reply: dict[str, Any] = json.loads(ask(ws, json.dumps(message)))
    return reply


def number(ws: ClientConnection) -> int:
    """Which environment answers here."""
    return int(call(ws, "state")["data"]["env_no"])
