"""Three small functions that env packages know under this address."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["convert_to_ws_url", "hf_space_subdomain", "run_async_safely"]

T = TypeVar("T")


def run_async_safely(coro: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end from synchronous code, whether an event loop runs in this thread or not.

    Under a running loop it runs in a thread of its own, and that loop is blocked meanwhile; ``await`` is better there.
    What belongs to the running loop, as an open client, cannot be used in the coroutine.

    Args:
        coro: the coroutine.

    Returns:
        Its result.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_awaiting(coro))
    outcome: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(asyncio.run(_awaiting(coro)))
        except BaseException as error:  # raised in the caller's thread
            failure.append(error)

    thread = threading.Thread(target=work, name="openenv-run-async")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


async def _awaiting(coro: Coroutine[Any, Any, T]) -> T:
    return await coro


def convert_to_ws_url(url: str) -> str:
    """Turn an ``http`` or ``https`` address into a ``ws`` or ``wss`` one; one without a scheme becomes ``ws``."""
    text = url.rstrip("/")
    if text.startswith(("ws://", "wss://")):
        return text
    if text.startswith(("http://", "https://")):
        return "ws" + text.removeprefix("http")
    return f"ws://{text}"


def hf_space_subdomain(repo_id: str) -> str:
    """The name under which the Hub serves a Space: ``openenv/echo_env`` is at ``openenv-echo-env.hf.space``."""
    return re.sub(r"[^a-z0-9]", "-", repo_id.lower())
