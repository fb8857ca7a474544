"""Both agents against a scripted server over real sockets; what counts is what the server's log says."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from websockets.sync.server import serve

from openenv.core.exceptions import (
    CallTimeoutError,
    ConnectError,
    ConnectionReplaced,
    ForeignLoopError,
    ForkedClientError,
    Outcome,
    PolicyProtocolError,
    PolicyUsageError,
    ServerStopped,
    SessionClosedError,
)
from openenv.core.session.backoff import Backoff
from openenv.policy import AsyncWebSocketEnvClientAgent, WebSocketEnvClientAgent, transport
from openenv.policy.messages import SERVER_RESYNC, SERVER_STOP, Action, Feedback, Infer
from openenv.policy.transport import IoThreadTransport
from support.policy_peer import Peer, PolicyPeer, frame, serving

QUICK = Backoff(0.01, 0.05)


class OnLoop:
    """The asynchronous agent, called from a thread that blocks, as the other one is."""

    def __init__(self, loop: asyncio.AbstractEventLoop, url: str, **options: Any) -> None:
        self._loop = loop
        self.agent = AsyncWebSocketEnvClientAgent(url, **options)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.agent, name)
        if not asyncio.iscoroutinefunction(value):
            return value
        return lambda *given, **named: asyncio.run_coroutine_threadsafe(value(*given, **named), self._loop).result(30)


Make = Callable[..., Any]


@pytest.fixture(params=["sync", "async"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes agents, which are closed at the end."""
    made: list[Any] = []
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def one(url: str, **options: Any) -> Any:
        options = {"backoff": QUICK, "infer_timeout_s": 20, "connect_timeout_s": 20, **options}
        agent = WebSocketEnvClientAgent(url, **options) if request.param == "sync" else OnLoop(loop, url, **options)
        made.append(agent)
        return agent

    yield one
    for agent in made:
        agent.close()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def seen(*values: float) -> dict[str, Any]:
    """A batch of observations."""
    return {"states": {"t": np.array(values, dtype=np.float64)[:, None]}, "text": ["look"] * len(values)}


def infer(agent: Any, *envs: int) -> Action:
    return agent.infer(seen(*envs), list(envs), [0] * len(envs))


def feed(agent: Any, *envs: int, done: bool = False) -> None:
    ended = [done] * len(envs)
    agent.feedback(seen(*envs), list(envs), [0] * len(envs), [1.0] * len(envs), ended, [False] * len(envs))


def rounds(count: int, *envs: int) -> Callable[[Any], None]:
    def play(agent: Any) -> None:
        for _ in range(count):
            infer(agent, *envs)
            feed(agent, *envs)

    return play


# ------------------------------------------------------------------ the exchange


def test_it_reads_first_then_asks_and_feeds_back_in_turn(make: Make) -> None:
    def script(peer: Peer) -> None:
        assert peer.socket.request.headers.get_all("Sec-WebSocket-Extensions") == []
        assert peer.socket.request.headers["Authorization"] == "Api-Key secret"
        with pytest.raises(TimeoutError):
            peer.socket.recv(timeout=0.1)
        peer.hello()
        assert peer.act().env_indices.tolist() == [0, 1, 2]
        feedback = peer.expect(Feedback)
        assert feedback.env_indices.tolist() == [1]
        assert feedback.rewards.dtype.str == "<f4"
        assert feedback.info == {}
        infer = peer.act()
        assert (infer.env_indices.tolist(), infer.step_ids.tolist()) == ([1], [0])
        assert infer.observation.text.dtype.kind == "U"
        assert peer.expect(Feedback).env_indices.tolist() == [0, 2, 1]
        assert peer.gone() == (1000, "")

    with serving(script) as peer:
        agent = make(peer.url, api_key="secret")
        chunk = infer(agent, 0, 1, 2)
        assert chunk.action.shape == (4, 3, 2)
        assert chunk.action[3, 2].tolist() == [302, 302]
        feed(agent, 1)
        infer(agent, 1)
        feed(agent, 0, 2, 1)
        agent.close()
        peer.ended(1)
        assert (agent.connection_id, agent.reused_observations) == (1, 0)


