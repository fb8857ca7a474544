"""A tab that an environment's author makes with Gradio, and what it plays with: `WebInterfaceManager`.

Gradio is not needed, and is imported only where it is installed and a builder was given to `create_app`. Each visitor
of the tab has a session of their own, as on the rest of the page.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, ValidationError

from openenv.core.env_server.calls import Work, env_raised, validation_error
from openenv.core.env_server.interfaces import Environment, default_metadata
from openenv.core.env_server.runner import Crash, EnvRunner
from openenv.core.env_server.serialization import (
    deserialize_action_with_preprocessing,
    serialize_observation,
    serialize_state,
)
from openenv.core.env_server.sessions import Session, SessionManager, Setup
from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["ActionLog", "EpisodeState", "WebInterfaceManager", "action_fields", "gradio_is_here", "mount_tab"]

logger = logging.getLogger("openenv.server")

PATH = "/web/custom"
MAX_LOGS = 1000

Builder = Callable[..., Any]


class ActionLog(BaseModel):
    """One step of an episode."""

    timestamp: str
    action: dict[str, Any]
    observation: dict[str, Any]
    reward: bool | int | float | None = None
    done: bool = False
    step_count: int = 0


class EpisodeState(BaseModel):
    """What a visitor has seen of the episode."""

    episode_id: str | None = None
    step_count: int = 0
    current_observation: dict[str, Any] | None = None
    action_logs: list[ActionLog] = Field(default_factory=list)
    is_reset: bool = True


class _Visit:
    """A visitor's session, and what they have seen in it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.episode = EpisodeState()
        self.state: dict[str, Any] | None = None


