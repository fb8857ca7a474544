"""What the trainer is given: the built class, its tools and rewards; pickling, running loops, the end of a process."""

from __future__ import annotations

import asyncio
import base64
import functools
import inspect
import io
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

from openenv import CapacityError, ConnectError, GenericEnvClient, SessionLostError
from openenv.integrations.trl import factory as factories
from openenv.integrations.trl import versions
from openenv.integrations.trl.content import rendered, shown
from openenv.integrations.trl.episode import differing
from openenv.integrations.trl.factory import row_seed
from openenv.testing import Oracle, ServerProcess
from openenv.testing.processes import free_port
from openenv.trl import EnvFactories, ToolEnv, protect, tool_env
from support.trainer_envs import Counter, GuideCounter, guide_reward

NOWHERE = f"http://127.0.0.1:{free_port()}"


def public_functions(env: object) -> set[str]:
    """As TRL lists tools since 1.15, and as it did before."""
    new = {name for name, _ in inspect.getmembers(type(env), inspect.isfunction) if not name.startswith("_")}
    old = {name for name, _ in inspect.getmembers(env, inspect.ismethod) if not name.startswith("_")}
    assert new == old
    return new


# ---------------------------------------------------------------- the built class


def test_nothing_public_but_reset_the_tools_and_the_reward() -> None:
    env = tool_env(Counter, url=NOWHERE)()
    assert public_functions(env) == {"reset", "get_reward", "count", "act"}
    assert type(env).__name__ == "Counter"
    guide = protect(functools.partial(GuideCounter, NOWHERE))()
    assert public_functions(guide) == {"reset", "count", "careful", "later"}
    assert inspect.iscoroutinefunction(guide.later)
    assert inspect.signature(guide.count) == inspect.signature(GuideCounter(NOWHERE).count, eval_str=True)
    assert inspect.getdoc(guide.count) == inspect.getdoc(GuideCounter.count)


def test_attributes_are_those_of_the_environment() -> None:
    env = protect(functools.partial(GuideCounter, NOWHERE))()
    assert env.reward == 0.0
    env.reward = 2.5
    assert env._inner.reward == 2.5
    assert isinstance(env.client, GenericEnvClient)
    with pytest.raises(AttributeError):
        env.nothing


def test_all_environments_of_a_factory_have_one_class() -> None:
    factory = tool_env(Counter, url=NOWHERE)
    assert type(factory()) is type(factory())


class NoDoc(ToolEnv):
    def move(self, mark: str) -> str:
        return mark


class NoHint(ToolEnv):
    def move(self, mark) -> str:  # type: ignore[no-untyped-def]
        """Move.

        Args:
            mark: where.
        """
        return str(mark)


class NoLine(ToolEnv):
    def move(self, mark: str, other: int) -> str:
        """Move.

        Args:
            mark: where.
        """
        return mark


class AnyArguments(ToolEnv):
    def move(self, **where: int) -> str:
        """Move."""
        return ""


@pytest.mark.parametrize(
    ("cls", "told"),
    [
        (NoDoc, r"NoDoc\.move\(\) has no docstring"),
        (NoHint, r"'mark' of the tool NoHint\.move\(\) has no type hint"),
        (NoLine, r"no line 'other: \.\.\.' under 'Args:'"),
        (AnyArguments, r"\*args or \*\*kwargs"),
    ],
)
def test_a_tool_without_a_schema_is_refused_when_it_is_built(cls: type[ToolEnv], told: str) -> None:
    with pytest.raises(TypeError, match=told):
        tool_env(cls, url=NOWHERE)()


class AsyncReset:
    async def reset(self, **kwargs: Any) -> None:
        """Start."""


class NoReset:
    pass


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(TypeError, match="coroutine function"):
        protect(AsyncReset)()
    with pytest.raises(TypeError, match=r"NoReset has no reset\(\)"):
        protect(NoReset)()
    with pytest.raises(TypeError, match="returns a client"):
        protect(lambda: GenericEnvClient(base_url=NOWHERE))()
    with pytest.raises(TypeError, match="without arguments"):
        protect("http://localhost:8000")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="protected already"):
        protect(protect(NoReset))
    with pytest.raises(ValueError, match="mask, replay, abort"):
        protect(NoReset, on_session_lost="zero")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="not both"):
        tool_env(url=NOWHERE)


def test_environments_with_different_tools_are_refused() -> None:
    turns = iter([Counter, Other])
    factory = protect(lambda: next(turns)(GenericEnvClient(base_url=NOWHERE).sync()))
    factory()
    with pytest.raises(TypeError, match="different tools"):
        factory()


class Other(ToolEnv):
    def jump(self) -> str:
        """Jump."""
        return ""


