"""`SyncEnvClient`: blocking, under a running loop, from many threads, and one I/O thread for all."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from openenv.core.exceptions import CallTimeoutError, OpenEnvError, SessionClosedError, SessionLostError
from openenv.core.sync_client import SyncEnvClient
from openenv.core.transport.io_thread import IoThread
from openenv.testing import FaultProxy
from support.clients import CountClient, CountServer, act
from support.live import serve_process


def test_an_episode(server: CountServer) -> None:
    client = server.client().sync()
    with client as entered:
        assert entered is client
        assert client.reset(seed=1, timeout_s=30).observation.count == 0
        assert client.step(act(), timeout_s=None).observation.count == 1
        assert client.state(timeout_s=30).step_count == 1
        assert client.connect() is client
        client.disconnect()
        with pytest.raises(SessionClosedError):
            client.step(act())
        client.reset()
    server.env.log.wait_for("close", 2)


def test_it_is_one_object_a_client_and_knows_it(server: CountServer) -> None:
    client = server.client()
    assert client.sync() is client.sync()
    assert isinstance(client.sync(), SyncEnvClient)
    assert client.sync().async_client is client
    assert client.sync().base_url == server.url
    assert "blocking" in repr(client.sync())
    with pytest.raises(AttributeError):
        client.sync().no_such_thing


def test_a_loss_is_the_same_as_the_async_clients(server: CountServer) -> None:
    with FaultProxy("127.0.0.1", server.url.port) as proxy, CountClient(base_url=proxy.url).sync() as client:
        client.reset()
        proxy.cut("rst")
        for _ in range(2):
            with pytest.raises(SessionLostError):
                client.step(act(mark="lost"))
        client.reset()
        assert client.step(act(mark="fine")).observation.count == 1
    assert (server.marks(), server.strays()) == (["fine"], [])


async def test_it_works_under_a_running_loop(server: CountServer) -> None:
    with server.client().sync() as client:
        assert client.reset().observation.count == 0
        assert client.step(act()).observation.count == 1
        assert client.state().step_count == 1


def test_coroutine_functions_of_a_subclass_become_blocking(server: CountServer) -> None:
    class Told(CountClient):
        limit = 3

        async def twice(self, op: str) -> Any:
            await self.step(act(op))
            return await self.step(act(op))

        async def reset(self, **kwargs: Any) -> Any:  # an override of the public method, as some env packages have
            result = await super().reset(**kwargs)
            result.metadata = {"told": True}
            return result

    with Told(base_url=server.url).sync() as client:
        assert client.limit == 3
        assert client.reset(seed=5).metadata == {"told": True}
        assert client.twice("inc").observation.count == 2
    assert [one["seed"] for one in server.env.log.of("reset")] == [5]


def test_a_child_is_blocking_as_well(server: CountServer) -> None:
    with server.client().sync() as client:
        client.reset()
        child = client.new_session()
        assert isinstance(child, SyncEnvClient)
        child.reset()
        client.close()
        with pytest.raises(SessionClosedError):
            child.step(act())


def test_eight_threads_on_one_client_get_their_own_answers(server: CountServer) -> None:
    with server.client().sync() as client:
        client.reset()

        def play(number: int) -> None:
            for turn in range(10):
                assert client.step(act("echo", [number, turn])).observation.echo == [number, turn]
                assert client.state().step_count > 0

        with ThreadPoolExecutor(8) as pool:
            for _ in pool.map(play, range(8)):
                pass
        assert client.state().step_count == 80


def test_a_timeout_says_so_and_the_next_call_does_not_stall(server: CountServer) -> None:
    with server.client().sync() as client:
        client.reset()
        with pytest.raises(CallTimeoutError):
            client.step(act("sleep"), timeout_s=0.2)
        with pytest.raises(SessionLostError):
            client.step(act())
        server.env.release.set()
        client.reset()


def test_256_clients_add_at_most_four_threads() -> None:
    with serve_process("support.count_app:app", env={"MAX_CONCURRENT_ENVS": "256"}) as (url, _), ExitStack() as stack:
        before = threading.active_count()
        clients = [stack.enter_context(CountClient(base_url=url).sync()) for _ in range(256)]
        for client in clients:
            client.reset()
        assert threading.active_count() - before <= 4
        assert {client.step(act()).observation.count for client in clients} == {1}


def test_a_blocking_call_on_the_io_thread_is_refused(server: CountServer) -> None:
    with server.client().sync() as client:
        client.reset()

        async def misuse() -> Any:
            return client.async_client._blocking(client.async_client.state)

        with pytest.raises(RuntimeError, match="on the I/O thread"):
            IoThread.shared().run(misuse, lambda: None)
        assert client.state().step_count == 0


class Interrupt(Exception):
    """Raised by a signal handler."""


class Alarm:
    """A signal whose handler raises, some time after it was set; not SIGALRM, which is the test runner's own."""

    def __init__(self) -> None:
        self.armed = False

    def handle(self, *_: object) -> None:
        if self.armed:
            self.armed = False
            raise Interrupt

    def call(self, delay_s: float, work: Any) -> Any:
        timer = threading.Timer(delay_s, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))
        timer.start()
        try:
            self.armed = True
            return work()
        finally:
            self.armed = False
            timer.join()