def test_chunks_come_in_the_order_of_the_request(make: Make) -> None:
    def script(peer: Peer) -> None:
        peer.hello()
        peer.act(reverse=True)
        peer.expect(Feedback)
        message = peer.expect(Infer)
        peer.socket.send(frame(Action(np.arange(6).reshape(3, 2, 1), None)))
        assert message.env_indices.tolist() == [4, 0]
        peer.gone()

    with serving(script) as peer:
        agent = make(peer.url)
        chunk = infer(agent, 0, 3, 4)
        assert chunk.env_ids.tolist() == [0, 3, 4]
        assert chunk.action[0, :, 0].tolist() == [0, 3, 4]
        feed(agent, 0, 3, 4)
        old_dialect = infer(agent, 4, 0)
        assert (old_dialect.env_ids.tolist(), old_dialect.action[0].ravel().tolist()) == ([4, 0], [0, 1])
        agent.close()


@pytest.mark.parametrize("data", [{}, {"action_horizon": "four", "features": 3}, {"padding": "x" * 3_000_000}])
def test_any_metadata_will_do(make: Make, data: dict[str, Any]) -> None:
    with serving(lambda peer: (peer.hello(**data), peer.exchange(), peer.gone())) as peer:
        agent = make(peer.url)
        assert agent.connect().data == data
        assert agent.metadata.action_horizon is None
        rounds(1, 0)(agent)
        agent.close()


