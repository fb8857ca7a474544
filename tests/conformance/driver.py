"""Plays what the conformance server tells, with a `GenericEnvClient` of whichever openenv the interpreter has."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import warnings
from typing import Any

warnings.simplefilter("ignore")

from openenv.core.generic_client import GenericEnvClient  # noqa: E402


async def make(client: Any, call: dict[str, Any]) -> dict[str, Any] | None:
    """Make a call, and return what to do next."""
    await asyncio.sleep(call.get("wait_s", 0))
    kind, limit = call["call"], call.get("timeout_s")
    if kind == "together":
        results = await asyncio.gather(*(make(client, one) for one in call["calls"]), return_exceptions=True)
        found = [one for one in results if isinstance(one, dict)]
        if not found:
            raise RuntimeError(repr(results))
        return found[0]
    args = {"step": [call.get("action")], "state": [], "reset": []}[kind]
    kwargs = call.get("data", {}) if kind == "reset" else {}
    method = getattr(client, kind)
    if limit is None:
        result = await method(*args, **kwargs)
    elif hasattr(client, "settle"):
        result = await method(*args, timeout_s=limit, **kwargs)
    else:
        result = await asyncio.wait_for(method(*args, **kwargs), limit)
    seen = result if kind == "state" else result.observation
    return seen.get("next")  # type: ignore[no-any-return]


async def reset(client: Any) -> dict[str, Any] | None:
    for _ in range(100):
        try:
            return await make(client, {"call": "reset"})
        except Exception as error:
            print(f"reset: {error!r}", file=sys.stderr)
            await asyncio.sleep(0.1)
    raise SystemExit("no reset succeeded")


def once_more(call: dict[str, Any]) -> dict[str, Any]:
    """The same call again; a step says so."""
    again = {name: value for name, value in call.items() if name not in ("timeout_s", "wait_s")}
    if "action" in again:
        again["action"] = {**again["action"], "retry": True}
    return again


async def main() -> None:
    waits = "wait_for_slot" in inspect.signature(GenericEnvClient.__init__).parameters
    client = GenericEnvClient(
        sys.argv[1] if len(sys.argv) > 1 else os.environ["OPENENV_URL"], **({"wait_for_slot": 20.0} if waits else {})
    )
    call = await reset(client)
    while call is not None and call["call"] != "close":
        for attempt in (call, call.get("else") or once_more(call)):
            try:
                call = await make(client, attempt)
                break
            except Exception as error:
                print(f"{attempt['call']}: {error!r}", file=sys.stderr)
        else:
            call = await reset(client)
    await client.close()


if __name__ == "__main__":
    asyncio.run(main())