def test_environments_that_share_a_client_are_refused() -> None:
    client = GenericEnvClient(base_url=NOWHERE)
    factory = protect(lambda: Counter(client.sync()))
    first = factory()
    with pytest.raises(ValueError, match="share one client"):
        factory()
    assert first is not None


# ---------------------------------------------------------------- rewards


def test_the_own_reward_comes_once_by_the_trainer_or_by_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    for installed, has_method in (((1, 16), True), ((1, 8), True), ((1, 7), False), ((1, 6), False)):
        monkeypatch.setattr(versions, "trl_version", lambda installed=installed: installed)
        factory = tool_env(Counter, url=NOWHERE)
        assert hasattr(type(factory()), "get_reward") is has_method
        assert len(factory.rewards()) == (0 if has_method else 1)
        assert len(factory.rewards(guide_reward)) == (1 if has_method else 2)


def test_an_old_trl_is_warned_of(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(factories, "trl_version", lambda: (1, 5))
    factories._warn_of_old_trl.cache_clear()
    protect(NoReset)
    protect(NoReset)
    factories._warn_of_old_trl.cache_clear()
    assert [record.message for record in caplog.records] == [
        "TRL 1.5 counts a sample without a reward as one with reward 0, so a lost game still moves its group's "
        "baseline. Use trl>=1.6."
    ]


async def async_reward(environments: list[Any], **columns: Any) -> list[float]:
    return [1.0 for _ in environments]


class CallableReward:
    async def __call__(self, environments: list[Any], **columns: Any) -> list[float]:
        return [2.0 for _ in environments]


def test_asynchronous_rewards_stay_asynchronous() -> None:
    factory = tool_env(Counter, url=NOWHERE)
    env = factory()
    for function, value in ((async_reward, 1.0), (CallableReward(), 2.0), (functools.partial(async_reward), 1.0)):
        (wrapped,) = factory.rewards(function)
        assert inspect.iscoroutinefunction(wrapped.__call__)
        assert asyncio.run(wrapped(environments=[env])) == [value]
    assert [one.__name__ for one in factory.rewards(guide_reward, async_reward)] == ["guide_reward", "async_reward"]


def test_without_environments_the_transcript_tells_of_losses(counting_server: ServerProcess, fault_proxy: Any) -> None:
    """An asynchronous trainer passes no environments to reward functions."""
    proxy = fault_proxy(counting_server.url)
    factory = tool_env(Counter, url=proxy.url, client_options={"resume": False})
    env = factory()
    env.reset()
    proxy.cut()
    try:
        env.count("1")
    except Exception as error:
        told = {"role": "tool", "name": "count", "content": str({"error": str(error)})}
    fine = {"role": "tool", "name": "count", "content": "count 1"}
    (reward,) = factory.rewards(ones)
    assert reward(completions=[[told], [fine], []], prompts=[[], [], []]) == [None, 1.0, 1.0]


def ones(completions: list[Any], **columns: Any) -> list[float]:
    return [1.0 for _ in completions]


def test_reward_models_and_wrapped_functions_are_refused() -> None:
    factory = tool_env(Counter, url=NOWHERE)
    with pytest.raises(TypeError, match="is a reward model"):
        factory.rewards("org/reward-model")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="comes from rewards"):
        factory.rewards(*factory.rewards(guide_reward))


def test_the_own_reward_as_asked_for(counting_server: ServerProcess) -> None:
    for reward, value in (("sum", 4.0), ("last", 3.0), (lambda env: env._result.reward * 10, 30.0)):
        env = tool_env(Counter, url=counting_server.url, reward=reward)()  # type: ignore[arg-type]
        env.reset()
        env.count("1")
        env.act("reward", 3.0)
        assert env.get_reward() == value


# ---------------------------------------------------------------- rows


def test_rows_become_arguments_of_the_reset(counting_server: ServerProcess, counting_oracle: Oracle) -> None:
    env = tool_env(Counter, url=counting_server.url)()
    row = {"prompt": [{"role": "user", "content": "Go"}], "mark": "one", "image": object(), "nothing": None}
    env.reset(**row)
    env.reset(**{**row, "mark": "two", "seed": 7})
    one, two = counting_oracle.of("reset")
    assert (one.mark, two.mark, two.seed) == ("one", "two", 7)
    assert one.seed == row_seed(row)


def test_the_seed_of_a_row_is_the_same_in_every_process_and_another_for_another_row() -> None:
    row = {"prompt": [{"role": "user", "content": "Go"}], "level": 3, "image": object()}
    other = {**row, "image": None}
    code = f"from openenv.integrations.trl.factory import row_seed; print(row_seed({other!r} | {{'image': object()}}))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(printed.stdout) == row_seed(row) == row_seed(dict(reversed(row.items())))
    assert row_seed({**row, "level": 4}) != row_seed(row)
    assert row_seed({**row, "seed": 5}) == 5
    assert 0 <= row_seed(row) < 2**31