def test_chunks_that_are_too_short_for_the_caller_are_warned_about(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(lambda peer: (peer.hello(action_horizon=4), peer.gone())) as peer:
        agent = make(peer.url, replan_steps=5)
        with caplog.at_level(logging.WARNING, "openenv.policy"):
            agent.connect()
        assert [record.getMessage() for record in caplog.records if "replan_steps is 5" in record.getMessage()]
        agent.close()


def test_chunks_that_differ_from_what_was_declared_are_warned_about_once(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(lambda peer: (peer.hello(action_horizon=9), peer.exchange(), peer.exchange(), peer.gone())) as peer:
        agent = make(peer.url)
        with caplog.at_level(logging.WARNING, "openenv.policy"):
            rounds(2, 0)(agent)
        agent.close()
    told = [record.getMessage() for record in caplog.records if record.name == "openenv.policy"]
    assert told == ["action chunks have 4 steps, and the server declared 9"]


def test_frames_have_no_limit(make: Make) -> None:
    image = np.random.default_rng(0).integers(0, 255, (1, 1200, 1500, 3), dtype=np.uint8)

    def script(peer: Peer) -> None:
        peer.hello()
        assert np.array_equal(peer.expect(Infer).observation.images["c"], image)
        peer.socket.send(frame(Action(np.zeros((700, 1, 1000)), np.array([0]))))
        peer.gone()

    with serving(script) as peer:
        agent = make(peer.url)
        assert agent.infer({"images": {"c": image}}, [0], [0]).action.nbytes == 5_600_000
        agent.close()


# ------------------------------------------------------------------ a connection is replaced


def lose(peer: Peer) -> None:
    """Answer once, take the feedback, and close under the next infer."""
    peer.hello()
    peer.exchange()
    peer.expect(Infer)
    peer.end(SERVER_RESYNC)


def test_the_first_infer_on_a_new_connection_names_every_env_and_sends_nothing_before_raising(make: Make) -> None:
    raised, checked = threading.Event(), threading.Event()

    def second(peer: Peer) -> None:
        peer.hello()
        assert raised.wait(20)
        with pytest.raises(TimeoutError):  # whatever was sent before the error would be here by now
            peer.socket.recv(timeout=0.1)
        checked.set()
        assert peer.act().env_indices.tolist() == [0, 1, 2]
        peer.gone()

    with serving(lose, second) as peer:
        agent = make(peer.url)
        rounds(1, 0, 1, 2)(agent)
        with pytest.raises(ConnectionReplaced) as caught:
            infer(agent, 1)
        assert agent.actions_from is None
        with pytest.raises(PolicyUsageError, match="missing: 0, 2"):
            infer(agent, 1)
        raised.set()
        assert checked.wait(20)
        infer(agent, 0, 1, 2)
        agent.close()
        peer.ended(2)
    error = caught.value
    assert error.env_ids == (0, 1, 2)
    assert (error.lost_connection, error.connection) == (1, 2)
    assert (error.reason, error.close_code, error.outcome) == ("resync", 1001, Outcome.NOT_APPLIED)


def close_after_action(reason: str, code: int) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.hello()
        peer.act()
        peer.end(reason, code)

    return script


CLOSES = [
    pytest.param(SERVER_RESYNC, 1001, "resync", id="resync"),
    pytest.param("Feedback timeout", 1001, "feedback_timeout", id="feedback timeout"),
    pytest.param("Internal server error.", 1011, "closed", id="internal error"),
    pytest.param("", 1000, "closed", id="normal"),
]


@pytest.mark.parametrize(("reason", "code", "word"), CLOSES)
def test_feedback_never_reconnects(make: Make, reason: str, code: int, word: str) -> None:
    with serving(close_after_action(reason, code)) as peer:
        agent = make(peer.url)
        infer(agent, 0, 1)
        peer.ended(1)
        with pytest.raises(ConnectionReplaced) as caught:
            feed(agent, 0)
        assert (caught.value.operation, caught.value.reason, caught.value.env_ids) == ("feedback", word, (0, 1))
        assert caught.value.connection is None
        with pytest.raises(ConnectionReplaced):
            feed(agent, 0)
        assert peer.connections == 1


def test_a_failed_feedback_raises_and_is_never_resent(make: Make) -> None:
    def second(peer: Peer) -> None:
        peer.hello()
        for _ in range(3):
            peer.exchange()
        peer.gone()

    with serving(close_after_action("", 1000), second) as peer:
        agent = make(peer.url)
        infer(agent, 0, 1)
        peer.ended(1)
        with pytest.raises(ConnectionReplaced) as caught:
            agent.feedback(seen(66, 66), [0, 1], [7, 7], [66.0, 66.0], [True, True], [False, False])
        assert caught.value.outcome is Outcome.UNKNOWN
        rounds(3, 0, 1)(agent)
        agent.close()
        peer.ended(2)
    fed_back = [message for _, name, message in peer.log if name == "Feedback"]
    assert len(fed_back) == 3
    assert all(66 not in message.rewards for message in fed_back)


def test_a_cut_without_a_close_frame_is_told_as_well(make: Make) -> None:
    def script(peer: Peer) -> None:
        peer.hello()
        peer.act()
        peer.expect(Feedback)
        peer.expect(Infer)
        peer.socket.socket.shutdown(socket.SHUT_RDWR)

    with serving(script, lambda peer: (peer.hello(), peer.act(), peer.gone())) as peer:
        agent = make(peer.url)
        rounds(1, 0)(agent)
        with pytest.raises(ConnectionReplaced) as caught:
            infer(agent, 0)
        assert (caught.value.reason, caught.value.close_code) == ("connection", None)
        infer(agent, 0)
        agent.close()


def test_an_infer_that_is_lost_with_no_chunk_in_flight_is_sent_again(make: Make) -> None:
    def first(peer: Peer) -> None:
        peer.hello()
        peer.expect(Infer)
        peer.end(SERVER_RESYNC)

    with serving(first, lambda peer: (peer.hello(), peer.act(), peer.gone())) as peer:
        agent = make(peer.url)
        infer(agent, 0)
        agent.close()
        peer.ended(2)
    assert peer.told("Infer") == [(1, "Infer"), (2, "Infer")]


# ------------------------------------------------------------------ the server stops


def stop_at_action(peer: Peer) -> None:
    peer.hello()
    peer.exchange()
    peer.expect(Infer)
    peer.end(SERVER_STOP)


def stop_at_metadata(peer: Peer) -> None:
    peer.end(SERVER_STOP)


STOPS = [
    pytest.param((stop_at_action,), rounds(2, 0), id="while an action is due"),
    pytest.param((close_after_action(SERVER_STOP, 1001),), lambda agent: (infer(agent, 0),), id="at feedback"),
    pytest.param((stop_at_metadata,), rounds(1, 0), id="at metadata"),
    pytest.param((lose, stop_at_metadata), rounds(2, 0), id="while reconnecting"),
]


@pytest.mark.parametrize(("scripts", "play"), STOPS)
def test_a_stop_ends_the_rollout(make: Make, scripts: tuple, play: Callable[[Any], Any]) -> None:
    with serving(*scripts) as peer:
        agent = make(peer.url)

        def run() -> None:
            play(agent)
            peer.ended(1)
            feed(agent, 0)

        with pytest.raises(ServerStopped):
            run()
        for again in (lambda: infer(agent, 0), lambda: feed(agent, 0), agent.connect):
            with pytest.raises(ServerStopped):
                again()
        assert peer.connections == len(scripts)


def test_a_stop_with_reconnect_during_feedback_drops_that_feedback(make: Make) -> None:
    with serving(
        close_after_action(SERVER_STOP, 1001),
        stop_at_metadata,
        lambda peer: peer.end("restart", 1012),
        lambda peer: (peer.hello(), peer.exchange(), peer.gone()),
    ) as peer:
        agent = make(peer.url, reconnect_on_server_stop=True, connect_timeout_s=0.001, next_run_timeout_s=20)
        agent.connect(20)
        infer(agent, 0, 1)
        peer.ended(1)
        with pytest.raises(ConnectionReplaced) as caught:
            feed(agent, 0)
        assert (caught.value.reason, caught.value.operation) == ("stop", "feedback")
        assert peer.connections == 1
        rounds(1, 0, 1)(agent)
        agent.close()
        peer.ended(4)
    assert peer.told("Feedback") == [(4, "Feedback")]


def test_a_stop_with_reconnect_while_an_action_is_due(make: Make) -> None:
    with serving(stop_at_action, lambda peer: (peer.hello(), peer.act(), peer.gone())) as peer:
        agent = make(peer.url, reconnect_on_server_stop=True)
        rounds(1, 0)(agent)
        with pytest.raises(ConnectionReplaced, match=r"\[stop\]"):
            infer(agent, 0)
        infer(agent, 0)
        agent.close()


# ------------------------------------------------------------------ a server that breaks the protocol


def text_frame(peer: Peer) -> None:
    peer.hello()
    peer.expect(Infer)
    peer.socket.send("Traceback: it broke")
    peer.gone()


def answer(*frames: bytes) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.hello()
        peer.expect(Infer)
        for each in frames:
            peer.socket.send(each)
        peer.gone()

    return script


def no_metadata(peer: Peer) -> None:
    peer.socket.send(frame(Action(np.zeros((4, 1, 2)))))
    peer.gone()


BROKEN = [
    pytest.param(text_frame, "it broke", id="text"),
    pytest.param(answer(b"\xc1"), "no msgpack", id="no message"),
    pytest.param(answer(frame(Action(np.zeros((4, 1, 2)), np.array([5])))), "answer a request", id="other envs"),
    pytest.param(answer(frame(Action(np.zeros((4, 2, 2))))), "2 chunks", id="too many chunks"),
    pytest.param(answer(frame(Action(np.zeros((0, 1, 2))))), r"\[H, n", id="no steps"),
    pytest.param(answer(frame(Action(np.zeros((4, 1, 2), dtype=bool)))), r"\[H, n", id="bool"),
    pytest.param(no_metadata, "action came where metadata is due", id="no metadata"),
]


@pytest.mark.parametrize(("script", "why"), BROKEN)
def test_what_the_server_may_not_send_is_fatal(make: Make, script: Callable[[Peer], None], why: str) -> None:
    with serving(script) as peer:
        agent = make(peer.url)
        with pytest.raises(PolicyProtocolError, match=why):
            infer(agent, 0)
        peer.ended(1)
        for call in (infer, feed):
            with pytest.raises(PolicyProtocolError, match=why):
                call(agent, 0)
        assert peer.connections == 1
    assert peer.log[-1][1] == "closed by the client"


# ------------------------------------------------------------------ time


def test_an_infer_that_times_out_drops_its_connection(make: Make) -> None:
    def first(peer: Peer) -> None:
        peer.hello()
        peer.exchange()
        peer.expect(Infer)
        assert peer.gone() == (None, "")

    with serving(first, lambda peer: (peer.hello(), peer.act(), peer.gone())) as peer:
        agent = make(peer.url, infer_timeout_s=0.2)
        rounds(1, 0)(agent)
        with pytest.raises(CallTimeoutError, match="infer_timeout_s") as caught:
            infer(agent, 0)
        assert caught.value.outcome is Outcome.UNKNOWN
        peer.ended(1)
        with pytest.raises(ConnectionReplaced, match=r"\[timeout\]"):
            infer(agent, 0)
        infer(agent, 0)
        agent.close()


def test_a_feedback_that_is_not_taken_in_time_is_lost(make: Make) -> None:
    given_up = threading.Event()

    def script(peer: Peer) -> None:
        peer.socket.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.hello()
        peer.act()
        with peer.socket.recv_flow_control:  # got once the first bytes are in; then nothing more is read
            assert given_up.wait(20)

    image = np.zeros((1, 2000, 3000, 3), np.uint8)
    with serving(script) as peer:
        agent = make(peer.url, feedback_timeout_s=0.3)
        infer(agent, 0)
        with pytest.raises(ConnectionReplaced, match=r"\[timeout\]") as caught:
            agent.feedback({"images": {"c": image}}, [0], [0], [0.0], [False], [False])
        given_up.set()
        assert caught.value.outcome is Outcome.UNKNOWN


def test_connecting_is_tried_until_its_time_is_over(make: Make) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        agent = make(f"ws://127.0.0.1:{taken.getsockname()[1]}", connect_timeout_s=0.3)
        with pytest.raises(ConnectError, match="Start the policy server") as caught:
            infer(agent, 0)
    assert caught.value.attempts > 1


def test_it_waits_for_a_server_that_starts_later(make: Make) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    peer = PolicyPeer(lambda peer: (peer.hello(server="late"), peer.gone()))
    tried: list[int] = []

    def start_after_three() -> float:
        tried.append(1)
        if len(tried) == 3:
            peer.start(port)
        return 0.0

    agent = make(f"ws://127.0.0.1:{port}", backoff=Backoff(0.01, 0.01, draw=start_after_three))
    assert agent.connect(20).data["server"] == "late"
    agent.close()
    peer.stop()


def test_a_server_that_accepts_and_says_nothing_is_not_waited_for_for_ever(make: Make) -> None:
    with serving(*[lambda peer: peer.gone()] * 9) as peer:
        agent = make(peer.url, open_timeout_s=0.1, connect_timeout_s=0.25, backoff=Backoff(0.01, 0.01))
        with pytest.raises(ConnectError, match="no metadata came"):
            infer(agent, 0)
        peer.ended(1)


def test_a_refused_handshake_is_not_tried_again(make: Make) -> None:
    requests: list[str] = []

    def refuse(connection: Any, request: Any) -> Any:
        requests.append(request.path)
        return connection.respond(401, "no")

    with serve(lambda _: None, "127.0.0.1", 0, process_request=refuse) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        agent = make(f"ws://127.0.0.1:{server.socket.getsockname()[1]}")
        with pytest.raises(ConnectError) as caught:
            agent.connect()
        server.shutdown()
    assert (caught.value.status, requests) == (401, ["/"])


# ------------------------------------------------------------------ the caller's own faults


def test_calls_out_of_turn_send_nothing(make: Make) -> None:
    with serving(lambda peer: (peer.hello(), peer.exchange(), peer.exchange(), peer.gone())) as peer:
        agent = make(peer.url)
        infer(agent, 0, 1)
        with pytest.raises(PolicyUsageError, match="feedback"):
            infer(agent, 2)
        with pytest.raises(PolicyUsageError, match="hold no action"):
            feed(agent, 0, 2)
        feed(agent, 0)
        with pytest.raises(PolicyUsageError, match="infer"):
            feed(agent, 1)
        with pytest.raises(PolicyUsageError, match="not fed back"):
            infer(agent, 0, 1)
        infer(agent, 0)
        feed(agent, 0, 1)
        agent.close()
        peer.ended(1)


@pytest.mark.parametrize(
    ("observation", "envs", "steps", "field"),
    [
        ({"states": {"t": np.zeros((2, 1))}}, [0], [0], "observation.states.t"),
        ({"states": {"t": np.zeros((1, 1), int)}}, [0], [0], "observation.states.t"),
        ({"states": {"t": [[object()]]}}, [0], [0], "observation.states.t"),
        ({"images": {"c": np.zeros((1, 2, 2))}}, [0], [0], "observation.images.c"),
        ({"text": ["a", "b"]}, [0], [0], "observation.text"),
        ({"text": ["a\0"]}, [0], [0], "observation.text"),
        ({"sound": 1}, [0], [0], "observation"),
        ({}, [], [], "env_indices"),
        ({}, [0, 0], [0, 0], "env_indices"),
        ({}, [-1], [0], "env_indices"),
        ({}, [0.5], [0], "env_indices"),
        ({}, [0, 1], [0], "step_ids"),
        ({"states": {"t": np.zeros((1, 1), np.longdouble)}}, [0], [0], "data.states.t"),
    ],
)
def test_an_infer_that_does_not_fit_is_refused_with_its_path(
    make: Make, observation: dict[str, Any], envs: list[Any], steps: list[int], field: str
) -> None:
    with serving(lambda peer: (peer.hello(), peer.act(), peer.gone())) as peer:
        agent = make(peer.url)
        with pytest.raises(PolicyUsageError) as caught:
            agent.infer(observation, envs, steps)
        assert caught.value.field == field
        infer(agent, 0)
        agent.close()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"rewards": [1.0, 2.0]}, "rewards"),
        ({"rewards": ["a"]}, "rewards"),
        ({"terminated": [0]}, "terminated"),
        ({"truncated": [[False]]}, "truncated"),
        ({"info": {"r": np.zeros(2)}}, "info"),
        ({"info": {"r": {1, 2}}}, "data.info.r"),
        ({"observation": {"text": ["a", "b"]}}, "observation.text"),
    ],
)
def test_a_feedback_that_does_not_fit_is_refused_with_its_path(make: Make, changes: dict[str, Any], field: str) -> None:
    given = {"observation": seen(0), "env_indices": [0], "step_ids": [0], "rewards": [1.0]}
    given |= {"terminated": [False], "truncated": [False]}
    with serving(lambda peer: (peer.hello(), peer.exchange(), peer.gone())) as peer:
        agent = make(peer.url)
        infer(agent, 0)
        with pytest.raises(PolicyUsageError) as caught:
            agent.feedback(**{**given, **changes})
        assert caught.value.field == field
        feed(agent, 0)
        agent.close()
        peer.ended(1)


