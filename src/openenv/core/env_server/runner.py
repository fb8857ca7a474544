"""Which thread runs an environment.

`EnvThread` is one thread with a queue. A session has one of its own, on which its environment's constructor,
``reset``, ``step``, ``state`` and ``close`` run, and on which requests are decoded and replies encoded, so that
the event loop only moves bytes. `EnvRunner` runs one environment on such a thread; ``reset_async`` and
``step_async``, where a class overrides them, run on the loop.

Threads are daemons and nobody joins them: a call that never returns must not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import logging
import queue
import threading
import time
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from openenv.core.env_server.cancelling import Cancelling
from openenv.core.env_server.interfaces import Environment

__all__ = ["Crash", "EnvRunner", "EnvThread", "watched"]

logger = logging.getLogger("openenv.server")

T = TypeVar("T")

BLOCKED_LOOP_S = 1.0
"""An async environment that holds the event loop for longer is named in the log."""
HELD_S = 30.0
"""How long a call waits for a former one that was given up and still runs."""

_numbers = itertools.count(1)


class Crash(Exception):
    """Something of the environment raised. Carries also what must not travel through asyncio, as SystemExit.

    Attributes:
        cause: what was raised.
    """

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(slots=True)
class _Job(Generic[T]):
    work: Callable[[], T]
    loop: asyncio.AbstractEventLoop | None
    future: asyncio.Future[T] | None


class EnvThread:
    """A thread that runs jobs one after another, in the order they came.

    Args:
        name: what the thread is called after ``openenv-env-``; a number by default.
    """

    def __init__(self, name: str | None = None) -> None:
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"openenv-env-{name or next(_numbers)}", daemon=True)
        self._started = False
        self._held: asyncio.Future[Any] | None = None

    @property
    def held(self) -> asyncio.Future[Any] | None:
        """A job that was given up and still runs, if there is one."""
        return None if self._held is None or self._held.done() else self._held

    def hold(self, job: asyncio.Future[Any]) -> None:
        """Note that nobody waits for a job any more; the jobs after it do."""
        self._held = job

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run a job and hand its result to the calling event loop.

        An exception of the job is the future's; what is not an `Exception` comes as `Crash`, because an event
        loop would end over it. The job runs also if nobody waits for the future any more.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._put(_Job(work, loop, future))
        return future

    def post(self, work: Callable[[], object]) -> None:
        """Run a job whose result nobody waits for; from any thread, with or without an event loop."""
        self._put(_Job(work, None, None))

    def stop(self) -> None:
        """Let the thread end after the jobs it has."""
        self._jobs.put(None)

    def _put(self, job: _Job[Any]) -> None:
        self._jobs.put(job)
        if not self._started:
            self._started = True
            self._thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(job)
            del job  # what it returned must not live until the next job

    def _do(self, job: _Job[Any]) -> None:
        value: Any = None
        error: Exception | None = None
        try:
            value = job.work()
        except (StopIteration, GeneratorExit) as raised:  # a future cannot carry these
            error = Crash(raised)
        except Exception as raised:  # any error of the job belongs to whoever waits for it
            error = raised
        except BaseException as raised:  # SystemExit of an environment ends a call, not the server
            error = Crash(raised)
        if job.loop is None or job.future is None:
            if error is not None:
                logger.error("a background job of %s failed", threading.current_thread().name, exc_info=error)
            return
        try:
            job.loop.call_soon_threadsafe(_settle, job.future, value, error)
        except RuntimeError:
            pass  # the loop is closed: nobody waits


def _settle(future: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


class EnvRunner:
    """Runs one environment.

    Args:
        factory: makes the environment.
        thread: where it runs.

    Attributes:
        name: class of the environment, once it is built.
        steps: steps that were answered.
        running: what the call under way, or the last one, is: ``reset``, ``tools/call`` and the like.
        cancelling: whether the running call is to end early.
    """

    def __init__(self, factory: Callable[[], Any], thread: EnvThread) -> None:
        self._factory = factory
        self._thread = thread
        self._env: Any = None
        self._signatures: dict[str, tuple[frozenset[str], bool]] = {}
        self._warned: set[str] = set()
        self.name = ""
        self.steps = 0
        self.running = ""
        self.cancelling = Cancelling()

    async def build(self, check: Callable[[Any], None]) -> None:
        """Construct the environment, and let ``check`` look at it on its thread.

        Raises:
            Exception: what the factory or ``check`` raised; an environment that was made is closed.
        """

        loop = asyncio.get_running_loop()

        def construct() -> None:
            env = self._factory()
            try:
                check(env)
                if hasattr(type(env), "bind_thread"):  # its tools run here as well
                    env.bind_thread(self._thread, loop)
            except BaseException:  # raised on; whatever it is, what was made must be closed
                self._close(env)
                raise
            self.name = type(env).__name__
            self._env = env

        await self._thread.run(construct)

    async def on_thread(self, work: Callable[[Any], T]) -> T:
        """Run ``work(env)`` on the environment's thread."""
        return await self._thread.run(lambda: work(self._env))

    async def read(self, work: Callable[[Any], T]) -> T:
        """Run a call that is ``work(env)`` on the environment's thread.

        Raises:
            CallCancelled: its caller gave up before it began.
        """

        def run() -> T:
            self.cancelling.begin()
            return work(self._env)

        return await self._thread.run(run)

    def has(self, method: str) -> bool:
        """Whether the environment's class has a method of this name."""
        return callable(getattr(type(self._env), method, None))

    def cancel(self) -> bool:
        """Ask the running call to end early. Returns whether it will hear of it."""
        return self.cancelling.ask(self._env)

    async def awaited(self, start: Callable[[Any], Coroutine[Any, Any, T]], what: str) -> T:
        """Run a call that is ``await start(env)`` on the loop.

        Args:
            start: begins it.
            what: its name for the log.

        Raises:
            Crash: it raised.
            CallCancelled: it ended early, because its caller gave up.
        """
        self.cancelling.begin()
        started = watched(self._begun(start), f"{self.name}.{what}")
        return await self.cancelling.awaiting(_guarded(started))

    async def finish(self, work: Callable[[], T]) -> T:
        """Do what is left of a call on the environment's thread; beside it, while a job that was given up holds it."""
        return await (self._thread.run(work) if self._thread.held is None else asyncio.to_thread(work))

    async def free(self) -> None:
        """Wait until a job that was given up has returned, but not for ever.

        Raises:
            CallCancelled: the caller gave up.
            Crash: it has not returned.
        """
        held = self._thread.held
        if held is None:
            return
        _, late = await asyncio.wait([held], timeout=HELD_S)
        if late:
            text = f"A call that was given up has not returned for {HELD_S:g} s more; this one was not run"
            raise Crash(TimeoutError(text))

    async def call(
        self,
        method: str,
        prepare: Callable[[], tuple[tuple[Any, ...], Mapping[str, Any]]],
        finish: Callable[[Any], T],
    ) -> T:
        """Call a method of the environment: prepare, call and finish, all on its thread.

        An overridden ``<method>_async`` is awaited on the loop instead, between the two.

        Args:
            method: ``reset``, ``step``, or the name of any method.
            prepare: makes the arguments.
            finish: turns the value into the result.

        Raises:
            Crash: the environment raised.
            CallCancelled: it ended early, because its caller gave up.
            Exception: what ``prepare`` or ``finish`` raised.
        """
        if not self._is_async(method):
            return await self._thread.run(lambda: finish(self._call_sync(method, *prepare())))
        await self.free()
        args, kwargs = await self._thread.run(prepare)
        name, taken = self._async_name(method), self._taken(method, kwargs)
        value = await self.awaited(lambda env: getattr(env, name)(*args, **taken), name)
        return await self.finish(lambda: finish(value))

    def _call_sync(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.cancelling.begin()
        try:
            value = getattr(self._env, method)(*args, **self._taken(method, kwargs))
            if inspect.iscoroutine(value):
                value.close()
                raise TypeError(
                    f"{self.name}.{method} is an 'async def'; an environment that awaits overrides {method}_async"
                )
            return value
        except BaseException as raised:  # nothing an environment raises may end the thread or the loop
            raise Crash(raised) from raised

    async def _begun(self, start: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        return await start(self._env)

    def _async_name(self, method: str) -> str:
        return f"{method}_async" if method in ("reset", "step") else method

    def _is_async(self, method: str) -> bool:
        own = getattr(type(self._env), self._async_name(method), None)
        if method in ("reset", "step"):
            return own is not None and own is not getattr(Environment, f"{method}_async")
        return inspect.iscoroutinefunction(own)

    def _taken(self, method: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments that the method takes; the others are named in a warning, once a session."""
        names, takes_all = self._signature(method)
        if takes_all or names.issuperset(kwargs):
            return dict(kwargs)
        dropped = sorted(key for key in kwargs if key not in names and key not in self._warned)
        if dropped:
            self._warned.update(dropped)
            logger.warning(
                "%s.%s() does not take %s: dropped. Add the argument or **kwargs to its signature to receive it.",
                self.name,
                method,
                ", ".join(repr(name[:80]) for name in dropped[:20]),
            )
        return {key: value for key, value in kwargs.items() if key in names}

    def _signature(self, method: str) -> tuple[frozenset[str], bool]:
        found = self._signatures.get(method)
        if found is None:
            name = self._async_name(method) if self._is_async(method) else method
            found = self._signatures[method] = _keywords(getattr(self._env, name))
        return found

    async def close(self) -> None:
        """Close the environment on its thread, and let a thread of its own end."""
        await self._thread.run(self.close_now)

    def close_now(self) -> None:
        """Close the environment; to be run on its thread. A second call does nothing."""
        env, self._env = self._env, None
        if env is not None:
            self._close(env)

    def _close(self, env: Any) -> None:
        close = getattr(env, "close", None)
        try:
            result = close() if close is not None else None
            if inspect.iscoroutine(result):
                asyncio.run(result)
        except BaseException:  # the session is over whatever close() raises; a second close() could do harm
            logger.exception("%s.close() raised", type(env).__name__)
        finally:
            if hasattr(type(env), "unbind_thread"):
                env.unbind_thread()


@types.coroutine
def watched(coroutine: Coroutine[Any, Any, T], where: str) -> Generator[Any, Any, T]:
    """Await a coroutine, and name it in the log where it holds up the event loop and every session with it."""
    resume: Callable[[], Any] = functools.partial(coroutine.send, None)
    while True:
        began = time.monotonic()
        try:
            waits_for = resume()
        except StopIteration as done:
            return cast(T, done.value)
        finally:
            held = time.monotonic() - began
            if held > BLOCKED_LOOP_S:
                logger.warning("%s() blocked the event loop for %.1f s; every session waited for it", where, held)
        try:
            resume = functools.partial(coroutine.send, (yield waits_for))
        except BaseException as raised:  # handed on: a cancellation is for the coroutine to see
            resume = functools.partial(coroutine.throw, raised)


async def _guarded(awaitable: Awaitable[T]) -> T:
    """Await something of the environment; what would end the event loop becomes `Crash`."""
    try:
        return await awaitable
    except asyncio.CancelledError as raised:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise Crash(raised) from raised
    except BaseException as raised:  # as in _call_sync
        raise Crash(raised) from raised


def _keywords(method: Callable[..., Any]) -> tuple[frozenset[str], bool]:
    """Names that may be passed by keyword, and whether any name may."""
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        return frozenset(), True
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = frozenset(parameter.name for parameter in parameters if parameter.kind in named)
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    return names, takes_all
