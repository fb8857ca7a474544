"""What a trainer's environment does when calls are late, lost or refused; by the log of the counting server."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openenv import ConnectError, EnvExecutionError, GenericEnvClient, InvalidActionError, SessionLostError
from openenv.core.session.backoff import Backoff
from openenv.integrations.trl import guard
from openenv.integrations.trl.episode import NEUTRAL
from openenv.testing import FaultProxy, Oracle, ServerProcess
from openenv.trl import protect, tool_env
from support.trainer_envs import Counter, GuideCounter, guide_reward

Proxied = Callable[[str], FaultProxy]
PLAIN: dict[str, Any] = {"resume": False}


def counter(url: str, policy: Any = "mask", client: dict[str, Any] | None = None, **options: Any) -> Any:
    return tool_env(Counter, url=url, on_session_lost=policy, client_options=client or {}, **options)()


def test_a_lost_episode_is_refused_without_network_until_the_next_reset(
    counting_server: ServerProcess, counting_oracle: Oracle, fault_proxy: Proxied
) -> None:
    proxy = fault_proxy(counting_server.url)
    env = counter(proxy.url, client=PLAIN)
    env.reset(mark="one")
    assert env.count("1") == "count 1"
    proxy.cut()
    for mark in ("2", "3", "4"):
        with pytest.raises(SessionLostError) as caught:
            env.count(mark)
        assert str(caught.value) == NEUTRAL
    assert proxy.accepted == 1
    assert env.get_reward() is None
    env.reset(mark="two")
    assert env.count("5") == "count 1"
    assert env.get_reward() == 1.0
    assert [event.mark for event in counting_oracle.of("step")] == ["1", "5"]
    assert counting_oracle.episode_of("5") == "two"


def test_an_environment_that_hides_its_errors_is_lost_all_the_same(
    counting_server: ServerProcess, fault_proxy: Proxied
) -> None:
    proxy = fault_proxy(counting_server.url)
    factory = protect(functools.partial(GuideCounter, proxy.url, resume=False))
    env = factory()
    env.reset()
    assert env.careful("1") == "count 1"
    proxy.cut()
    with pytest.raises(SessionLostError, match="does not answer any more"):
        env.careful("2")
    (reward,) = factory.rewards(guide_reward)
    assert reward(environments=[env], completions=[[]]) == [None]


def test_a_late_result_is_waited_for_inside_the_same_call(
    counting_server: ServerProcess, counting_oracle: Oracle
) -> None:
    env = counter(counting_server.url, client={"step_timeout_s": 0.2})
    env.reset()
    assert env.act("sleep", 0.8, "slow") == "1"
    assert env.count("next") == "count 2"
    assert env.get_reward() == 2.0
    assert counting_oracle.times("slow") == 1


def test_a_result_that_is_later_than_the_budget_is_masked(
    counting_server: ServerProcess, counting_oracle: Oracle, tmp_path: Any
) -> None:
    gate = tmp_path / "gate"
    env = counter(counting_server.url, client={"step_timeout_s": 0.1}, late_budget_s=0.3)
    env.reset(mark="one")
    with pytest.raises(SessionLostError, match="does not answer any more"):
        env.act("block", str(gate), "stuck")
    assert env.get_reward() is None
    gate.touch()
    env.reset(mark="two")
    assert env.count("after") == "count 1"
    assert counting_oracle.episode_of("after") == "two"
    assert counting_oracle.times("stuck") == 1


class Stubborn(GuideCounter):
    """Tries again what fails, and counts how often it is asked."""

    asked = 0

    def insist(self, gate: str) -> str:
        """Act, and if that fails act again.

        Args:
            gate: a file to wait for.
        """
        self.asked += 1
        try:
            return str(self.client.step({"op": "block", "arg": gate, "mark": "first"}))
        except Exception:
            Path(gate).touch()
        for _ in range(5):
            with contextlib.suppress(Exception):
                self.client.step({"mark": "again"}, timeout_s=5.0)
        return "I gave up"


def test_after_a_loss_neither_the_class_nor_the_server_is_asked_again(
    counting_server: ServerProcess, counting_oracle: Oracle, tmp_path: Any
) -> None:
    """The session itself is not lost here: only the one result is."""
    factory = protect(functools.partial(Stubborn, counting_server.url, step_timeout_s=0.1), late_budget_s=0.2)
    factory.rewards(guide_reward)
    env = factory()
    env.reset()
    for _ in range(2):
        with pytest.raises(SessionLostError, match="does not answer any more"):
            env.insist(str(tmp_path / "gate"))
    assert env.asked == 1
    env.reset()
    assert env.count("last") == "count 1"
    assert [event.mark for event in counting_oracle.of("step")] == ["first", "last"]


def test_a_call_that_was_not_sent_in_time_is_sent_once_the_connection_is_back(
    counting_server: ServerProcess, counting_oracle: Oracle, fault_proxy: Proxied
) -> None:
    proxy = fault_proxy(counting_server.url)
    env = counter(proxy.url, client={"step_timeout_s": 0.2})
    env.reset()
    proxy.refuse("rst")
    proxy.cut()
    dialled = proxy.accepted
    healing = threading.Thread(target=lambda: (proxy.wait_for_connections(dialled + 3), proxy.heal()))
    healing.start()
    assert env.count("once") == "count 1"
    healing.join()
    assert counting_oracle.times("once") == 1
    assert env._guard.episode.lost is None


def test_a_step_after_the_end_is_answered_here(counting_server: ServerProcess, counting_oracle: Oracle) -> None:
    env = counter(counting_server.url)
    env.reset()
    assert env.act("done", mark="last") == "1"
    assert env.count("after") == "1\nThe episode is over."
    assert [event.mark for event in counting_oracle.of("step")] == ["last"]
    env.reset()
    assert env.count("again") == "count 1"


def test_a_loss_after_the_end_costs_nothing(counting_server: ServerProcess, fault_proxy: Proxied) -> None:
    proxy = fault_proxy(counting_server.url)
    env = counter(proxy.url, client=PLAIN)
    env.reset()
    env.act("done", mark="last")
    proxy.cut()
    assert env.count("after") == "1\nThe episode is over."
    assert env.get_reward() == 1.0


def test_the_model_is_told_of_mistakes_and_crashes_in_the_words_of_the_environment(
    counting_server: ServerProcess,
) -> None:
    env = counter(counting_server.url)
    env.reset()
    with pytest.raises(InvalidActionError) as invalid:
        env.act("invalid", "there is no such cell")
    assert str(invalid.value) == "there is no such cell"
    with pytest.raises(RuntimeError) as crashed:
        env.act("raise", "out of cards")
    assert str(crashed.value) == "out of cards"
    assert env.count("goes on") == "count 1"
    assert env.get_reward() == 1.0


def test_a_result_that_cannot_be_taken_is_masked_and_a_call_that_is_too_large_is_refused(
    counting_server: ServerProcess,
) -> None:
    env = counter(counting_server.url, client={"max_message_size_mb": 0.01})
    env.reset()
    with pytest.raises(SessionLostError, match="does not answer any more"):
        env.act("big", 100_000)
    assert env.get_reward() is None
    env.reset()
    with pytest.raises(InvalidActionError) as refused:
        env.act("echo", "x" * 20_000_000)
    assert str(refused.value) == "The arguments of this call are too large."
    assert env.count("1") == "count 1"
    assert env.get_reward() == 1.0


def test_replay_goes_on_in_a_new_session_and_a_different_game_is_masked(
    counting_server: ServerProcess, counting_oracle: Oracle, fault_proxy: Proxied
) -> None:
    proxy = fault_proxy(counting_server.url)
    env = counter(proxy.url, "replay", PLAIN, volatile=("env",))
    env.reset(mark="one")
    env.count("1")
    env.count("2")
    proxy.cut_on_reply()
    assert env.count("3") == "count 3"
    assert env.get_reward() == 3.0
    assert counting_oracle.times("3") == 2  # once in the session that was lost, once in the new one
    assert len({event.env for event in counting_oracle.of("step", mark="3")}) == 2

    other = counter(proxy.url, "replay", PLAIN)  # here the name of the environment counts as a difference
    other.reset()
    other.count("4")
    proxy.cut()
    with pytest.raises(SessionLostError) as caught:
        other.count("5")
    assert "showed something else in observation.env" in caught.value.detail
    assert counting_oracle.times("5") == 0


def test_abort_raises_from_the_reward(counting_server: ServerProcess, fault_proxy: Proxied) -> None:
    proxy = fault_proxy(counting_server.url)
    factory = protect(functools.partial(GuideCounter, proxy.url, resume=False), on_session_lost="abort")
    env = factory()
    env.reset()
    proxy.cut()
    with pytest.raises(SessionLostError, match="does not answer any more"):
        env.count("1")
    (reward,) = factory.rewards(guide_reward)
    with pytest.raises(SessionLostError, match=r"GuideCounter\[0\]: episode 1 was lost after 0 move"):
        reward(environments=[env], completions=[[]])


def test_a_loss_is_logged_once_with_slot_episode_and_moves(
    counting_server: ServerProcess, fault_proxy: Proxied, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = fault_proxy(counting_server.url)
    env = counter(proxy.url, client=PLAIN)
    env.reset()
    env.count("1")
    proxy.cut()
    for _ in range(3):
        with pytest.raises(SessionLostError):
            env.count("2")
    told = [record.message for record in caplog.records if "will be masked" in record.message]
    assert len(told) == 1
    assert told[0].startswith("Counter[0]: episode 1 is lost after 1 move(s)")


def test_a_loss_that_nobody_masks_is_named_once(
    counting_server: ServerProcess, fault_proxy: Proxied, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = fault_proxy(counting_server.url)
    for masks in (False, True):
        factory = protect(functools.partial(GuideCounter, proxy.url, resume=False))
        if masks:
            factory.rewards(guide_reward)
        envs = [factory(), factory()]
        for env in envs:
            env.reset()
        proxy.cut()
        for env in envs:
            with pytest.raises(SessionLostError):
                env.count("1")
    told = [
        record.message for record in caplog.records if "no reward function comes from its rewards()" in record.message
    ]
    assert len(told) == 1


class Hides(GuideCounter):
    """Takes a move in its reset, and hides what goes wrong there."""

    def reset(self, **kwargs: Any) -> str:
        """Start."""
        self.client.reset()
        try:
            self.client.step({"op": "block", "arg": kwargs["gate"]})
        except Exception:
            return "never mind"
        return "begun"


def test_a_reset_that_hides_a_loss_begins_an_episode_that_is_lost(
    counting_server: ServerProcess,
    counting_oracle: Oracle,
    fault_proxy: Proxied,
    tmp_path: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    proxy = fault_proxy(counting_server.url)
    factory = protect(functools.partial(Hides, proxy.url, resume=False))
    factory.rewards(guide_reward)
    env = factory()
    cutting = threading.Thread(target=lambda: (counting_oracle.wait_for("step"), proxy.cut()))
    cutting.start()
    assert env.reset(gate=str(tmp_path / "gate")) == "never mind"
    cutting.join()
    (tmp_path / "gate").touch()
    with pytest.raises(SessionLostError, match="does not answer any more"):
        env.count("1")
    assert sum("will be masked" in record.message for record in caplog.records) == 1
    assert env.reset(gate=str(tmp_path / "gate")) == "begun"
    assert env.count("2") == "count 2"


def test_a_reset_in_which_the_environment_fails_is_tried_three_times(
    counting_server: ServerProcess, counting_oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "BACKOFF", Backoff(first_s=0.01, longest_s=0.01))
    env = counter(counting_server.url)
    with pytest.raises(EnvExecutionError, match="out of cards"):
        env.reset(op="raise", arg="out of cards")
    assert len(counting_oracle.of("reset")) == 3
    assert env.reset() == "count 0"


def test_a_reset_waits_for_a_server_that_refuses(counting_server: ServerProcess, fault_proxy: Proxied) -> None:
    proxy = fault_proxy(counting_server.url)
    env = counter(proxy.url, client={"connect_timeout_s": 0.2})
    proxy.refuse("rst")
    healing = threading.Thread(target=lambda: (proxy.wait_for_connections(3), proxy.heal()))
    healing.start()
    assert env.reset() == "count 0"
    healing.join()


def test_a_refusal_that_stays_is_raised_at_once(counting_server: ServerProcess) -> None:
    env = tool_env(Counter, url=counting_server.url, client=_Stranger)()
    with pytest.raises(ConnectError) as caught:
        env.reset()
    assert caught.value.status == 403


class _Stranger(GenericEnvClient):
    """Comes from a page that the server does not know."""

    def __init__(self, base_url: str) -> None:
        super().__init__(base_url=base_url, headers={"Origin": "http://evil.example"})