def test_after_close_nothing_is_sent(make: Make) -> None:
    with serving(lambda peer: (peer.hello(), peer.act(), peer.gone())) as peer:
        agent = make(peer.url)
        infer(agent, 0)
        agent.close()
        peer.ended(1)
        assert peer.log[-1][2] == (1000, "")
        for call in (lambda: infer(agent, 0), lambda: feed(agent, 0), agent.connect):
            with pytest.raises(SessionClosedError):
                call()
        agent.close()


def test_close_ends_a_call_under_way_and_a_second_call_is_refused(make: Make) -> None:
    asked = threading.Event()

    def script(peer: Peer) -> None:
        peer.hello()
        peer.expect(Infer)
        asked.set()
        peer.gone()

    ended: list[BaseException] = []

    def wait(agent: Any) -> None:
        try:
            infer(agent, 0)
        except BaseException as error:
            ended.append(error)

    with serving(script) as peer:
        agent = make(peer.url)
        waiting = threading.Thread(target=wait, args=(agent,))
        waiting.start()
        assert asked.wait(20)
        with pytest.raises(PolicyUsageError, match="under way"):
            infer(agent, 1)
        agent.close()
        waiting.join(20)
    assert [type(error) for error in ended] == [SessionClosedError]


def test_close_ends_the_wait_for_a_server(make: Make) -> None:
    tried = threading.Event()

    def draw() -> float:
        tried.set()
        return 0.0

    ended: list[BaseException] = []

    def wait(agent: Any) -> None:
        try:
            infer(agent, 0)
        except BaseException as error:
            ended.append(error)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"ws://127.0.0.1:{taken.getsockname()[1]}"
        agent = make(url, connect_timeout_s=None, backoff=Backoff(0.01, 0.01, draw=draw))
        waiting = threading.Thread(target=wait, args=(agent,))
        waiting.start()
        assert tried.wait(20)
        agent.close()
        waiting.join(20)
    assert [type(error) for error in ended] == [SessionClosedError]