@pytest.mark.parametrize("delay_ms", [0.05, 0.2, 0.5, 1, 1.5, 2, 3, 5, 8])
def test_a_signal_handler_that_raises_never_shifts_the_answers(server: CountServer, delay_ms: float) -> None:
    alarm = Alarm()
    before = signal.signal(signal.SIGUSR1, alarm.handle)
    client = server.client().sync()
    try:
        client.reset()
        for turn in range(12):
            with contextlib.suppress(Interrupt, SessionLostError):
                first = alarm.call(delay_ms / 1000 * (turn / 6), lambda: client.step(act("echo", f"a{turn}")))  # noqa: B023
                assert first.observation.echo == f"a{turn}"
            try:
                assert client.step(act("echo", f"b{turn}")).observation.echo == f"b{turn}"
            except SessionLostError:
                assert client.reset().observation.count == 0
    finally:
        signal.signal(signal.SIGUSR1, before)
        client.close()
    assert server.strays() == []


class SlowHandler:
    """A signal handler that takes its time, and then raises: what it interrupts has ended meanwhile."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._meanwhile = meanwhile

    def __call__(self, *_: object) -> None:
        self._meanwhile()
        raise Interrupt

    def interrupt(self, started: Callable[[], object], work: Callable[[], object]) -> None:
        """Do some work, and be interrupted in it once it has started."""

        def send() -> None:
            started()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, self)
        sender = threading.Thread(target=send)
        sender.start()
        try:
            with pytest.raises(Interrupt):
                work()
        finally:
            sender.join()
            signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("late", ["settle", "step"])
def test_a_late_result_that_a_signal_kept_from_its_caller_is_told_again(v1_server: CountServer, late: str) -> None:
    with v1_server.client().sync() as client:
        client.reset()
        with pytest.raises(CallTimeoutError):
            client.step(act("sleep", mark="slow"), timeout_s=0.2)

        def meanwhile() -> None:
            v1_server.env.release.set()
            client.connect()  # comes after it, in its turn

        handler = SlowHandler(meanwhile)
        work = client.settle if late == "settle" else lambda: client.step(act(mark="not sent"))
        handler.interrupt(lambda: time.sleep(0.3), work)
        settled = client.settle()
        assert settled is not None
        assert settled.observation.count == 1
        assert client.settle() is None
        assert client.step(act(mark="next")).observation.count == 2
    assert v1_server.marks() == ["slow", "next"]


def test_an_interrupted_caller_is_given_its_own_late_result_not_that_of_another_thread(
    v1_server: CountServer,
) -> None:
    with v1_server.client().sync() as client, ThreadPoolExecutor(1) as pool:
        client.reset()
        others = []

        def meanwhile() -> None:
            other = pool.submit(client.step, act("echo", "other"))
            v1_server.env.release.set()
            others.append(other.result(20).observation.echo)

        SlowHandler(meanwhile).interrupt(
            lambda: v1_server.env.log.wait_for("step"), lambda: client.step(act("sleep", mark="mine"))
        )
        late = client.settle()
        assert others == ["other"]
        assert late is not None
        assert (late.observation.count, late.observation.echo) == (1, None)
        assert client.step(act()).observation.count == 3


def test_a_result_that_nobody_took_is_not_told_after_a_reset(v1_server: CountServer) -> None:
    with v1_server.client().sync() as client, ThreadPoolExecutor(1) as pool:
        client.reset()

        def meanwhile() -> None:
            other = pool.submit(client.reset)
            v1_server.env.release.set()
            other.result(20)

        SlowHandler(meanwhile).interrupt(
            lambda: v1_server.env.log.wait_for("step"), lambda: client.step(act("sleep", mark="mine"))
        )
        assert client.settle() is None
        assert client.step(act()).observation.count == 1


def test_a_hook_that_exits_does_not_end_the_clients_of_the_process(v1_server: CountServer) -> None:
    def leave(_: object) -> None:
        raise SystemExit(3)

    with (
        FaultProxy("127.0.0.1", v1_server.url.port) as proxy,
        CountClient(base_url=proxy.url, on_resumed=leave).sync() as client,
    ):
        client.reset()
        proxy.cut()
        assert client.step(act(), timeout_s=20).observation.count == 1
        assert client.async_client.session.resumes == 1


def test_a_client_that_is_dropped_while_it_resumes_lets_its_session_go(v1_server: CountServer) -> None:
    with FaultProxy("127.0.0.1", v1_server.url.port) as proxy:
        client = CountClient(base_url=proxy.url)
        client.sync().reset()
        proxy.refuse()
        proxy.cut()
        while "suspended" not in repr(client):
            time.sleep(0.01)
        del client
        gc.collect()
        proxy.heal()
        time.sleep(1.0)  # longer than the dials of a client that is there would pause by now
        assert proxy.connections == 0


def test_ctrl_c_in_a_step_loses_the_session_loudly(server: CountServer) -> None:
    with server.client().sync() as client:
        client.reset()

        def interrupt() -> None:
            server.env.log.wait_for("step")
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            client.step(act("sleep", mark="slow"))
        thread.join()
        with pytest.raises(SessionLostError) as caught:
            client.step(act(mark="next"))
        assert caught.value.reason in ("cancelled", "interrupted")
        server.env.release.set()
        client.reset()
        assert client.step(act("echo", "own")).observation.echo == "own"
    assert server.marks()[0] == "slow"
    assert "next" not in server.marks()


# ------------------------------------------------------------------ loops


def test_a_closed_loop_loses_the_session_and_reset_binds_anew(server: CountServer) -> None:
    client = server.client()

    async def begin() -> None:
        await client.reset()
        await client.step(act(mark=1))

    async def go_on() -> None:
        for _ in range(2):
            with pytest.raises(SessionLostError) as caught:
                await client.step(act(mark="other loop"))
            assert caught.value.reason == "loop_closed"
        await client.reset()
        await client.step(act(mark=2))
        await client.close()

    asyncio.run(begin())
    asyncio.run(go_on())
    assert (server.marks(), server.strays()) == ([1, 2], [])
    server.env.log.wait_for("close", 2)


def test_another_live_loop_is_refused_before_anything_is_sent(server: CountServer) -> None:
    client = server.client()

    async def elsewhere() -> None:
        for call in (lambda: client.step(act(mark="foreign")), client.reset, client.state, client.connect):
            with pytest.raises(OpenEnvError, match="another event loop"):
                await call()

    async def main() -> None:
        await client.reset()
        await asyncio.to_thread(asyncio.run, elsewhere())
        with pytest.raises(OpenEnvError, match="another event loop"):
            client.sync().step(act(mark="blocking"))
        assert (await client.step(act(mark="own"))).observation.count == 1
        await client.close()

    asyncio.run(main())
    assert server.marks() == ["own"]


def test_a_client_on_the_io_thread_is_shared_between_loops_and_threads(server: CountServer) -> None:
    client = server.client(io="thread")

    async def play(mark: Any) -> int:
        return (await client.step(act(mark=mark))).observation.count

    async def first() -> None:
        await client.reset()
        assert await play(1) == 1
        assert await asyncio.to_thread(asyncio.run, play(2)) == 2

    asyncio.run(first())
    assert asyncio.run(play(3)) == 3
    assert client.sync().step(act(mark=4)).observation.count == 4
    client.close()
    assert server.marks() == [1, 2, 3, 4]
    assert len(server.env.log.of("init")) == 1


async def test_cancelling_a_call_on_the_io_thread_loses_the_session_as_well(server: CountServer) -> None:
    client = server.client(io="thread")
    await client.reset()
    task = asyncio.ensure_future(client.step(act("sleep", mark="slow")))
    await asyncio.to_thread(server.env.log.wait_for, "step")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(SessionLostError):
        await client.step(act(mark="next"))
    server.env.release.set()
    await client.close()
    assert server.marks() == ["slow"]
