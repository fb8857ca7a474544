"""Arrays between real ends: ours with the ``msgpack`` feature and without it, the real 0.10.0, and a cut in between."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import pytest

from openenv import GenericEnvClient
from openenv.core.arrays import ArraySpec, Bytes
from openenv.core.env_client import EnvClient
from openenv.core.env_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from openenv.testing import FaultProxy
from support.live import LiveServer, serve


class Push(Action):
    force: Annotated[np.ndarray, ArraySpec("float32", (3,))]


class Seen(Observation):
    pixels: Annotated[np.ndarray, ArraySpec("uint8", (8, 8, 4))]
    force: Annotated[np.ndarray, ArraySpec("float32", (3,))]
    blob: Bytes = b""
    extra: Any = None


class Camera(Environment[Push, Seen, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def look(self, force: np.ndarray) -> Seen:
        pixels = np.random.default_rng(self.steps).integers(0, 256, (8, 8, 4), "uint8")
        extra = {"odd": np.array([np.nan, np.inf, -0.0], "float16"), "kind": force.dtype.str}
        return Seen(pixels=pixels, force=force, blob=b"\xff\x00", extra=extra, reward=float(force.sum()))

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Seen:
        self.steps = 0
        return self.look(np.zeros(3, "float32"))

    def step(self, action: Push, timeout_s: float | None = None, **kwargs: Any) -> Seen:
        self.steps += 1
        return self.look(action.force)

    @property
    def state(self) -> State:
        return State(step_count=self.steps, rows=np.eye(2, dtype="int16"))


class CameraClient(EnvClient[Push, Seen, State]):
    pass


@pytest.fixture(scope="module")
def url() -> Any:
    with serve(create_app(Camera, Push, Seen, max_concurrent_envs=4)) as url:
        yield url


def expected(step: int) -> np.ndarray:
    return np.random.default_rng(step).integers(0, 256, (8, 8, 4), "uint8")


@pytest.mark.parametrize("features", [None, "seq,cancel,resume,queue", "none"])
def test_a_typed_observation_is_what_the_env_returned(url: str, features: str | None, monkeypatch: Any) -> None:
    if features is not None:
        monkeypatch.setenv("OPENENV_FEATURES", features)
    with CameraClient(base_url=url).sync() as client:
        client.reset()
        seen = client.step(Push(force=np.array([1, 2, 3], "float32"))).observation
    np.testing.assert_array_equal(seen.pixels, expected(1))
    assert (seen.pixels.dtype, seen.pixels.flags.writeable) == (np.dtype("uint8"), True)
    np.testing.assert_array_equal(seen.force, np.array([1, 2, 3], "float32"))
    assert seen.extra["kind"] == "<f4"
    assert (seen.blob, seen.reward) == (b"\xff\x00", 6.0)
    odd = np.asarray(seen.extra["odd"], "float16")
    np.testing.assert_array_equal(odd, np.array([np.nan, np.inf, -0.0], "float16"))
    assert isinstance(seen.extra["odd"], np.ndarray if features is None else list)


def test_without_types_arrays_are_arrays_where_both_ends_have_them(url: str) -> None:
    with GenericEnvClient(base_url=url).sync() as client:
        client.reset()
        assert "msgpack" in client.async_client.features
        seen = client.step({"force": np.array([1, 2, 3], "float32")}).observation
        np.testing.assert_array_equal(seen["pixels"], expected(1))
        seen = client.step({"force": [1, 2, 3]}).observation  # text is as good
        np.testing.assert_array_equal(seen["pixels"], expected(2))
        np.testing.assert_array_equal(client.state()["rows"], np.eye(2, dtype="int16"))


def test_a_wrong_array_costs_its_step_only(url: str) -> None:
    from openenv import ActionValidationError

    with GenericEnvClient(base_url=url).sync() as client:
        client.reset()
        with pytest.raises(ActionValidationError, match=r"shape \(2,\)") as caught:
            client.step({"force": np.zeros(2, "float32")})
        assert caught.value.field == "force"
        with pytest.raises(ActionValidationError, match="force"):
            client.step({"force": np.zeros(3, "complex64")})
        assert client.step({"force": np.zeros(3, "float32")}).reward == 0.0


def test_a_binary_call_that_is_cut_is_applied_once(url: LiveServer) -> None:
    with FaultProxy("127.0.0.1", url.port) as proxy, CameraClient(base_url=proxy.url).sync() as client:
        client.reset()
        for step in range(1, 5):
            if step % 2:
                proxy.cut_on_reply("rst", proxy.accepted)
            seen = client.step(Push(force=np.ones(3, "float32"))).observation
            np.testing.assert_array_equal(seen.pixels, expected(step))
        assert client.async_client.session.resumes >= 2
        assert client.state().step_count == 4