def test_a_forked_child_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lambda peer: (peer.hello(), peer.act(), peer.gone())) as peer:
        agent = make(peer.url)
        infer(agent, 0)
        with monkeypatch.context() as patch:
            patch.setattr(transport.os, "getpid", lambda: -1)
            with pytest.raises(ForkedClientError):
                feed(agent, 0)
        agent.close()


# ------------------------------------------------------------------ the loop of the asynchronous one


def cancelled_script(peer: Peer) -> None:
    peer.hello()
    peer.exchange()
    peer.expect(Infer)
    assert peer.gone() == (None, "")


async def test_a_cancelled_infer_takes_its_connection_with_it() -> None:
    with serving(cancelled_script, lambda peer: (peer.hello(), peer.act(), peer.gone())) as peer:
        async with AsyncWebSocketEnvClientAgent(peer.url, backoff=QUICK) as agent:
            await agent.infer(seen(0), [0], [0])
            await agent.feedback(seen(0), [0], [0], [1.0], [False], [False])
            call = asyncio.create_task(agent.infer(seen(0), [0], [0]))
            while len(peer.told("Infer")) < 2:
                await asyncio.sleep(0.005)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await asyncio.to_thread(peer.ended, 1)
            with pytest.raises(ConnectionReplaced, match=r"\[cancelled\]"):
                await agent.infer(seen(0), [0], [0])
            await agent.infer(seen(0), [0], [0])


