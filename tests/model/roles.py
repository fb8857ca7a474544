"""Names that client, server and network of the model share. Nothing here comes from the package.

Frames are tuples, their kind first. From the client::

    ("open",)                                   ("call", n, cid, kind)
    ("release", sid, token)                     ("cancel", n)
    ("resume", sid, token, last_reply, attempt) ("close",)

from the server::

    ("opened", sid, token)      ("full",)                   ("reply", n, cid, result)
    ("resumed", token, m)       ("lost", reason)            ("end", close code)

``cid`` names a call for the onlooker; it stands for the bytes of a request, and for what is in a reply.
"""

from __future__ import annotations

RESET, STEP, SETTLE = "reset", "step", "settle"

OK = "ok"
FAILED = "failed"
"""The environment raised: nobody knows what it did."""
CANCELLED = "cancelled"
"""The call was cut short, and was not applied."""
CUT_SHORT = "cut_short"
"""The call was cut short, and nobody knows what it did."""
BUSY, MISMATCH, OUT_OF_ORDER = "busy", "mismatch", "out_of_order"

NOT_APPLIED, UNKNOWN = "not_applied", "unknown"

CLOSED, CAPACITY, REPLACED, IDLE = 1000, 1013, 4000, 4001
GHOST = 4100
"""Any code that is not final."""
FINAL = {CLOSED: "closed", CAPACITY: "capacity", REPLACED: "replaced", IDLE: "idle"}