def test_an_environment_that_ignores_its_seed_is_named_once(
    counting_server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    factory = tool_env(Counter, url=counting_server.url)
    for env in (factory(), factory(), factory()):
        env.reset(mark="same")  # the name of the environment is another each time
    told = [record.message for record in caplog.records if "ignore its seed" in record.message]
    assert len(told) == 1
    assert "observation.env" in told[0]


# ---------------------------------------------------------------- content


def picture() -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (2, 3), "red").save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def test_images_become_content_blocks() -> None:
    inline = {"screen": f"data:image/png;base64,{picture()}", "text": "a red screen"}
    listed = {"frames": [{"type": "image", "data": picture(), "mimeType": "image/png"}], "score": 3}
    for observation, text in ((inline, "a red screen"), (listed, '{"frames": [], "score": 3}')):
        image, words = rendered(observation)
        assert (image["type"], image["image"].size) == ("image", (2, 3))
        assert words == {"type": "text", "text": text}
    assert shown([{"type": "image", "data": picture()}, {"type": "text", "text": "x"}])[0]["image"].size == (2, 3)
    assert rendered({"text": "plain"}) == "plain"
    pixels = numpy.zeros((3, 2, 3), dtype="uint8")
    image, words = rendered({"pixels": pixels, "scores": numpy.arange(2)})
    assert image["image"].size == (2, 3)
    assert words["text"] == '{"scores": [0, 1]}'
    assert rendered({"board": [1], "reward": 1.0, "done": False}) == '{"board": [1]}'
    assert shown("data:image/png;base64,???") == "data:image/png;base64,???"


def test_observations_are_compared_by_what_they_show() -> None:
    def frame(**observation: Any) -> dict[str, Any]:
        return {"observation": observation, "reward": 1.0, "done": False}

    one = frame(board=[1, {"x": 2.0}], board_id="a", time=1, metadata={"y": 1}, grid=numpy.arange(4), bad=float("nan"))
    same = frame(board=[1, {"x": 2.0}], board_id="b", time=2, metadata={}, grid=numpy.arange(4), bad=float("nan"))
    assert differing(one, same) == []
    other = frame(board=[1, {"x": 3.0}], board_id="b", grid=numpy.arange(4).astype("int8"), table=1, bad=float("nan"))
    assert differing(one, other) == ["observation.board[1].x", "observation.grid", "observation.table"]
    assert differing(one, other, ("table", "grid")) == ["observation.board[1].x"]
    assert differing(one, {**same, "reward": 0.5}) == ["reward"]


# ---------------------------------------------------------------- servers that say their tools


def test_the_schema_of_an_action_becomes_a_tool(counting_server: ServerProcess, counting_oracle: Oracle) -> None:
    factory = pickle.loads(pickle.dumps(tool_env(url=counting_server.url, tools="schema")))
    env = factory()
    assert public_functions(env) == {"reset", "get_reward", "act"}
    assert set(inspect.signature(env.act).parameters) == {"op", "arg", "mark"}
    assert env.act.__annotations__["op"] is str
    assert isinstance(env.reset(mark="one"), str)
    assert '"count": 1' in env.act(op="inc", mark="first")
    assert counting_oracle.times("first") == 1


def test_a_list_of_servers_is_taken_in_turn(counting_server: ServerProcess, counting_oracle: Oracle) -> None:
    with ServerProcess("openenv.testing.counting:app") as second:
        factory = tool_env(Counter, url=[counting_server.url, second.url])
        envs = [factory() for _ in range(4)]
        assert [env._inner._client.base_url for env in envs] == [counting_server.url, second.url] * 2
        for env in envs:
            env.reset()
        assert len(counting_oracle.of("reset")) == 2


def test_several_environments_by_name(counting_server: ServerProcess) -> None:
    envs = protect({"guide": functools.partial(GuideCounter, counting_server.url), "tools": Silent})
    assert isinstance(envs, dict)
    assert isinstance(envs, EnvFactories)
    (reward,) = envs.rewards(guide_reward)
    guide = envs["guide"]()
    guide.reset()
    guide.count("1")
    assert reward(environments=[guide]) == [1.0]
    assert set(envs.check(rows=[{"environment": "guide"}])) == {"guide", "tools"}
    with pytest.raises(ValueError, match="'gide'; there are guide, tools"):
        envs.check(rows=[{"environment": "gide"}])


class Silent:
    """Has no client."""

    def reset(self, **row: Any) -> None:
        """Start."""


# ---------------------------------------------------------------- check