def test_a_loop_that_is_gone_has_taken_the_connection_along() -> None:
    with serving(*[lambda peer: (peer.hello(), peer.act(), peer.gone())] * 2) as peer:
        agent = AsyncWebSocketEnvClientAgent(peer.url, backoff=QUICK)

        async def first() -> None:
            await agent.infer(seen(0), [0], [0])

        async def second() -> None:
            with pytest.raises(ConnectionReplaced):
                await agent.feedback(seen(0), [0], [0], [1.0], [False], [False])
            await agent.infer(seen(0), [0], [0])
            await agent.close()

        asyncio.run(first())
        asyncio.run(second())


async def test_another_loop_that_runs_is_refused_and_nothing_is_sent() -> None:
    other = asyncio.new_event_loop()
    thread = threading.Thread(target=other.run_forever)
    thread.start()
    with serving(lambda peer: (peer.hello(), peer.exchange(), peer.act(), peer.gone())) as peer:
        async with AsyncWebSocketEnvClientAgent(peer.url, backoff=QUICK) as agent:
            await agent.infer(seen(0), [0], [0])
            elsewhere = agent.feedback(seen(0), [0], [0], [1.0], [False], [False])
            with pytest.raises(ForeignLoopError, match="Nothing was sent"):
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(elsewhere, other))
            await agent.feedback(seen(0), [0], [0], [2.0], [False], [False])
            await agent.infer(seen(0), [0], [0])
        await asyncio.to_thread(peer.ended, 1)
    other.call_soon_threadsafe(other.stop)
    await asyncio.to_thread(thread.join)
    other.close()
    assert [message.rewards.tolist() for _, name, message in peer.log if name == "Feedback"] == [[2.0]]


