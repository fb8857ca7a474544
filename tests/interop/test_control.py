"""The control: the same faults, by the same scripts, from the same proxy, pointed at upstream's client and at ours.

A suite that has never been red shows nothing. Here upstream's client does what its hazards say: it steps in an
environment that nobody reset, gives a call the answer of another one, and runs an action twice. All of it is read off
the server's log. Our client, in the same script and against the same servers, does none of it.

The hazards (H1 ...) in the names, with what happens in the real 0.10.0:

* H1 a step after an unnoticed loss runs on a fresh environment, without an error
* H2 a loss that raises does so once; the retry runs on a fresh environment
* H3 so does the call after a timeout, a cancellation or a close
* H4, H5 calls of two tasks or threads: every later call gets the answer of an earlier one
* H6 the same after Ctrl-C in a blocking call; H7 after a cancellation while sending
* H8 a result that is awaited twice is executed twice
* H9 a retry after a cut in flight applies the action twice
* H12 a timeout has no text
* H18 first calls made at once open a session each, and leak all but one
* H20 (server) an idle limit closes the environment under a live socket, and the next step runs on it
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from interop.sides import OURS, UPSTREAM, Driver, Ended, Link, Mirror, Servers, Side, mirror_server
from openenv.testing import FaultProxy


@dataclass
class Stage:
    """A client behind a proxy in front of a server, and a gate that keeps a step of the environment waiting."""

    driver: Driver
    server: Mirror
    proxy: FaultProxy
    gate: Path
    name: str
    upstream: bool

    @property
    def keeps(self) -> bool:
        """Both ends are ours: a session outlives its socket, and a call its caller."""
        return self.driver.side is OURS and self.server.side is OURS

    def mark(self, text: str) -> str:
        return f"{self.name}:{text}"

    def begin(self, **settings: float) -> int:
        """Make a client, reset it, take a step; the number of its environment."""
        self.driver.new(self.proxy.url, **settings)
        number: int = self.driver.reset().seen["env_no"]
        assert self.driver.step().seen["env_no"] == number
        return number

    def blocked_step(self, mark: str) -> Callable[[], Ended]:
        """A step that waits at the gate of its environment."""
        started = self.driver.start_step("wait", str(self.gate), mark=self.mark(mark))
        self.server.wait_for("step", mark=self.mark(mark))
        return started.end

    def step(self, mark: str) -> Ended:
        return self.driver.step(mark=self.mark(mark))

    def step_until_answered(self, mark: str) -> Ended:
        """What a trainer does that tries again on an error."""
        for _ in range(3):
            ended = self.step(mark)
            if ended.error is None:
                return ended
        return ended

    def assert_swapped(self, number: int, mark: str, ended: Ended) -> None:
        """Upstream: an answer from an environment that nobody reset. Ours: the loss, and nothing ran; or, with both
        ends ours, the late answer of the call before, once, and its own answer from the environment it had."""
        if self.keeps and ended.raised == "LateResultError":
            assert self.server.ran_on(self.mark(mark)) == []
            ended = self.step(mark)
        ran = self.server.ran_on(self.mark(mark))
        if self.upstream:
            assert ended.error is None
            assert ended.seen["env_no"] != number
            assert ran == [ended.seen["env_no"]]
            assert not self.server.was_reset(ran[0])
        elif self.keeps:
            assert ended.seen["env_no"] == number
            assert ended.seen["echo"] == self.mark(mark)
            assert ran == [number]
        else:
            assert ended.raised == "SessionLostError", ended
            assert ran == []
            again = self.driver.reset().seen
            assert self.server.was_reset(again["env_no"])
            assert self.step(f"{mark}, after the reset").seen["env_no"] == again["env_no"]


@pytest.fixture(params=["async", "sync"])
def mode(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def stage(
    request: pytest.FixtureRequest,
    link: Link,
    mode: str,
    servers: Servers,
    drivers: Callable[[Side, str], Driver],
    tmp_path: Path,
) -> Iterator[Stage]:
    server, driver = servers(link.server), drivers(link.client, mode)
    gate = tmp_path / "gate"
    with FaultProxy("127.0.0.1", server.port) as proxy:
        yield Stage(driver, server, proxy, gate, request.node.name, link.client is UPSTREAM)
        gate.touch()
        proxy.heal()
        driver.forget()


only_async = pytest.mark.parametrize("mode", ["async"])


# ---------------------------------------------------------------- a step lands on a fresh environment


@pytest.mark.parametrize("cut", ["rst", "fin"])
def test_h1_cut_between_two_steps(cut: str, stage: Stage) -> None:
    number = stage.begin()
    stage.proxy.cut(cut)  # type: ignore[arg-type]
    assert stage.driver.call("noticed").value is True
    stage.assert_swapped(number, "after the cut", stage.step("after the cut"))


def test_h1_state_after_a_cut(stage: Stage) -> None:
    number = stage.begin()
    stage.proxy.cut()
    assert stage.driver.call("noticed").value is True
    ended = stage.driver.state()
    if stage.upstream:
        assert ended.value["env_no"] != number
        assert ended.value["step_count"] == 0
    elif stage.keeps:
        assert (ended.value["env_no"], ended.value["step_count"]) == (number, 1)
    else:
        assert ended.raised == "SessionLostError"


def test_h2_h9_cut_in_flight_and_a_retry(stage: Stage) -> None:
    number = stage.begin()
    end = stage.blocked_step("the one")
    stage.proxy.cut()
    if stage.keeps:
        stage.gate.touch()
    first = end()
    stage.gate.touch()
    if stage.keeps:  # nothing to try again: this is its own answer
        assert (first.seen["env_no"], first.seen["echo"]) == (number, stage.mark("the one"))
        assert stage.server.ran_on(stage.mark("the one")) == [number]
        return
    stage.server.wait_for("done", mark=stage.mark("the one"))  # it was applied, although its caller saw an error
    retry = stage.step_until_answered("the one")
    ran = stage.server.ran_on(stage.mark("the one"))
    if stage.upstream:
        assert first.raised == "ConnectionClosedError"
        assert retry.error is None
        assert ran == [number, retry.seen["env_no"]], "applied twice, the second time elsewhere"
        assert not stage.server.was_reset(ran[1])
    else:
        assert first.raised == "SessionLostError"
        assert first.error is not None
        assert first.error["fields"]["outcome"] == "unknown"
        assert retry.raised == "SessionLostError"
        assert ran == [number]


def test_h9_the_reply_is_cut_and_the_call_tried_again(stage: Stage) -> None:
    number = stage.begin()
    stage.proxy.cut_on_reply()
    first = stage.step("the one")
    if stage.keeps:
        assert (first.seen["env_no"], first.seen["echo"]) == (number, stage.mark("the one"))
        assert stage.server.ran_on(stage.mark("the one")) == [number]
        return
    assert first.error is not None
    retry = stage.step_until_answered("the one")
    ran = stage.server.ran_on(stage.mark("the one"))
    if stage.upstream:
        assert ran == [number, retry.seen["env_no"]]
        assert ran[0] != ran[1]
    else:
        assert retry.raised == "SessionLostError"
        assert ran == [number]


def test_h3_h12_after_a_timeout(stage: Stage) -> None:
    number = stage.begin(message_timeout_s=1.0)
    late = stage.blocked_step("late")()
    assert late.is_a("TimeoutError")
    assert late.error is not None
    assert (late.error["message"] == "") == stage.upstream
    stage.gate.touch()
    stage.assert_swapped(number, "next", stage.step("next"))


@only_async
def test_h3_after_a_cancellation(stage: Stage) -> None:
    number = stage.begin()
    started = stage.driver.start_step("wait", str(stage.gate), mark=stage.mark("cancelled"))
    stage.server.wait_for("step", mark=stage.mark("cancelled"))
    assert started.cancel().raised == "CancelledError"
    stage.gate.touch()
    stage.assert_swapped(number, "next", stage.step("next"))


@pytest.mark.parametrize("end", ["close", "disconnect"])
def test_h3_after_close(end: str, stage: Stage) -> None:
    number = stage.begin()
    _ = stage.driver.call(end).value
    ended = stage.step("after close")
    if stage.upstream:
        stage.assert_swapped(number, "after close", ended)
    else:
        assert ended.raised == "SessionClosedError"
        assert stage.server.ran_on(stage.mark("after close")) == []


def test_h3_h18_first_calls_at_once(stage: Stage) -> None:
    for turn in range(10):  # upstream's race shows when the calls really meet
        stage.driver.new(stage.proxy.url)
        marks = [stage.mark(f"first {n} of turn {turn}") for n in range(3)]
        started = [stage.driver.start_step(mark=mark) for mark in marks]
        numbers = [ended.seen["env_no"] for ended in [one.end() for one in started] if ended.error is None]
        ran = {number for mark in marks for number in stage.server.ran_on(mark)}
        _ = stage.driver.call("close").value
        if len(ran) > 1 or not stage.upstream:
            break
    if stage.upstream:
        assert len(ran) > 1, "an environment each"
        assert stage.proxy.connections >= 1, "sockets that nobody can close are still open"
    else:
        assert len(ran) == 1
        assert set(numbers) == ran
        stage.proxy.wait_for_open(0)
        stage.server.wait_for("close", env_no=numbers[0])


# ---------------------------------------------------------------- a call gets the answer of another one


def assert_shifted(stage: Stage) -> None:
    """Upstream: calls are given the answers of earlier ones, without an error. Ours: their own, or the loss."""
    answered = strangers = 0
    for turn in range(200 if stage.upstream else 3):  # upstream may say ConcurrencyError while an old call still waits
        ended = stage.step(f"turn {turn}")
        if ended.error is None:
            answered += 1
            strangers += ended.value["observation"].get("echo") != stage.mark(f"turn {turn}")
        elif not stage.upstream:
            assert ended.raised == ("LateResultError" if stage.keeps else "SessionLostError")
        if answered == 3:
            break
    assert strangers == (3 if stage.upstream else 0)


def test_h4_h5_two_calls_at_once(stage: Stage) -> None:
    number = stage.begin()
    first = stage.blocked_step("first")
    second = stage.driver.start_step(mark=stage.mark("second"))
    if stage.upstream:
        failed = second.end()  # at once, while the first is still running
        assert failed.raised == "ConcurrencyError"
    stage.gate.touch()
    assert first().seen["echo"] == stage.mark("first")
    stage.server.wait_for("done", mark=stage.mark("second"))
    assert stage.server.ran_on(stage.mark("second")) == [number], "sent and applied, whatever its caller was told"
    if not stage.upstream:
        assert second.end().seen["echo"] == stage.mark("second")
    assert_shifted(stage)


def test_h4_a_step_is_answered_with_a_state(stage: Stage) -> None:
    stage.begin()
    first = stage.blocked_step("first")
    state = stage.driver.start("state")
    if stage.upstream:
        assert state.end().raised == "ConcurrencyError"
    stage.gate.touch()
    assert first().error is None
    after = stage.step("after")
    if stage.upstream:
        assert after.value["observation"] == {}
        assert after.value["reward"] is None
    else:
        assert after.seen["echo"] == stage.mark("after")
        assert state.end().value["step_count"] == 2


@pytest.mark.parametrize("mode", ["main"])
def test_h6_ctrl_c_in_a_blocking_step(link: Link, mode: str, servers: Servers, tmp_path: Path) -> None:
    server = servers(link.server)
    with Driver(link.client, mode) as driver, FaultProxy("127.0.0.1", server.port) as proxy:
        stage = Stage(driver, server, proxy, tmp_path / "gate", f"ctrl-c {link}", link.client is UPSTREAM)
        stage.begin()
        end = stage.blocked_step("interrupted")
        driver.interrupt()
        assert end().raised == "KeyboardInterrupt"
        meanwhile = stage.step("meanwhile") if stage.upstream else None
        stage.gate.touch()
        stage.server.wait_for("done", mark=stage.mark("interrupted"))
        if meanwhile is not None:
            assert meanwhile.raised == "ConcurrencyError"
        assert_shifted(stage)


@only_async
def test_h7_cancelled_while_sending(stage: Stage) -> None:
    number = stage.begin()
    stage.proxy.hold("request")
    noise = random.Random(7).randbytes(7_000_000).hex()  # 14 MB; what can be compressed does not fill the buffers
    started = stage.driver.start("step", {"op": "inc", "arg": noise, "metadata": {"mark": stage.mark("big")}})
    stage.proxy.wait_for_held("request", 1)
    assert started.cancel().raised == "CancelledError"
    stage.proxy.heal()
    ended = stage.driver.state()
    if stage.upstream:
        assert "observation" in ended.value, "the answer of the cancelled step"
        assert stage.server.ran_on(stage.mark("big")) == [number]
    elif stage.keeps:
        assert ended.raised in ("", "LateResultError")
        assert len(stage.server.ran_on(stage.mark("big"))) == (1 if ended.raised else 0)
        assert_shifted(stage)
    else:
        assert ended.raised == "SessionLostError"
        assert len(stage.server.ran_on(stage.mark("big"))) <= 1


@only_async
def test_h8_a_result_awaited_twice(stage: Stage) -> None:
    stage.driver.new(stage.proxy.url)
    action = {"op": "inc", "metadata": {"mark": stage.mark("once")}}
    one, two = stage.driver.call("twice", action).value
    times = len(stage.server.ran_on(stage.mark("once")))
    assert times == (2 if stage.upstream else 1)
    assert (one == two) != stage.upstream


# ---------------------------------------------------------------- the server's own


@pytest.mark.parametrize("side", [UPSTREAM, OURS], ids=str)
def test_h20_an_idle_limit_and_a_live_socket(
    side: Side, drivers: Callable[[Side, str], Driver], tmp_path: Path
) -> None:
    """Seen by upstream's client, on both servers: ours closes the socket with the environment."""
    driver = drivers(UPSTREAM, "async")
    with mirror_server(side, tmp_path, MIRROR_SESSION_TIMEOUT="1") as server:
        driver.new(server.url)
        number = driver.reset().seen["env_no"]
        server.wait_for("close", env_no=number)
        ended = driver.step(mark="on the closed one")
        ran = server.ran_on("on the closed one")
        driver.forget()
    if side is UPSTREAM:
        assert ended.error is None
        assert ran == [number], "an answer from an environment that was closed"
    else:
        assert number not in ran