@pytest.mark.parametrize("together", [False, True], ids=["one", "several"])
def test_a_factory_ends_the_sessions_of_its_environments(
    counting_server: ServerProcess, counting_oracle: Oracle, together: bool
) -> None:
    own = tool_env(Counter, url=counting_server.url)
    guide = protect(functools.partial(GuideCounter, counting_server.url))
    factory = EnvFactories(own=own, guide=guide) if together else own
    with factory:
        envs = [(guide if together and index else own)() for index in range(3)]
        never_used = own()
        for env in envs:
            env.reset()
        assert counting_oracle.of("close") == []
    counting_oracle.wait_for("close", 3)
    factory.close()  # may be repeated
    for env in envs:
        with pytest.raises(SessionLostError, match="does not answer any more"):
            env.count("late")
    again = own()
    again.reset()
    own.close()
    counting_oracle.wait_for("close", 4)
    assert len(counting_oracle.of("init")) == 4
    del never_used


def test_check_tells_what_a_server_will_do(counting_server: ServerProcess, counting_oracle: Oracle) -> None:
    factory = tool_env(Counter, url=counting_server.url)
    report = factory.check(sessions=8, row={"mark": "x"}, tool=("count", {"mark": "probe"}), turns=5)
    assert (report.sessions, report.dialect, report.resumes) == (8, "openenv.v1", True)
    assert report.round_s == pytest.approx(8 * (report.reset_s + 5 * report.step_s))
    assert "the session is resumed" in str(report)
    counting_oracle.wait_for_all_closed()
    assert len(counting_oracle.of("init")) == 8
    plain = tool_env(Counter, url=counting_server.url, client_options={"resume": False}, on_session_lost="replay")
    assert "the episode is lost (replay)" in str(plain.check())
    with pytest.raises(ValueError, match="no tool 'cuont'"):
        factory.check(tool=("cuont", {}))


def test_check_finds_a_server_too_small_or_away() -> None:
    with ServerProcess("openenv.testing.counting:app", environ={"OPENENV_COUNTING_CAPACITY": "3"}) as server:
        with pytest.raises(CapacityError, match="3 of 3"):
            tool_env(Counter, url=server.url, client_options={"connect_timeout_s": 1.0}).check(sessions=4)
        assert tool_env(Counter, url=server.url).check(sessions=3).sessions == 3
    with pytest.raises(ConnectError, match="nothing listens there"):
        tool_env(Counter, url=NOWHERE, client_options={"connect_timeout_s": 0.5}).check()


# ---------------------------------------------------------------- threads, loops, processes


def test_the_factory_and_its_rewards_pickle() -> None:
    for factory in (protect(functools.partial(GuideCounter, NOWHERE)), tool_env(Counter, url=NOWHERE)):
        before = factory()
        copy = pickle.loads(pickle.dumps(factory))
        assert public_functions(copy()) == public_functions(before)
        assert repr(copy) == repr(factory)
    (reward,) = pickle.loads(pickle.dumps(tool_env(Counter, url=NOWHERE).rewards(guide_reward)))
    assert reward.__name__ == "guide_reward"


async def test_under_a_running_loop_bare_calls_are_made_and_tools_may_be_awaited(
    counting_server: ServerProcess, counting_oracle: Oracle
) -> None:
    env = protect(functools.partial(GuideCounter, counting_server.url))()
    assert env.reset(mark="one") == "counting"
    assert [event.mark for event in counting_oracle.of("reset")] == ["one"]  # its result was not used
    assert env.count("1") == "count 1"
    assert await env.later("2") == "count 2"


async def test_calls_may_come_from_any_thread(counting_server: ServerProcess, counting_oracle: Oracle) -> None:
    env = tool_env(Counter, url=counting_server.url)()
    await asyncio.to_thread(env.reset)
    for number in range(1, 5):
        assert await asyncio.to_thread(env.count, str(number)) == f"count {number}"
    assert await asyncio.to_thread(env.get_reward) == 4.0


def test_no_session_is_left_when_the_process_ends(counting_server: ServerProcess, counting_oracle: Oracle) -> None:
    code = f"""
        import functools
        from openenv.trl import protect, tool_env
        from support.trainer_envs import Counter, GuideCounter

        url = "{counting_server.url}"
        makers = (tool_env(Counter, url=url), protect(functools.partial(GuideCounter, url)))
        pool = [make() for make in makers for _ in range(3)]
        for env in pool:
            env.reset()
            env.count("1")
    """
    tests = Path(__file__).parents[2]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(tests), os.environ.get("PYTHONPATH")]))}
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60, env=environ)
    counting_oracle.wait_for_all_closed()
    assert len(counting_oracle.of("close")) == 6


def test_importing_it_loads_no_trainer() -> None:
    code = "import sys, openenv.trl; print([m for m in ('trl', 'torch', 'transformers', 'PIL') if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "[]"
