"""``openenv.v1`` on a real server, frame by frame, with a client that has no rules of its own."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from websockets.frames import Frame, Opcode
from websockets.sync.client import connect

from openenv.core.env_server import ws_v1
from openenv.core.env_server.http_server import HTTPEnvServer, create_app
from openenv.core.env_server.types import ConcurrencyConfig
from openenv.core.env_server.v1_options import V1Options
from openenv.core.session.features import Feature
from support.envs import CountAction, CountEnv, CountObservation, CountState
from support.live import LiveServer, serve
from support.v1 import Raw

Start = Callable[..., LiveServer]


@pytest.fixture
def start(env: type[CountEnv]) -> Iterator[Start]:
    with ExitStack() as stack:

        def start(
            max_sessions: int = 8, factory: Any = None, timeout_s: float | None = None, **options: Any
        ) -> LiveServer:
            app = create_app(
                factory or env,
                CountAction,
                CountObservation,
                concurrency_config=ConcurrencyConfig(max_concurrent_envs=max_sessions, session_timeout=timeout_s),
                state_cls=CountState,
                drain_grace_s=5.0,
                v1=V1Options(**options),
            )
            live = stack.enter_context(serve(app))
            live.openenv = app.state.openenv_server  # type: ignore[attr-defined]
            return live

        yield start
        stack.callback(env.release.set)


@pytest.fixture
def live(start: Start) -> LiveServer:
    return start()


@pytest.fixture
def raw(live: LiveServer) -> Iterator[Raw]:
    with Raw(live.ws).open() as made:
        yield made


def server(live: LiveServer) -> HTTPEnvServer:
    made: HTTPEnvServer = live.openenv  # type: ignore[attr-defined]
    return made


def until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.005)


def leased(live: LiveServer) -> int:
    return sum(session.leased_at is not None for session in server(live).sessions._sessions.values())


def cut(live: LiveServer, raw: Raw) -> None:
    """Cut a socket and wait until the server knows."""
    before = leased(live)
    raw.cut()
    until(lambda: leased(live) == before + 1)


def marks(env: type[CountEnv]) -> list[str]:
    return [event["event"] for event in env.log.events]


# ---------------------------------------------------------------- opening (E1 to E6)


def test_welcome_says_what_there_is_and_builds_nothing(start: Start, env: type[CountEnv]) -> None:
    live = start(grace_s=7.5, max_message_bytes=123)
    with Raw(live.ws) as one, Raw(live.ws) as two:
        data = one.welcome["data"]
        assert data == {
            "protocol": 1,
            "server": data["server"],
            "features": ["cancel", "msgpack", "queue", "resume", "seq"],
            "limits": {"max_message_bytes": 123, "max_depth": 200},
            "epoch": two.epoch,
            "grace_s": 7.5,
        }
        assert data["server"].startswith("openenv/")
        assert server(live).active_sessions == 0
        assert marks(env) == []


def test_each_server_has_an_epoch_of_its_own(start: Start) -> None:
    with Raw(start().ws) as one, Raw(start().ws) as two:
        assert one.epoch != two.epoch


def test_a_client_that_offers_nothing_is_spoken_to_as_ever(live: LiveServer) -> None:
    with connect(live.ws) as ws:
        assert ws.subprotocol is None
        ws.send('{"type":"reset"}')
        reply = json.loads(ws.recv(20))
        assert list(reply) == ["type", "data"]
        assert list(reply["data"]) == ["observation", "reward", "done"]


def test_a_server_without_features_does_not_echo(start: Start) -> None:
    live = start(features=frozenset())
    with connect(live.ws, subprotocols=["openenv.v1"]) as ws:  # type: ignore[list-item]
        assert ws.subprotocol is None


def test_features_that_are_switched_off_are_not_listed(start: Start) -> None:
    with Raw(start(features=frozenset({Feature.SEQ})).ws) as raw:
        assert raw.welcome["data"]["features"] == ["seq"]


def test_opened_names_the_session_and_a_secret(live: LiveServer, raw: Raw) -> None:
    assert server(live).get_session_info(raw.session) is not None
    assert len(raw.token) >= 43
    assert raw.token not in raw.session


def test_unknown_features_and_members_are_ignored(live: LiveServer) -> None:
    with Raw(live.ws) as raw:
        raw.open("seq", "teleport", novelty={"a": 1})
        assert raw.call("reset")["type"] == "observation"


@pytest.mark.parametrize(
    ("first", "code"),
    [
        ("not json", "INVALID_JSON"),
        (b"\x00", "INVALID_JSON"),
        ("[]", "INVALID_JSON"),
        ('{"type":"reset"}', "UNKNOWN_TYPE"),
        ('{"type":"cancel","seq":1}', "UNKNOWN_TYPE"),
        ('{"type":"open","data":[1]}', "VALIDATION_ERROR"),
        ('{"type":"open","data":{"max_message_bytes":"many"}}', "VALIDATION_ERROR"),
        ('{"type":"resume","data":{}}', "VALIDATION_ERROR"),
        ('{"type":"release","data":{"session":"x"}}', "VALIDATION_ERROR"),
    ],
)
def test_a_first_frame_that_is_none_ends_the_socket(live: LiveServer, first: str | bytes, code: str) -> None:
    with Raw(live.ws) as raw:
        raw.send(first)
        error = raw.recv()
        assert (error["type"], error["data"]["code"], error["data"]["applied"]) == ("error", code, False)
        assert raw.closed()[0] == 4003
    assert server(live).active_sessions == 0


def test_a_socket_that_says_nothing_is_closed_but_its_session_not_ended(start: Start) -> None:
    live = start(first_frame_s=0.05)
    with Raw(live.ws) as raw:
        assert raw.closed()[0] == 1008


def test_a_full_server_says_when_to_come_again(start: Start) -> None:
    live = start(max_sessions=1)
    with Raw(live.ws).open(), Raw(live.ws) as late:
        late.send({"type": "open", "data": {"uses": ["seq"]}})
        error = late.recv()["data"]
        assert (error["code"], error["active_sessions"], error["max_sessions"]) == ("CAPACITY_REACHED", 1, 1)
        assert error["retry_after_s"] > 0
        assert late.closed() == (1013, "capacity")


def test_a_session_that_was_never_called_is_not_kept(live: LiveServer, env: type[CountEnv], raw: Raw) -> None:
    raw.cut()
    env.log.wait_for("close")
    other, answer = raw.resumed(live.ws)
    assert answer == {"type": "lost", "data": {"reason": "never_called"}}
    assert other.closed()[0] == 1000


def test_an_env_that_cannot_be_built_is_told_at_once(start: Start) -> None:
    def factory() -> Any:
        raise RuntimeError("no such file")

    live = start(factory=factory)
    with Raw(live.ws) as raw:
        raw.send({"type": "open", "data": {}})
        assert raw.recv()["data"]["code"] == "FACTORY_ERROR"
        assert raw.closed()[0] == 1011
    until(lambda: server(live).active_sessions == 0)


@pytest.fixture
def slow_env(env: type[CountEnv], monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[type[CountEnv], threading.Event]]:
    monkeypatch.setattr(ws_v1, "OPENED_AFTER_S", 0.02)
    go = threading.Event()

    class Slow(env):  # type: ignore[valid-type, misc]
        def __init__(self) -> None:
            go.wait(20)
            super().__init__()

    yield Slow, go
    go.set()


def test_the_first_call_waits_for_a_slow_constructor(
    start: Start, slow_env: tuple[type[CountEnv], threading.Event]
) -> None:
    live = start(factory=slow_env[0])
    with Raw(live.ws).open() as raw:
        raw.ask("reset")
        slow_env[1].set()
        assert raw.recv()["seq"] == 1


def test_a_slow_constructor_that_fails_answers_the_first_call(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ws_v1, "OPENED_AFTER_S", 0.02)
    go = threading.Event()

    def factory() -> Any:
        go.wait(20)
        raise RuntimeError("no such file")

    with Raw(start(factory=factory).ws).open() as raw:
        raw.ask("reset")
        time.sleep(0.05)  # so that the request is read before the constructor fails
        go.set()
        error = raw.recv()
        assert (error["seq"], error["data"]["code"], error["data"]["applied"]) == (1, "FACTORY_ERROR", False)


# ---------------------------------------------------------------- calls (E7 to E12, E30)


def test_replies_carry_the_number_of_their_request(raw: Raw) -> None:
    assert raw.call("reset")["seq"] == 1
    assert raw.call("state") == {"type": "state", "seq": 2, "data": raw.call("state")["data"]}
    assert raw.call("mcp", jsonrpc="2.0", id=1, method="tools/list")["seq"] == 4


def test_a_repeated_request_gets_the_very_same_reply_and_is_not_run(raw: Raw, env: type[CountEnv]) -> None:
    first = raw.call("step", op="inc")
    assert raw.call("step", seq=1, op="inc") == first
    assert len(env.log.of("step")) == 1


def test_a_repeated_request_that_runs_is_awaited(raw: Raw, env: type[CountEnv]) -> None:
    raw.ask("step", op="sleep", arg=20)
    env.log.wait_for("step")
    raw.ask("step", seq=1, op="sleep", arg=20)
    assert raw.call("state", seq=2)["data"]["code"] == "BUSY"  # so the repetition was read, and not answered
    env.release.set()
    assert raw.recv()["seq"] == 1
    assert raw.call("state", seq=2)["data"]["step_count"] == 1


@pytest.mark.parametrize(("seq", "code"), [(3, "SEQ_MISMATCH"), (2, "SEQ_OUT_OF_ORDER"), (5, "SEQ_OUT_OF_ORDER")])
def test_wrong_numbers_are_refused_and_run_nothing(raw: Raw, env: type[CountEnv], seq: int, code: str) -> None:
    for _ in range(3):
        raw.step()
    error = raw.call("step", seq=seq, op="echo")
    assert (error["type"], error["seq"]) == ("error", seq)
    assert (error["data"]["code"], error["data"]["applied"]) == (code, False)
    assert raw.call("step", seq=4, op="inc")["data"]["observation"]["count"] == 4
    assert len(env.log.of("step")) == 4


@pytest.mark.parametrize(
    "seq", ["", ', "seq":0', ', "seq":-1', ', "seq":true', ', "seq":"1"', ', "seq":1.0', ', "seq":null']
)
def test_a_call_without_a_number_is_refused(raw: Raw, env: type[CountEnv], seq: str) -> None:
    raw.send(f'{{"type":"step","data":{{"op":"inc"}}{seq}}}')
    error = raw.recv()
    assert "seq" not in error
    assert (error["data"]["code"], error["data"]["applied"]) == ("VALIDATION_ERROR", False)
    assert env.log.of("step") == []
    assert raw.step()["seq"] == 1


@pytest.mark.parametrize(
    ("op", "code", "applied"),
    [
        ({"op": "raise"}, "EXECUTION_ERROR", None),
        ({"op": "exit"}, "EXECUTION_ERROR", None),
        ({"op": "object"}, "EXECUTION_ERROR", True),
        ({"op": "invalid"}, "VALIDATION_ERROR", False),
        ({"bogus": 1}, "VALIDATION_ERROR", False),
    ],
)
def test_every_error_that_answers_a_call_says_whether_it_was_applied(
    raw: Raw, op: dict[str, Any], code: str, applied: bool | None
) -> None:
    error = raw.call("step", **op)
    assert (error["seq"], error["data"]["code"], error["data"]["applied"]) == (1, code, applied)
    assert raw.call("step", seq=1, **op) == error  # an error is a reply like any other
    assert raw.step()["seq"] == 2


def test_a_frame_of_unknown_type_uses_up_its_number(raw: Raw) -> None:
    error = raw.call("dance")
    assert (error["seq"], error["data"]["code"], error["data"]["applied"]) == (1, "UNKNOWN_TYPE", False)
    assert raw.step()["seq"] == 2


def test_a_frame_that_cannot_be_read_costs_one_error(raw: Raw) -> None:
    raw.send("not json")
    error = raw.recv()
    assert (error["data"]["code"], error["data"]["applied"], "seq" in error) == ("INVALID_JSON", False, False)
    assert raw.step()["seq"] == 1


def test_a_second_call_while_one_runs_is_busy(raw: Raw, env: type[CountEnv]) -> None:
    raw.ask("step", op="sleep", arg=20)
    env.log.wait_for("step")
    for _ in range(50):
        raw.ask("step", op="inc")
    for number in range(2, 52):
        error = raw.recv()
        assert (error["seq"], error["data"]["code"], error["data"]["applied"]) == (number, "BUSY", False)
    env.release.set()
    assert raw.recv()["seq"] == 1
    assert len(env.log.of("step")) == 1


def test_large_requests_are_read_beside_the_loop_and_keep_their_order(raw: Raw) -> None:
    text = "x" * 300_000
    assert raw.step("echo", arg=text)["data"]["observation"]["echo"] == text
    assert raw.step()["seq"] == 2


@pytest.mark.parametrize(("mine", "bound"), [(2000, None), (None, 2000), (5000, 2000), (2000, 5000)])
def test_a_reply_over_the_limit_is_replaced(start: Start, mine: int | None, bound: int | None) -> None:
    live = start(**({"max_reply_bytes": bound} if bound else {}))
    with Raw(live.ws).open(**({"max_message_bytes": mine} if mine else {})) as raw:
        error = raw.step("big", arg=3000)
        assert error["seq"] == 1
        assert error["data"]["code"] == "REPLY_TOO_LARGE"
        assert (error["data"]["limit"], error["data"]["applied"]) == (2000, True)
        assert 3000 < error["data"]["size"] < 4000
        assert raw.step()["data"]["observation"]["count"] == 2


def test_without_resume_no_bound_of_the_cache_applies(start: Start) -> None:
    with Raw(start(max_reply_bytes=2000).ws).open("seq") as raw:
        assert raw.step("big", arg=3000)["type"] == "observation"


def test_a_client_without_numbers_is_served(live: LiveServer, env: type[CountEnv]) -> None:
    with Raw(live.ws).open("resume", "cancel") as raw:  # both need seq, so nothing is agreed
        raw.send('{"type":"reset"}')
        assert "seq" not in raw.recv()
        raw.send('{"type":"cancel","seq":1}')
        assert raw.recv()["data"]["code"] == "UNKNOWN_TYPE"
        raw.send('{"type":"step","data":{"op":"raise"}}')
        error = raw.recv()
        assert (error["data"]["code"], error["data"]["applied"]) == ("EXECUTION_ERROR", None)
    env.log.wait_for("close")


class EndingObservation(CountObservation):
    truncated: bool = False
    terminated: bool | None = None


class EndingEnv(CountEnv):
    def _observe(self, action: CountAction) -> CountObservation:
        arg = dict(action.arg or {})
        return EndingObservation(env_no=self.env_no, count=self.count, **arg)


@pytest.mark.parametrize(
    ("fields", "terminated", "truncated"),
    [
        ({}, False, False),
        ({"done": True}, True, False),
        ({"done": True, "truncated": True}, False, True),
        ({"done": True, "truncated": True, "terminated": True}, True, True),
        ({"done": True, "terminated": False}, False, False),
    ],
)
def test_terminated_and_truncated_stand_beside_done(
    start: Start, fields: dict[str, Any], terminated: bool, truncated: bool
) -> None:
    live = start(factory=EndingEnv)
    with Raw(live.ws).open() as raw:
        data = raw.step(arg=fields)["data"]
        assert (data["done"], data["terminated"], data["truncated"]) == (
            fields.get("done", False),
            terminated,
            truncated,
        )
    with connect(live.ws) as plain:
        plain.send(json.dumps({"type": "step", "data": {"op": "inc", "arg": fields}}))
        assert list(json.loads(plain.recv(20))["data"]) == ["observation", "reward", "done"]


def test_an_observation_that_knows_neither_is_terminated_when_done(raw: Raw) -> None:
    data = raw.step("done")["data"]
    assert (data["done"], data["terminated"], data["truncated"]) == (True, True, False)
    assert "truncated" not in data["observation"]


# ---------------------------------------------------------------- losing and resuming (E17 to E22)


def test_a_session_survives_its_socket(live: LiveServer, raw: Raw, env: type[CountEnv]) -> None:
    raw.step()
    cut(live, raw)
    other, answer = raw.resumed(live.ws)
    assert answer["data"] == {"token": other.token, "last_seq": 1, "running": False}
    assert other.token != raw.token
    with other:
        assert other.step()["data"]["observation"]["count"] == 2
    assert len(env.log.of("init")) == 1


@pytest.mark.parametrize("code", [1000, 1001, 3000, 4000, 4003])
def test_only_a_close_frame_ends_a_session_not_a_close_code(live: LiveServer, raw: Raw, code: int) -> None:
    raw.step()
    raw.ws.close(code, "closed")
    until(lambda: leased(live) == 1)
    other, answer = raw.resumed(live.ws)
    with other:
        assert answer["type"] == "resumed"


def test_close_ends_the_session(live: LiveServer, raw: Raw, env: type[CountEnv]) -> None:
    raw.step()
    raw.send({"type": "close"})
    assert raw.closed() == (1000, "closed")
    env.log.wait_for("close")
    _, answer = raw.resumed(live.ws)
    assert answer["data"]["reason"] == "closed"


def test_close_does_not_wait_for_the_call_that_runs(live: LiveServer, raw: Raw, env: type[CountEnv]) -> None:
    raw.ask("step", op="sleep", arg=20)
    env.log.wait_for("step")
    raw.send({"type": "close"})
    assert raw.closed() == (1000, "closed")
    assert env.log.of("close") == []
    env.release.set()
    env.log.wait_for("close")
    assert len(env.log.of("close")) == 1


@pytest.mark.parametrize("uses", [("seq",), ("seq", "cancel"), ("resume",)])
def test_a_session_that_does_not_use_resume_ends_with_its_socket(
    live: LiveServer, env: type[CountEnv], uses: tuple[str, ...]
) -> None:
    with Raw(live.ws).open(*uses) as raw:
        raw.step()
    env.log.wait_for("close")
    assert leased(live) == 0
    assert raw.resumed(live.ws)[1]["data"]["reason"] == "closed"


def test_a_call_that_runs_when_the_socket_goes_is_answered_on_the_next_one(
    live: LiveServer, raw: Raw, env: type[CountEnv]
) -> None:
    raw.ask("step", op="sleep", arg=20)
    env.log.wait_for("step")
    cut(live, raw)
    other, answer = raw.resumed(live.ws, last_reply=0)
    assert answer["data"]["last_seq"] == 1
    assert answer["data"]["running"] is True
    env.release.set()
    reply = other.recv()
    assert (reply["seq"], reply["data"]["observation"]["count"]) == (1, 1)
    with other:
        assert other.step()["seq"] == 2


def test_a_reply_that_was_ready_meanwhile_is_pushed_once(live: LiveServer, raw: Raw, env: type[CountEnv]) -> None:
    raw.ask("step", op="sleep", arg=20)
    env.log.wait_for("step")
    cut(live, raw)
    env.release.set()
    env.log.wait_for("slept")
    until(lambda: server(live).get_session_info(raw.session).step_count == 1)  # type: ignore[union-attr]
    other, answer = raw.resumed(live.ws, last_reply=0)
    assert answer["data"]["last_seq"] == 1
    assert other.recv()["seq"] == 1
    with other:
        assert other.step()["seq"] == 2  # and nothing between
    assert [event["op"] for event in env.log.of("step")] == ["sleep", "inc"]


def test_a_reply_that_was_seen_is_not_pushed(live: LiveServer, raw: Raw) -> None:
    raw.step()
    raw.cut()
    other, _ = raw.resumed(live.ws, last_reply=1)
    with other:
        assert other.step()["seq"] == 2


def test_an_oversized_reply_is_told_at_the_resume(live: LiveServer, env: type[CountEnv]) -> None:
    with Raw(live.ws).open(max_message_bytes=2000) as raw:
        raw.ask("step", op="big", arg=3000)
        env.log.wait_for("step")
        raw.cut()
        other, answer = raw.resumed(live.ws, last_reply=0)
        assert answer["data"]["last_seq"] == 1
        with other:
            error = other.recv()
            assert (error["seq"], error["data"]["code"]) == (1, "REPLY_TOO_LARGE")
            assert other.step()["data"]["observation"]["count"] == 2


def test_the_newest_holder_wins_while_the_older_socket_is_still_open(
    live: LiveServer, raw: Raw, env: type[CountEnv]
) -> None:
    raw.ask("step", op="sleep", arg=20)
    env.log.wait_for("step")
    other, answer = raw.resumed(live.ws, last_reply=0)
    assert answer["data"]["running"] is True
    assert raw.closed() == (4000, "replaced")
    env.release.set()
    with other:
        assert other.recv()["seq"] == 1
        assert other.step()["data"]["observation"]["count"] == 2
    until(lambda: leased(live) == 1)  # the older socket's end was nobody's loss; the newer one's is


def test_frames_of_the_older_socket_are_ignored(live: LiveServer, raw: Raw, env: type[CountEnv]) -> None:
    raw.step()
    other, _ = raw.resumed(live.ws)
    with other:
        try:
            for _ in range(20):
                raw.send({"type": "step", "seq": 2, "data": {"op": "echo"}})
            raw.send({"type": "close"})
        except Exception:
            pass  # closed already, which is as good
        assert other.step()["data"]["observation"]["count"] == 2
    assert [event["op"] for event in env.log.of("step")] == ["inc", "inc"]


def test_the_old_token_is_good_until_the_new_one_is_known_to_have_come(live: LiveServer, raw: Raw) -> None:
    raw.step()
    unheard, answer = raw.resumed(live.ws)
    unheard.cut()
    assert answer["type"] == "resumed"
    other, answer = raw.resumed(live.ws, attempt=2)
    assert answer["type"] == "resumed"
    with other:
        other.step()
        _, answer = raw.resumed(live.ws, attempt=3)
        assert answer == {"type": "lost", "data": {"reason": "unknown"}}
        assert other.step()["data"]["observation"]["count"] == 3  # which was none of its business


def test_an_overtaken_resume_changes_nothing(live: LiveServer, raw: Raw) -> None:
    raw.step()
    raw.cut()
    other, _ = raw.resumed(live.ws, attempt=2)
    ghost = Raw(live.ws)
    ghost.send(raw.resume_frame(attempt=1))
    code, _ = ghost.closed()
    assert code not in (1000, 1013, 4000, 4001, 4002, 4003)
    with other:
        assert other.step()["data"]["observation"]["count"] == 2


def test_two_holders_of_one_token_do_not_take_turns(live: LiveServer, raw: Raw) -> None:
    raw.step()
    raw.cut()
    first, _ = raw.resumed(live.ws, attempt=1)
    second, answer = raw.resumed(live.ws, attempt=1)
    assert answer["type"] == "resumed"
    assert first.closed() == (4000, "replaced")
    _, answer = first.resumed(live.ws)
    assert answer["data"]["reason"] == "unknown"
    with second:
        assert second.step()["data"]["observation"]["count"] == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"token": "wrong"}, "unknown"),
        ({"session": "wrong"}, "unknown"),
        ({"epoch": "before"}, "epoch"),
    ],
)
def test_a_wrong_resume_is_lost_and_the_session_unharmed(
    live: LiveServer, raw: Raw, change: dict[str, str], reason: str
) -> None:
    raw.step()
    other, answer = raw.resumed(live.ws, **change)
    assert answer == {"type": "lost", "data": {"reason": reason}}
    assert other.closed()[0] == 1000
    assert raw.step()["data"]["observation"]["count"] == 2


def test_a_lease_expires(start: Start, env: type[CountEnv]) -> None:
    live = start(grace_s=0.05)
    with Raw(live.ws).open() as raw:
        raw.step()
    env.log.wait_for("close")
    _, answer = raw.resumed(live.ws)
    assert answer["data"]["reason"] == "expired"
    assert len(env.log.of("close")) == 1


def test_a_lease_that_expires_in_a_call_closes_after_it(start: Start, env: type[CountEnv]) -> None:
    live = start(grace_s=0.05)
    with Raw(live.ws).open() as raw:
        raw.ask("step", op="sleep", arg=20)
        env.log.wait_for("step")
    until(lambda: server(live).get_session_info(raw.session) is None)
    assert env.log.of("close") == []
    env.release.set()
    env.log.wait_for("close")
    assert marks(env) == ["init", "step", "slept", "close"]


def test_a_resumed_session_has_no_lease_to_expire(start: Start, env: type[CountEnv]) -> None:
    live = start(grace_s=3.0)
    with Raw(live.ws).open() as raw:
        raw.step()
        cut(live, raw)
        other, _ = raw.resumed(live.ws)
        with other:
            time.sleep(3.5)
            assert other.step()["data"]["observation"]["count"] == 2


def test_the_idle_time_does_not_run_while_leased(start: Start, env: type[CountEnv]) -> None:
    live = start(timeout_s=3.0)
    with Raw(live.ws).open() as raw:
        raw.step()
        cut(live, raw)
        time.sleep(3.5)
        other, answer = raw.resumed(live.ws)
        assert answer["type"] == "resumed"
        assert other.closed() == (4001, "idle")
    _, answer = other.resumed(live.ws)
    assert answer["data"]["reason"] == "idle"


def test_cut_at_any_moment_and_applied_once(live: LiveServer, env: type[CountEnv]) -> None:
    """A lawful client that loses its socket at 40 moments: what the server says it has, it has; once."""
    raw = Raw(live.ws).open()
    for seq in range(1, 41):
        raw.ask("step", op="inc", metadata={"mark": str(seq)})
        time.sleep(0.0005 * (seq % 5))
        raw.cut()
        raw, answer = raw.resumed(live.ws, last_reply=seq - 1)
        assert answer["data"]["last_seq"] in (seq - 1, seq)
        if answer["data"]["last_seq"] == seq - 1:
            raw.ask("step", seq=seq, op="inc", metadata={"mark": str(seq)})
        reply = raw.recv()
        assert (reply["seq"], reply["data"]["observation"]["count"]) == (seq, seq)
    raw.cut()
    assert [event["mark"] for event in env.log.of("step")] == [str(seq) for seq in range(1, 41)]


# ---------------------------------------------------------------- slots (E19, E25)


def test_a_lease_makes_room_for_a_newcomer(start: Start, env: type[CountEnv]) -> None:
    live = start(max_sessions=1, evict_after_s=0.0)
    with Raw(live.ws).open() as raw:
        raw.step()
        cut(live, raw)
        with Raw(live.ws).open() as newcomer:
            assert newcomer.step()["data"]["observation"]["count"] == 1
            _, answer = raw.resumed(live.ws)
            assert answer["data"]["reason"] == "evicted"
    assert marks(env)[:3] == ["init", "step", "close"]


def test_a_plain_newcomer_gets_it_as_well(start: Start) -> None:
    live = start(max_sessions=1, evict_after_s=0.0)
    with Raw(live.ws).open() as raw:
        raw.step()
        cut(live, raw)
        with connect(live.ws) as plain:
            plain.send('{"type":"reset"}')
            assert json.loads(plain.recv(20))["type"] == "observation"


def test_a_young_lease_is_safe_and_the_newcomer_told_when_to_come(start: Start) -> None:
    live = start(max_sessions=1, evict_after_s=30.0)
    with Raw(live.ws).open() as raw:
        raw.step()
        cut(live, raw)
        with Raw(live.ws) as newcomer:
            newcomer.send({"type": "open"})
            assert 20 < newcomer.recv()["data"]["retry_after_s"] <= 30
        other, answer = raw.resumed(live.ws)
        with other:
            assert answer["type"] == "resumed"


def test_the_oldest_lease_goes_first_and_one_with_a_call_last(start: Start, env: type[CountEnv]) -> None:
    live = start(max_sessions=3, evict_after_s=0.0)
    with Raw(live.ws).open() as busy, Raw(live.ws).open() as old, Raw(live.ws).open() as young:
        busy.ask("step", op="sleep", arg=20)
        env.log.wait_for("step")
        old.step()
        young.step()
        for raw in (busy, old, young):
            cut(live, raw)
        with Raw(live.ws).open():
            assert old.resumed(live.ws)[1]["data"]["reason"] == "evicted"
            resumed, answer = young.resumed(live.ws)
            with resumed:
                assert answer["type"] == "resumed"
                assert busy.resumed(live.ws, last_reply=0)[1]["data"]["running"] is True


def test_release_frees_the_slot_for_the_same_socket(start: Start, env: type[CountEnv]) -> None:
    live = start(max_sessions=1, evict_after_s=600.0)
    with Raw(live.ws).open() as raw:
        raw.step()
        cut(live, raw)
        with Raw(live.ws) as other:
            other.send({"type": "release", "data": {"session": raw.session, "token": raw.token}})
            other.open()
            assert other.step()["data"]["observation"]["count"] == 1
    assert marks(env)[:4] == ["init", "step", "close", "init"]


def test_a_session_that_is_being_closed_does_not_lock_its_client_out(start: Start, env: type[CountEnv]) -> None:
    go = threading.Event()

    class Slow(env):  # type: ignore[valid-type, misc]
        def close(self) -> None:
            self.log.add("closing", self.env_no)
            go.wait(20)
            super().close()

    live = start(max_sessions=1, factory=Slow)
    with Raw(live.ws).open() as raw, Raw(live.ws) as other:
        raw.step()
        raw.send({"type": "close"})
        env.log.wait_for("closing")
        other.send({"type": "release", "data": {"session": raw.session, "token": raw.token}})
        threading.Timer(0.05, go.set).start()
        assert other.open().step()["data"]["observation"]["count"] == 1
    go.set()


@pytest.mark.parametrize("change", [{"token": "wrong"}, {"session": "wrong"}])
def test_release_needs_the_token(live: LiveServer, raw: Raw, change: dict[str, str]) -> None:
    raw.step()
    with Raw(live.ws) as other:
        other.send({"type": "release", "data": {"session": raw.session, "token": raw.token, **change}})
        other.send({"type": "close"})
        assert other.closed() == (1000, "closed")
    assert raw.step()["data"]["observation"]["count"] == 2


def test_release_of_an_attached_session_closes_its_socket(live: LiveServer, raw: Raw) -> None:
    raw.step()
    with Raw(live.ws) as other:
        other.send({"type": "release", "data": {"session": raw.session, "token": raw.token}})
        assert raw.closed() == (1000, "closed")


def test_a_session_id_alone_opens_no_door(live: LiveServer, raw: Raw) -> None:
    import httpx

    answer = httpx.get(f"{live}/state", headers={"OpenEnv-Session": raw.session}, trust_env=False)
    assert answer.status_code == 404


# ---------------------------------------------------------------- giving up (E13)


def test_cancel_before_its_request(raw: Raw, env: type[CountEnv]) -> None:
    raw.step()
    raw.send({"type": "cancel", "seq": 2})
    told = raw.recv()
    assert (told["seq"], told["data"]["code"], told["data"]["applied"]) == (2, "CANCELLED", False)
    assert raw.call("step", seq=2, op="inc") == told
    assert raw.step()["data"]["observation"]["count"] == 2
    assert len(env.log.of("step")) == 2


def test_cancel_without_a_hook_says_that_the_call_still_runs(raw: Raw, env: type[CountEnv]) -> None:
    raw.ask("step", op="sleep", arg=20)
    env.log.wait_for("step")
    for _ in range(2):
        raw.send({"type": "cancel", "seq": 1})
        assert raw.recv() == {"type": "running", "seq": 1, "data": {}}
    env.release.set()
    assert raw.recv()["type"] == "observation"


def test_cancel_after_the_reply_is_answered_by_nothing(raw: Raw) -> None:
    raw.step()
    raw.send({"type": "cancel", "seq": 1})
    assert raw.step()["seq"] == 2


@pytest.mark.parametrize("seq", [None, "1", True, -1])
def test_a_malformed_cancel_costs_one_error(raw: Raw, seq: Any) -> None:
    raw.send({"type": "cancel", "seq": seq})
    assert raw.recv()["data"]["code"] == "VALIDATION_ERROR"
    assert raw.step()["seq"] == 1


class HookedEnv(CountEnv):
    """A sleeping step of it ends early: ``arg`` says how."""

    def cancel(self) -> None:
        self.log.add("cancel", self.env_no)
        self.release.set()

    def step(self, action: CountAction, timeout_s: float | None = None, **kwargs: Any) -> CountObservation:
        if action.op != "long":
            return super().step(action, timeout_s)
        self.log.add("step", self.env_no, op="long")
        assert self.release.wait(20)
        if action.arg == "raise":
            raise RuntimeError("cut short")
        return CountObservation(env_no=self.env_no, count=-1)


def hooked(env: type[CountEnv]) -> type[CountEnv]:
    return type("HookedEnv", (HookedEnv,), {"log": env.log, "release": env.release})


@pytest.mark.parametrize("way", ["return", "raise"])
def test_the_hook_ends_a_call(start: Start, env: type[CountEnv], way: str) -> None:
    live = start(factory=hooked(env))
    with Raw(live.ws).open() as raw:
        raw.ask("step", op="long", arg=way)
        env.log.wait_for("step")
        raw.send({"type": "cancel", "seq": 1})
        raw.send({"type": "cancel", "seq": 1})
        reply = raw.recv()
        assert reply["seq"] == 1
        if way == "return":
            assert reply["data"]["observation"]["count"] == -1
        else:
            assert (reply["data"]["code"], reply["data"]["applied"]) == ("CANCELLED", None)
        assert raw.call("step", op="inc")["seq"] == 2
    hooks = env.log.of("cancel")
    assert len(hooks) == 1  # idempotent
    assert hooks[0]["thread"] != env.log.of("step")[0]["thread"]


def test_cancel_is_sent_again_after_a_resume(start: Start, env: type[CountEnv]) -> None:
    live = start(factory=hooked(env))
    with Raw(live.ws).open() as raw:
        raw.ask("step", op="long", arg="raise")
        env.log.wait_for("step")
        cut(live, raw)
        other, _ = raw.resumed(live.ws, last_reply=0)
        with other:
            other.send({"type": "cancel", "seq": 1})
            assert other.recv()["data"]["code"] == "CANCELLED"


def test_close_cancels_the_call_that_runs(start: Start, env: type[CountEnv]) -> None:
    live = start(factory=hooked(env))
    with Raw(live.ws).open() as raw:
        raw.ask("step", op="long", arg="raise")
        env.log.wait_for("step")
        raw.send({"type": "close"})
        env.log.wait_for("close")
    assert marks(env) == ["init", "step", "cancel", "close"]


# ---------------------------------------------------------------- the end of the server (E24)


def test_idle_is_told(start: Start, env: type[CountEnv]) -> None:
    live = start(timeout_s=0.05)
    with Raw(live.ws).open() as raw:
        assert raw.closed() == (4001, "idle")
    env.log.wait_for("close")


def drain(live: LiveServer) -> None:
    manager = server(live).sessions
    assert manager._over is not None
    manager._over.get_loop().call_soon_threadsafe(manager.begin_drain)


def test_drain_tells_those_who_are_there_and_ends_what_is_leased(start: Start, env: type[CountEnv]) -> None:
    live = start()
    with Raw(live.ws).open() as gone, Raw(live.ws).open() as there:
        gone.step()
        cut(live, gone)
        drain(live)
        assert there.closed() == (4002, "draining")
        env.log.wait_for("close", 2)
        assert gone.resumed(live.ws)[1]["data"]["reason"] == "closed"
        with Raw(live.ws) as late:
            late.send({"type": "open"})
            assert late.closed() == (4002, "draining")


def test_drain_lets_a_call_finish_and_be_answered(start: Start, env: type[CountEnv]) -> None:
    live = start()
    with Raw(live.ws).open() as raw:
        raw.ask("step", op="sleep", arg=20)
        env.log.wait_for("step")
        drain(live)
        until(lambda: server(live).sessions.draining)
        env.release.set()
        assert raw.recv()["seq"] == 1
        assert raw.closed() == (4002, "draining")


HANDSHAKE = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: YWFhYWFhYWFhYWFhYWFhYQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: openenv.v1\r\n\r\n"
)


def test_a_peer_that_does_not_read_is_not_read_either(live: LiveServer, env: type[CountEnv]) -> None:
    """Refusals must not pile up in the server's memory for a client that only writes."""

    def masked(frame: dict[str, Any]) -> bytes:
        return Frame(Opcode.TEXT, json.dumps(frame).encode()).serialize(mask=True)

    with socket.create_connection(("127.0.0.1", live.port), timeout=20) as tcp:
        tcp.sendall(HANDSHAKE)
        assert b" 101 " in tcp.recv(4096)
        tcp.sendall(masked({"type": "open", "data": {"uses": ["seq", "cancel", "resume"]}}))
        tcp.sendall(masked({"type": "step", "seq": 1, "data": {"op": "sleep", "arg": 60}}))
        env.log.wait_for("step")
        flood = masked({"type": "step", "seq": 2, "data": {"op": "inc"}}) * 200
        tcp.settimeout(1.0)
        sent = 0
        try:
            while sent < 200_000_000:
                tcp.sendall(flood)
                sent += len(flood)
        except TimeoutError:
            pass
        assert sent < 200_000_000


def test_tokens_are_never_logged(live: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="openenv")
    with Raw(live.ws).open() as raw:
        raw.step()
        cut(live, raw)
        other, _ = raw.resumed(live.ws)
        with other:
            other.step()
    texts = [record.getMessage() for record in caplog.records]
    assert any(raw.session in text for text in texts)
    assert not any(raw.token in text or other.token in text for text in texts)
