"""Temporary."""
from __future__ import annotations
from typing import Any
import numpy as np
from openenv.core.exceptions import PolicyProtocolError
from openenv.core.wire.arrays import decode
from openenv.core.wire.json_codec import MalformedFrame
from openenv.policy.rows import check_rows, RowsError


def need(ok: bool, why: str) -> None:
    if not ok:
        raise PolicyProtocolError(why)

def read(frame: Any, kind: str) -> Any:
    need(isinstance(frame, bytes), "text frame")
    try:
        message = decode(frame)
    except MalformedFrame as e:
        raise PolicyProtocolError(str(e)) from None
    need(isinstance(message, dict) and message.get("message_type") == kind, f"not {kind}")
    for name in ("env_indices", "step_ids"):
        a = message.get(name)
        need(isinstance(a, np.ndarray) and a.ndim == 1 and a.dtype.kind in "iu", name)
    idx = message["env_indices"].tolist()
    need(len(idx) > 0 and len(set(idx)) == len(idx) and min(idx) >= 0 and len(message["step_ids"]) == len(idx), "indices")
    need(isinstance(message.get("data"), dict), "data")
    if kind == "feedback":
        d = message["data"]
        need(d.keys() == {"obs", "rewards", "terminated", "truncated", "info"}, "keys")
        for n, k in (("rewards", "f"), ("terminated", "b"), ("truncated", "b")):
            need(isinstance(d[n], np.ndarray) and d[n].dtype.kind == k and d[n].shape == (len(idx),), n)
        need(isinstance(d["info"], dict), "info")
        try:
            check_rows(d["obs"], len(idx))
        except RowsError as e:
            raise PolicyProtocolError(str(e)) from None
    return message
