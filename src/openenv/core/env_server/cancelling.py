"""Ending a call early, when its caller gave up.

A call that has not reached its environment yet is dropped. One that has is ended by the environment itself: by its
``cancel()`` hook, where its class has one, or, if it awaits, by cancelling what it awaits. Any other call goes on to
its end.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from openenv.core.env_server.interfaces import Environment

__all__ = ["CallCancelled", "Cancelling"]

logger = logging.getLogger("openenv.server")

T = TypeVar("T")

HOOK_S = 5.0
"""How long a call that has returned waits for its ``cancel()`` hook, so that the hook cannot hit the next call."""


class CallCancelled(Exception):
    """The call was ended early. ``applied``: False if the environment never saw it, None if it did."""

    def __init__(self, applied: bool | None) -> None:
        self.applied = applied
        super().__init__("the call was cancelled")


class Cancelling:
    """What is known of the wish to end the running call. One for each environment, used by call after call.

    Attributes:
        asked: the running call is to end early.
    """

    def __init__(self) -> None:
        self.asked = False
        self._begun = False
        self._lock = threading.Lock()
        self._task: asyncio.Task[Any] | None = None
        self._hook: asyncio.Future[Any] | None = None

    def begin(self) -> None:
        """The call reaches its environment now; on any thread.

        Raises:
            CallCancelled: it must not any more.
        """
        with self._lock:
            if self.asked:
                raise CallCancelled(applied=False)
            self._begun = True

    def ask(self, env: Any) -> bool:
        """End the running call early; on the loop. A second request for the same call does nothing.

        Returns:
            Whether the call will hear of it; if not, it goes on to its end.
        """
        with self._lock:
            repeated, self.asked = self.asked, True
            if not self._begun:
                return True
        hook = _hook(env)
        if repeated:
            return hook is not None or self._task is not None
        if hook is not None:
            self._hook = _run(hook, type(env).__name__)
            return True
        if self._task is not None:
            self._task.cancel()
            return True
        return False

    async def awaiting(self, call: Coroutine[Any, Any, T]) -> T:
        """Await a call of an environment that awaits, so that it can be cancelled.

        Raises:
            CallCancelled: it was.
        """
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        try:
            return await call
        except asyncio.CancelledError:
            if self._sent and task.cancelling() == 1:
                raise CallCancelled(applied=None) from None
            raise  # the server's loop ends
        finally:
            self._task = None
            if self._sent:
                task.uncancel()

    async def settle(self) -> None:
        """The call has returned: forget the wish, when its hook has returned as well."""
        hook, self._hook = self._hook, None
        if hook is not None:
            _, late = await asyncio.wait([hook], timeout=HOOK_S)
            if late:
                logger.warning("a cancel() hook has not returned for %g s; it may hit the next call", HOOK_S)
        with self._lock:
            self.asked = self._begun = False

    @property
    def _sent(self) -> bool:
        return self.asked and self._hook is None


def _hook(env: Any) -> Callable[[], Any] | None:
    """The ``cancel()`` of an environment, if its class has one and it can be called without arguments."""
    own = getattr(type(env), "cancel", None)
    if own is None or own is Environment.cancel:
        return None
    hook: Callable[[], Any] = env.cancel
    try:
        inspect.signature(hook).bind()
    except (TypeError, ValueError):
        return None  # something else of the author's that happens to have this name
    return hook


def _run(hook: Callable[[], Any], name: str) -> asyncio.Future[Any]:
    """Run a hook, beside the environment's thread: that one is busy with the call."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    async def on_loop() -> None:
        try:
            await hook()
        except Exception:  # the call goes on whatever the hook raises
            logger.exception("%s.cancel() raised", name)

    def on_thread() -> None:
        try:
            hook()
        except BaseException:  # as above; SystemExit of a hook ends the hook
            logger.exception("%s.cancel() raised", name)
        try:
            loop.call_soon_threadsafe(done.set_result, None)
        except RuntimeError:
            pass  # the loop is closed: nobody waits

    if inspect.iscoroutinefunction(hook):
        return loop.create_task(on_loop())
    threading.Thread(target=on_thread, name=f"openenv-cancel-{name}", daemon=True).start()
    return done
