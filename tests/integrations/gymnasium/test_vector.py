"""`VectorEnv`: batch for batch what Gymnasium's own vector environment makes of the same environments."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

from gymnasium_env import GymnasiumEnvClient
from gymnasium_env.server.app import create_gymnasium_app
from openenv import EnvExecutionError, GenericEnvClient, SessionClosedError
from openenv.core.transport.io_thread import IoThread
from openenv.gymnasium import VectorEnv
from support.gym_envs import Log, Logged, Serving
from support.live import LiveServer, serve

IDS = [
    *("CartPole-v1", "MountainCarContinuous-v0", "Acrobot-v1", "Pendulum-v1"),
    *("FrozenLake-v1", "Taxi-v4", "Blackjack-v1", "test/Picture-v0", "test/Mixed-v0"),
]
N = 3
exactly = partial(data_equivalence, exact=True)


@pytest.fixture
def envs(logged: LiveServer) -> Iterator[VectorEnv]:
    envs = VectorEnv(logged, N)
    yield envs
    envs.close()


def local(name: str, mode: AutoresetMode) -> SyncVectorEnv:
    return SyncVectorEnv([partial(gymnasium.make, name)] * N, autoreset_mode=mode)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("name", IDS)
def test_every_batch_is_that_of_the_local_environments(served: Serving, name: str, mode: AutoresetMode) -> None:
    theirs, ours = local(name, mode), VectorEnv(served(name), N, autoreset_mode=mode)
    assert ours.metadata["autoreset_mode"] is mode
    for one in ("num_envs", "single_observation_space", "single_action_space", "observation_space", "action_space"):
        assert getattr(ours, one) == getattr(theirs, one)
    theirs.action_space.seed(2)
    assert exactly(ours.reset(seed=7), theirs.reset(seed=7))
    ends = 0
    for _ in range(100):
        actions = theirs.action_space.sample()
        got, wanted = ours.step(actions), theirs.step(actions)
        assert exactly(got, wanted)
        ends += int(got[2].sum() + got[3].sum())
    assert ends or name in ("MountainCarContinuous-v0", "Acrobot-v1", "Pendulum-v1", "Taxi-v4")
    assert exactly(ours.reset(seed=[1, 5, 2]), theirs.reset(seed=[1, 5, 2]))
    ours.close()


def test_without_autoreset_a_mask_chooses_who_begins_anew(served: Serving) -> None:
    name, mode = "FrozenLake-v1", AutoresetMode.DISABLED
    theirs, ours = local(name, mode), VectorEnv(served(name), N, autoreset_mode="Disabled")
    theirs.action_space.seed(4)
    assert exactly(ours.reset(seed=1), theirs.reset(seed=1))
    resets = 0
    for _ in range(60):
        actions = theirs.action_space.sample()
        got = ours.step(actions)
        assert exactly(got, theirs.step(actions))
        ended = got[2] | got[3]
        if ended.any():
            resets += 1
            with pytest.raises(ResetNeeded, match=str(np.flatnonzero(ended)[0])):
                ours.step(actions)
            options = {"reset_mask": ended}
            assert exactly(ours.reset(options=options), theirs.reset(options={"reset_mask": ended}))
            assert options == {"reset_mask": ended}
    assert resets
    ours.close()


def test_a_mask_touches_only_those_that_it_chooses(envs: VectorEnv, log: Log) -> None:
    mask = np.array([False, True, False])
    with pytest.raises(ResetNeeded, match=r"\[0, 2\]"):
        envs.reset(options={"reset_mask": mask})
    envs.reset(seed=5)
    before = envs.step(np.zeros(N, int))[0]
    seen, infos = envs.reset(seed=[9, 9, 9], options={"reset_mask": mask, "level": 2})
    numbers = before[:, 0]
    assert seen.tolist() == [[numbers[0], 1], [numbers[1], 0], [numbers[2], 1]]
    assert infos["_reset"].tolist() == mask.tolist()
    expected = [(number, (5 + i, None)) for i, number in enumerate(numbers)] + [(numbers[1], (9, {"level": 2}))]
    assert sorted(log.of("reset"), key=str) == sorted(expected, key=str)


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        ([True, True, True], TypeError),
        (np.ones(N, int), TypeError),
        (np.ones(N + 1, bool), ValueError),
        (np.zeros(N, bool), ValueError),
    ],
)
def test_a_mask_that_is_none(envs: VectorEnv, mask: Any, error: type[Exception]) -> None:
    envs.reset()
    with pytest.raises(error, match="reset_mask"):
        envs.reset(options={"reset_mask": mask})
    assert envs.step(np.zeros(N, int))[1].tolist() == [1, 1, 1]


def test_all_sessions_step_at_the_same_time_and_the_caller_meanwhile_computes(envs: VectorEnv, log: Log) -> None:
    envs.reset()
    inits: list[Any] = [env for _, env in log.of("init")]
    with pytest.raises(NoAsyncCallError):
        envs.step_wait()
    envs.step_async(np.full(N, 4))
    log.wait_for(lambda: len(log.of("step")) == N)  # all are in their step before one has ended
    with pytest.raises(AlreadyPendingCallError, match="while step"):
        envs.step_async(np.zeros(N, int))
    with pytest.raises(TimeoutError, match=r"3 of 3 .* 0\.01 s"):
        envs.step_wait(timeout=0.01)
    with pytest.raises(NoAsyncCallError):
        envs.reset_wait()
    for one in inits:
        one.gate.set()
    assert envs.step_wait(timeout=30)[0][:, 1].tolist() == [1, 1, 1]
    envs.reset_async(seed=1)
    assert envs.reset_wait()[0][:, 1].tolist() == [0, 0, 0]


def test_the_caller_may_write_into_its_batch_once_the_step_has_begun(served: Serving) -> None:
    """The I/O thread is kept busy until the batch has been overwritten."""
    envs = VectorEnv(served("test/Mixed-v0"), N)
    envs.reset(seed=1)
    actions = envs.action_space.sample()
    wanted = copy.deepcopy(actions)
    written = threading.Event()
    IoThread.shared().loop.call_soon_threadsafe(written.wait, 30)
    envs.step_async(actions)
    actions["deep"]["level"][:] = 77
    actions["flags"][:] = 0
    actions["pair"][1][:] = 0
    written.set()
    assert exactly(envs.step_wait()[0], wanted)
    envs.close()


def test_results_that_make_no_batch_are_an_error_after_which_all_need_a_reset() -> None:
    """Its episode has ended, which is not forgotten: nothing goes on from there unseen."""

    class Growing(Logged):
        def step(self, action: Any) -> Any:
            seen, reward, _, _, _ = super().step(0)
            return seen, reward, True, False, {"grown": np.zeros(seen[0] + 1)}  # of another shape in each

    with serve(create_gymnasium_app(partial(Growing, Log()))) as url:
        envs = VectorEnv(url, N)
        envs.reset()
        with pytest.raises(ValueError, match="broadcast"):
            envs.step(np.zeros(N, int))
        with pytest.raises(ResetNeeded):
            envs.step(np.zeros(N, int))
        assert envs.reset()[0][:, 1].tolist() == [0, 0, 0]
        envs.close()


def test_a_reset_drops_a_step_that_nobody_waited_for(envs: VectorEnv, log: Log) -> None:
    envs.reset()
    envs.step_async(np.zeros(N, int))
    with pytest.raises(AlreadyPendingCallError):  # of those that it leaves out the results are wanted
        envs.reset(options={"reset_mask": np.array([False, True, False])})
    assert envs.reset()[0][:, 1].tolist() == [0, 0, 0]
    assert envs.step(np.zeros(N, int))[0][:, 1].tolist() == [1, 1, 1]
    assert len(log.of("step")) == 2 * N


def test_an_environment_that_raises_is_told_after_all_have_answered(envs: VectorEnv, log: Log) -> None:
    envs.reset()
    with pytest.raises(EnvExecutionError, match="told to raise") as caught:
        envs.step(np.array([0, 3, 0]))
    assert caught.value.__notes__ == ["This was sub-environment 1."]
    assert len(log.of("step")) == N
    with pytest.raises(ResetNeeded, match=r"\[0, 1, 2\]"):  # what 0 and 2 answered is gone
        envs.step(np.zeros(N, int))
    with pytest.raises(ResetNeeded, match=r"\[0, 2\]"):
        envs.reset(options={"reset_mask": np.array([False, True, False])})
    assert envs.reset()[0][:, 1].tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="2 actions"):
        envs.step(np.zeros(2, int))


def test_sessions_may_play_another_environment_than_the_servers(served: Serving) -> None:
    name = "FrozenLake-v1"
    make = partial(gymnasium.make, name, is_slippery=False)
    theirs = SyncVectorEnv([make] * N)
    ours = VectorEnv(served("CartPole-v1"), N, name, env_kwargs={"is_slippery": False})
    assert ours.single_observation_space == theirs.single_observation_space
    theirs.action_space.seed(6)
    assert exactly(ours.reset(seed=1), theirs.reset(seed=1))
    ends = 0
    for _ in range(60):
        actions = theirs.action_space.sample()
        got = ours.step(actions)
        assert exactly(got, theirs.step(actions))
        ends += int(got[2].sum())
    assert ends
    ours.close()


def test_what_is_inside_the_environments_stays_there(envs: VectorEnv) -> None:
    for refused in (lambda: envs.call("render"), lambda: envs.get_attr("spec"), lambda: envs.set_attr("spec", 1)):
        with pytest.raises(NotImplementedError, match=r"only reset, step and render cross the network"):
            refused()


def test_all_draw(served: Serving) -> None:
    url = served("test/Picture-v0", render_mode="rgb_array")
    envs = VectorEnv(url, N)
    with pytest.raises(ResetNeeded):
        envs.render()
    seen, _ = envs.reset(seed=1)
    drawn = envs.render()
    assert len(drawn) == N
    for frame, one in zip(drawn, seen, strict=True):
        np.testing.assert_array_equal(frame, one[:, :, :3])
    envs.close()
    plain = VectorEnv(served("CartPole-v1"), 1)
    with pytest.raises(NotImplementedError):
        plain.render()
    plain.close()


@pytest.mark.parametrize("kind", ["callable", "one client", "list", "sync"])
def test_where_sessions_come_from(logged: LiveServer, log: Log, kind: str) -> None:
    source: Any = {
        "callable": lambda: GymnasiumEnvClient(base_url=logged),
        "one client": GenericEnvClient(base_url=logged),
        "list": [GenericEnvClient(base_url=logged), logged, GymnasiumEnvClient(base_url=logged).sync()],
        "sync": GymnasiumEnvClient(base_url=logged).sync(),
    }[kind]
    envs = VectorEnv(source, N)
    seen, _ = envs.reset()
    assert len(set(seen[:, 0].tolist())) == N
    assert envs.step(np.ones(N, int))[2].all()
    envs.close()
    log.wait_for(lambda: len(log.of("close")) == N)


def test_sources_that_do_not_fit(logged: LiveServer) -> None:
    one = GenericEnvClient(base_url=logged)
    for source in ([one, one, one], [one]):
        with pytest.raises(ValueError, match="3 different clients"):
            VectorEnv(source, N)
    with pytest.raises(ValueError, match="at least 1"):
        VectorEnv(logged, 0)
    with pytest.raises(ValueError, match="Sometimes"):
        VectorEnv(logged, 1, autoreset_mode="Sometimes")


def test_wrappers_of_gymnasium_work(served: Serving) -> None:
    envs = VectorEnv(served("CartPole-v1"), N)
    wrapped = DictInfoToList(RecordEpisodeStatistics(envs))
    assert "VectorEnv(CartPole-v1, num_envs=3)" in str(envs)
    wrapped.reset(seed=1)
    lengths = [one["episode"]["l"] for _ in range(100) for one in wrapped.step(np.zeros(N, int))[4] if "episode" in one]
    assert len(lengths) > N
    assert all(7 < length < 12 for length in lengths)  # leaning to one side
    wrapped.close()


def test_closed_is_closed_also_in_mid_step(logged: LiveServer, log: Log) -> None:
    envs = VectorEnv(logged, N)
    envs.reset()
    envs.step_async(np.full(N, 4))
    log.wait_for(lambda: len(log.of("step")) == N)
    envs.close()
    envs.close()
    with pytest.raises(ClosedEnvironmentError):
        envs.step(np.zeros(N, int))
    for _, one in log.of("init"):
        one.gate.set()
    log.wait_for(lambda: len(log.of("close")) == N)


def test_a_dropped_environment_ends_its_sessions(logged: LiveServer, log: Log) -> None:
    envs = VectorEnv(logged, N)
    envs.reset()
    envs.step(np.zeros(N, int))
    del envs
    gc.collect()
    log.wait_for(lambda: len(log.of("close")) == N)


def test_a_client_that_was_closed_by_its_owner_says_so(logged: LiveServer) -> None:
    clients = [GenericEnvClient(base_url=logged) for _ in range(N)]
    envs = VectorEnv(list(clients), N)
    envs.reset()
    clients[1].sync().close()
    with pytest.raises(SessionClosedError):
        envs.step(np.zeros(N, int))
    envs.close()


def test_spaces_that_are_given_are_not_asked_for() -> None:
    space = spaces.Box(0, 1, (2,), np.float64)
    envs = VectorEnv("http://127.0.0.1:9", 2, observation_space=space, action_space=spaces.Discrete(3))
    assert envs.observation_space.shape == (2, 2)
    assert envs.observation_space.dtype == np.float64
    assert envs.action_space == spaces.MultiDiscrete([3, 3])
    envs.close()
