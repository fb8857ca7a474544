"""A tab made with Gradio: what it plays with, and that it is added where Gradio is.

Gradio itself is not installed here; a stand-in of the two names that are used takes its place.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import httpx
import pytest
from fastapi import FastAPI
from pydantic import Field

from openenv.core.env_server import WebInterfaceManager, create_app
from openenv.core.env_server.calls import CallError
from openenv.core.env_server.gradio_tab import action_fields
from openenv.core.env_server.types import Action
from openenv.core.env_server.visitors import WebOptions
from support.envs import CountAction, CountEnv, CountObservation, CountState
from support.live import serve

request: ContextVar[Any] = ContextVar("request", default=None)


class Blocks:
    """Stands for ``gradio.Blocks``: a page that plays when it is asked for."""

    title = ""

    def __init__(self, play: Any = None) -> None:
        self.play = play


@pytest.fixture
def gradio(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for Gradio: its blocks become a route that is told who asks, as a callback is."""

    def mount(app: FastAPI, blocks: Blocks, path: str) -> FastAPI:
        inner = FastAPI()

        @inner.get("/")
        async def page(who: str = "") -> Any:
            request.set(SimpleNamespace(session_hash=who))
            return {"title": blocks.title, "seen": await blocks.play()}

        app.mount(path, inner)
        return app

    module, context = ModuleType("gradio"), ModuleType("gradio.context")
    module.Blocks, module.mount_gradio_app = Blocks, mount  # type: ignore[attr-defined]
    context.LocalContext = SimpleNamespace(request=request)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gradio", module)
    monkeypatch.setitem(sys.modules, "gradio.context", context)


def builder(manager: Any, fields: Any, metadata: Any, is_chat: bool, title: str, words: str) -> Blocks:
    async def play() -> Any:
        begun = await manager.reset_environment({"seed": 1})
        await manager.step_environment({"op": "inc"})
        return {
            "env_no": begun["observation"]["env_no"],
            "steps": manager.get_state()["step_count"],
            "logs": len(manager.episode_state.action_logs),
            "fields": [field["name"] for field in fields],
            "told": [metadata.name, is_chat, title, "###" in words],
        }

    return Blocks(play)


@pytest.mark.usefixtures("gradio")
def test_a_tab_is_added_and_each_of_its_visitors_has_a_session(env: type[CountEnv]) -> None:
    app = create_app(
        env,
        CountAction,
        CountObservation,
        env_name="count",
        gradio_builder=builder,
        custom_tab_name="Board",
        custom_tab_primary=True,
        title_override="Counting",
        state_cls=CountState,
        web=WebOptions(sessions=2),
    )
    with serve(app) as live, httpx.Client(base_url=live, trust_env=False, timeout=60) as web:
        told = web.get("/web/page").json()
        assert told["custom"] == {"name": "Board", "path": "custom/", "primary": True, "alone": False}
        seen = [web.get("/web/custom/", params={"who": who}).json() for who in ("a", "b", "a")]
    numbers = [one["seen"].pop("env_no") for one in seen]
    assert numbers[0] == numbers[2] != numbers[1]
    assert (
        seen
        == [
            {
                "title": "Counting",
                "seen": {"steps": 1, "logs": 1, "fields": ["op", "arg"], "told": ["count", False, "Counting", True]},
            }
        ]
        * 3
    )
    assert len(env.log.of("close")) == len(env.log.of("init")) == 2


@pytest.mark.usefixtures("gradio")
def test_what_is_no_blocks_is_refused(env: type[CountEnv]) -> None:
    with pytest.raises(TypeError, match=r"gradio_builder must return a gradio\.Blocks, not int"):
        create_app(env, CountAction, CountObservation, gradio_builder=lambda *a: 7, web=WebOptions())


async def test_a_manager_of_an_environment_of_ones_own(env: type[CountEnv]) -> None:
    own = env()
    manager = WebInterfaceManager(own, CountAction, CountObservation)
    assert manager.env is own
    assert manager.metadata.name == "CountEnv"
    with pytest.raises(RuntimeError, match="begin a new episode"):
        await manager.step_environment({"op": "inc"})
    with pytest.raises(RuntimeError, match="begin a new episode"):
        manager.get_state()
    assert manager.episode_state.current_observation is None
    assert (await manager.reset_environment())["observation"]["count"] == 0
    assert manager.episode_state.is_reset
    assert (await manager.step_environment({"op": "inc"}))["reward"] == 0.5
    (log,) = manager.episode_state.action_logs
    assert (log.action, log.reward, log.step_count) == ({"op": "inc"}, 0.5, 1)
    with pytest.raises(CallError, match="Invalid message"):
        await manager.step_environment({"op": 1})
    with pytest.raises(CallError, match="env boom"):
        await manager.step_environment({"op": "raise"})
    assert manager.get_state()["step_count"] == 1
    await manager._sessions.drain()
    env.log.wait_for("close")
    with pytest.raises(RuntimeError, match="begin a new episode"):
        await manager.step_environment({"op": "inc"})


def test_a_manager_of_a_factory_has_no_environment(env: type[CountEnv]) -> None:
    with pytest.raises(RuntimeError, match="each visitor has an environment of their own"):
        _ = WebInterfaceManager(env, CountAction, CountObservation).env


def test_fields_as_a_builder_wants_them() -> None:
    class FormAction(Action):
        code: str
        kind: Literal["a", "b"] = "a"
        number: int = Field(3, ge=1, le=5, description="How many.")
        on: bool = False
        tokens: list[int] = Field(default_factory=list)
        anything: Any = None

    fields = {field["name"]: field for field in action_fields(FormAction)}
    kinds = {name: field["type"] for name, field in fields.items()}
    assert kinds == {
        "code": "textarea",
        "kind": "select",
        "number": "number",
        "on": "checkbox",
        "tokens": "tensor",
        "anything": "text",
    }
    assert [fields["number"][key] for key in ("min_value", "max_value", "default_value")] == [1, 5, 3]
    assert fields["code"]["required"]
    assert fields["kind"]["choices"] == ["a", "b"]