class WebInterfaceManager:
    """Plays an environment for the callbacks of a Gradio tab.

    Args:
        env: the environment, or what makes one.
        action_cls: its action class.
        observation_cls: its observation class.
        metadata: what is known of it.
        sessions: where visitors get their sessions; without it there is one session, for ``env``.
        idle_timeout_s: seconds of silence after which a session ends; None for never.
    """

    def __init__(
        self,
        env: Environment[Any, Any, Any] | Callable[[], Any],
        action_cls: type[Action],
        observation_cls: type[Observation],
        metadata: EnvironmentMetadata | None = None,
        *,
        sessions: SessionManager | None = None,
        idle_timeout_s: float | None = None,
    ) -> None:
        name = getattr(env, "__name__", type(env).__name__)
        made = env if isinstance(env, Environment) else None
        self._env = made
        self._sessions = sessions or SessionManager(Setup(factory=lambda: made or env(), name=name))  # type: ignore[operator]
        self._idle_timeout_s = idle_timeout_s
        self._visits: dict[str, _Visit] = {}
        self.action_cls = action_cls
        self.observation_cls = observation_cls
        self.metadata = metadata or default_metadata(name)

    @property
    def env(self) -> Environment[Any, Any, Any]:
        """The environment that this was made with.

        Raises:
            RuntimeError: it was made with a factory: each visitor has an environment of their own, on its own thread.
        """
        if self._env is None:
            raise RuntimeError("each visitor has an environment of their own: use reset_environment and its siblings")
        return self._env

    @property
    def episode_state(self) -> EpisodeState:
        """What this visitor has seen of the episode."""
        visit = self._visits.get(_visitor())
        return EpisodeState() if visit is None else visit.episode

    async def reset_environment(self, reset_kwargs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Begin an episode, in this visitor's session; opens one where there is none.

        Args:
            reset_kwargs: arguments of the environment's reset.

        Returns:
            ``observation``, ``reward``, ``done``, and ``metadata`` if there is any.

        Raises:
            OpenEnvError: there is no place for a session.
            CallError: the environment raised.
        """
        visit = self._visit or await self._open()
        data = await self._run(visit, "reset", lambda: ((), dict(reset_kwargs or {})))
        visit.episode = EpisodeState(
            episode_id=(visit.state or {}).get("episode_id"), current_observation=data["observation"]
        )
        return data

    async def step_environment(self, action_data: Mapping[str, Any]) -> dict[str, Any]:
        """Take a step in this visitor's session.

        Args:
            action_data: the fields of the action, as a form has them.

        Returns:
            As `reset_environment`.

        Raises:
            RuntimeError: this visitor has no session, or it is over.
            CallError: the action was refused, or the environment raised.
        """
        visit = self._visit
        if visit is None:
            raise RuntimeError("there is no session, or it has ended: begin a new episode")
        data = await self._run(
            visit, "step", lambda: ((deserialize_action_with_preprocessing(action_data, self.action_cls),), {})
        )
        episode, state = visit.episode, visit.state or {}
        episode.is_reset = False
        episode.step_count = state.get("step_count") or 0
        episode.current_observation = data["observation"]
        told = {"observation": data["observation"], "reward": data["reward"], "done": data["done"]}
        now = datetime.now(UTC).isoformat()
        log = ActionLog(timestamp=now, action=dict(action_data), step_count=episode.step_count, **told)
        episode.action_logs = [*episode.action_logs, log][-MAX_LOGS:]
        return data

    def get_state(self) -> dict[str, Any]:
        """The state of this visitor's environment, as it was after their last call.

        Raises:
            RuntimeError: there was none in this session.
        """
        visit = self._visit
        if visit is None or visit.state is None:
            raise RuntimeError("there is no session, or it has ended: begin a new episode")
        return visit.state

    @property
    def _visit(self) -> _Visit | None:
        visit = self._visits.get(_visitor())
        return None if visit is None or visit.session.machine.over else visit

    async def _open(self) -> _Visit:
        session = await self._sessions.open(idle_timeout_s=self._idle_timeout_s)
        await self._sessions.bounded(session.ready())
        who = _visitor()
        visit = self._visits[who] = _Visit(session)
        session.ending.add_done_callback(lambda _: self._visits[who] is visit and self._visits.pop(who))
        return visit

    async def _run(
        self, visit: _Visit, method: str, arguments: Callable[[], tuple[tuple[Any, ...], Mapping[str, Any]]]
    ) -> dict[str, Any]:
        """Run a call and read the state after it, as one request of the session."""
        told: dict[str, Any] = {}

        async def work(runner: EnvRunner) -> bytes:
            try:
                told.update(await runner.call(method, arguments, serialize_observation))
                runner.steps += method == "step"
                visit.state = await runner.read(lambda env: serialize_state(env.state))
            except Crash as crash:
                raise env_raised(crash.cause, f"{runner.name}.{method}") from crash.cause
            except ValidationError as error:
                raise validation_error(error) from error
            except Exception as error:  # a state that cannot be read or written is the environment's own fault
                raise env_raised(error, f"{runner.name}.{method}") from error
            return b""

        request: Work = work
        await self._sessions.bounded(visit.session.call(request))
        return told


def gradio_is_here() -> bool:
    """Whether Gradio is installed; warns that the tab needs it where it is not."""
    if "gradio" in sys.modules or importlib.util.find_spec("gradio") is not None:
        return True
    logger.warning(
        "gradio_builder was given, but Gradio is not installed: the page is served without its tab. "
        "To have it: pip install gradio"
    )
    return False


def mount_tab(app: FastAPI, builder: Builder, manager: WebInterfaceManager, title: str) -> None:
    """Build the tab and add it to the app, below ``/web/custom``.

    Args:
        app: the app.
        builder: called with the manager, the fields of the action, the metadata, whether the action is made of tokens,
            the title, and some words on how to connect.
        manager: what its callbacks play with.
        title: heading of the page.

    Raises:
        TypeError: the builder did not return ``gradio.Blocks``.
    """
    import gradio

    words = "### Connect\n\nA client opens a session of its own; see the README of this environment."
    chat = any("Tensor" in str(field.annotation) for field in _tokens(manager.action_cls))
    blocks = builder(manager, action_fields(manager.action_cls), manager.metadata, chat, title, words)
    if not isinstance(blocks, gradio.Blocks):
        raise TypeError(f"gradio_builder must return a gradio.Blocks, not {type(blocks).__name__}")
    blocks.title = title
    gradio.mount_gradio_app(app, blocks, path=PATH)


def action_fields(action_cls: type[Action]) -> list[dict[str, Any]]:
    """The fields of an action as a builder of forms wants them: one dict each."""
    try:
        schema = action_cls.model_json_schema()
    except Exception:  # fields without a JSON Schema: a builder that wants them knows its own action
        return []
    required = schema.get("required", ())
    return [
        {
            "name": name,
            "type": _input_type(name, field),
            "required": name in required,
            "description": field.get("description", ""),
            "default_value": field.get("default"),
            "choices": field.get("enum"),
            "min_value": field.get("minimum"),
            "max_value": field.get("maximum"),
            "min_length": field.get("minLength"),
            "max_length": field.get("maxLength"),
            "pattern": field.get("pattern"),
            "placeholder": "",
            "help_text": field.get("description", ""),
        }
        for name, field in schema.get("properties", {}).items()
        if name != "metadata"
    ]


def _input_type(name: str, field: Mapping[str, Any]) -> str:
    lowered = name.lower()
    if "tokens" in lowered:
        return "tensor"
    if "enum" in field:
        return "select"
    if field.get("type") == "string":
        long = field.get("maxLength", 0) > 100 or "message" in lowered or "code" in lowered
        return "textarea" if long else "text"
    return {"boolean": "checkbox", "integer": "number", "number": "number"}.get(str(field.get("type")), "text")


def _tokens(action_cls: type[Action]) -> list[Any]:
    return [field for name, field in action_cls.model_fields.items() if name == "tokens"]


def _visitor() -> str:
    """Who is being served: Gradio names the visitor of each callback."""
    context = sys.modules.get("gradio.context")
    request = None if context is None else context.LocalContext.request.get(None)
    return str(getattr(request, "session_hash", None) or "")