class Interrupted(IoThreadTransport):
    """A transport under which Ctrl-C is pressed, once."""

    pressed = False

    def receive(self, timeout_s: float | None) -> Any:
        if not self.pressed:
            return super().receive(timeout_s)
        self.pressed = False
        raise KeyboardInterrupt


class InterruptedAgent(WebSocketEnvClientAgent):
    def _make_transport(self, connector: Any) -> Interrupted:
        self.interrupted = Interrupted(connector)
        return self.interrupted


def test_an_interrupted_infer_takes_its_connection_with_it() -> None:
    with serving(cancelled_script, lambda peer: (peer.hello(), peer.act(), peer.gone())) as peer:
        agent = InterruptedAgent(peer.url, backoff=QUICK)
        rounds(1, 0)(agent)
        agent.interrupted.pressed = True
        with pytest.raises(KeyboardInterrupt):
            infer(agent, 0)
        peer.ended(1)
        with pytest.raises(ConnectionReplaced, match=r"\[cancelled\]"):
            infer(agent, 0)
        infer(agent, 0)
        agent.close()


def test_an_agent_that_is_dropped_lets_go_of_its_connection() -> None:
    with serving(lambda peer: (peer.hello(), peer.act(), peer.gone())) as peer:
        agent = WebSocketEnvClientAgent(peer.url)
        infer(agent, 0)
        del agent
        peer.ended(1)
