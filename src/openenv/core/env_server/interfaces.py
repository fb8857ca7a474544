"""What an environment author implements: `Environment`, and the small protocols beside it.

`Action`, `Observation` and `State` are exported here too, because env packages import them from this module.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast, runtime_checkable

from typing_extensions import TypedDict  # pydantic takes no other as a field before Python 3.12

from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State
from openenv.core.rubrics.base import discard

__all__ = [
    "Action",
    "Environment",
    "EnvironmentMetadata",
    "Message",
    "ModelTokenizer",
    "Observation",
    "State",
    "TaskProvider",
    "Transform",
]

ActT = TypeVar("ActT", bound=Action)
ObsT = TypeVar("ObsT", bound=Observation)
StateT = TypeVar("StateT", bound=State)


class Message(TypedDict):
    """One turn of a conversation."""

    role: str
    content: str


class ModelTokenizer(Protocol):
    """The part of a tokenizer that chat environments use."""

    def apply_chat_template(
        self,
        conversation: list[Message],
        tokenize: bool = True,
        return_tensors: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Turn a conversation into token ids."""
        ...

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **kwargs: Any) -> str:
        """Turn token ids into text."""
        ...


class Transform(ABC, Generic[ObsT]):
    """Changes an observation before it leaves the environment, to add a reward, say."""

    @abstractmethod
    def __call__(self, observation: ObsT) -> ObsT:
        """Return the changed observation."""


@runtime_checkable
class TaskProvider(Protocol):
    """An environment over a data set: it can list its tasks without being reset.

    Add these methods to an `Environment` subclass, sync or async; nothing is inherited. They are called on a
    fresh environment. To play a task, pass its split and index to ``reset()``.
    """

    def list_splits(self) -> Any:
        """Splits, as names, dicts or models."""
        ...

    def list_tasks(self, split: str) -> Any:
        """All tasks of a split."""
        ...

    def num_tasks(self, split: str) -> Any:
        """Number of tasks in a split."""
        ...

    def get_task(self, split: str, index: int) -> Any:
        """One task. Raises IndexError for an index out of range."""
        ...

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> Any:
        """Tasks ``start`` to ``stop``, as a slice would give them."""
        ...


class Environment(ABC, Generic[ActT, ObsT, StateT]):
    """One episode at a time, behind ``reset``, ``step`` and ``state``.

    The server makes one instance per session and runs its constructor, ``reset``, ``step``, ``state`` and
    ``close`` on one thread, one call at a time. Raise `InvalidActionError` for a move that is not allowed: the
    client raises the same error, and the episode goes on. After ``done`` the server still passes steps on; what
    they do is up to the environment.

    A class that overrides ``reset_async`` or ``step_async`` has these run on the server's event loop, and
    promises not to block it.

    Calling ``super().__init__()`` is not required.

    Args:
        transform: applied to observations by `_apply_transform`.
        rubric: gives the reward in `_apply_rubric`.
    """

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = False
    """Whether instances share no state, so that several may live in one process."""
    REQUIRES_SINGLE_THREAD_EXECUTOR: ClassVar[bool] = False
    """Whether all instances of the process must run on one and the same thread."""

    transform: Transform[ObsT] | None = None
    rubric: Any = None

    def __init__(self, transform: Transform[ObsT] | None = None, rubric: Any = None) -> None:
        self.transform = transform
        self.rubric = rubric

    @abstractmethod
    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> ObsT:
        """Begin an episode and return its first observation.

        Args:
            seed: makes the episode repeatable.
            episode_id: name for the episode.
            kwargs: what the client passed to ``reset()``. A key that the signature does not take is dropped
                with a warning in the server's log.
        """

    @abstractmethod
    def step(self, action: ActT, timeout_s: float | None = None, **kwargs: Any) -> ObsT:
        """Apply one action.

        Args:
            action: the validated action.
            timeout_s: seconds the caller allows, where it said so (over HTTP).
            kwargs: further keys of an HTTP request.

        Raises:
            InvalidActionError: the move is not allowed; nothing has changed.
        """

    @property
    @abstractmethod
    def state(self) -> StateT:
        """Where the episode stands."""

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> ObsT:
        """Like `reset`; override it for an environment that awaits."""
        return self.reset(seed=seed, episode_id=episode_id, **kwargs)

    async def step_async(self, action: ActT, timeout_s: float | None = None, **kwargs: Any) -> ObsT:
        """Like `step`; override it for an environment that awaits."""
        return self.step(action, timeout_s=timeout_s, **kwargs)

    def get_metadata(self) -> EnvironmentMetadata:
        """Name, description and version, for ``GET /metadata``."""
        return default_metadata(type(self).__name__)

    def cancel(self) -> None:
        """End the running call early, because its caller gave up: override it if a call can take long.

        Called while ``reset`` or ``step`` runs, from another thread (an ``async def`` is run on the event loop), at
        most once a call; the next call waits for it to return. It should make the running call return soon: with an
        observation, which the caller is then given, or by raising anything, which is told as *cancelled, perhaps
        applied*. It may come when the call has just ended, so a call should clear what ``cancel`` has set as it
        begins. Without an override a call goes on to its end, except that an environment that overrides
        ``step_async`` or ``reset_async`` is cancelled where it awaits.
        """
        return

    def close(self) -> None:
        """Give back what the environment holds. Called once, when its session ends."""
        return

    def render_web(self, observation: dict[str, Any]) -> str | None:
        """HTML that draws an observation in the web interface; None for the plain list of fields."""
        return None

    def web_actions(self, observation: dict[str, Any]) -> Sequence[tuple[str, dict[str, Any]]]:
        """Actions the web interface offers as buttons, each a label and the action's fields."""
        return []

    # ------------------------------------------------------------ helpers for subclasses

    def _apply_transform(self, observation: ObsT) -> ObsT:
        """The observation as the transform returns it, or as it is."""
        return observation if self.transform is None else self.transform(observation)

    def _apply_rubric(self, action: ActT, observation: ObsT) -> float:
        """The rubric's score of a step; 0.0 without a rubric.

        Raises:
            TypeError: the rubric is async; call `_apply_rubric_async` from ``step_async``.
        """
        if self.rubric is None:
            return 0.0
        score = self.rubric(action, observation)
        if isinstance(score, float):
            return float(score)  # of a kind that may be awaited too, perhaps
        if inspect.isawaitable(score):
            discard(score)
            raise TypeError("the rubric is async: override step_async and await self._apply_rubric_async(...)")
        return cast(float, score)

    async def _apply_rubric_async(self, action: ActT, observation: ObsT) -> float:
        """The score of a sync or async rubric; 0.0 without a rubric."""
        if self.rubric is None:
            return 0.0
        score = self.rubric(action, observation)
        return cast(float, await score if inspect.isawaitable(score) else score)

    def _reset_rubric(self) -> None:
        """Let the rubric forget the last episode.

        Raises:
            TypeError: the rubric's reset is async; call `_reset_rubric_async` from ``reset_async``.
        """
        done = self._rubric_reset("reset")
        if inspect.isawaitable(done):
            discard(done)
            raise TypeError("the rubric's reset is async: override reset_async and await self._reset_rubric_async()")

    async def _reset_rubric_async(self) -> None:
        """Let a sync or async rubric forget the last episode: with its ``reset_async()``, if it has one."""
        done = self._rubric_reset("reset_async", "reset")
        if inspect.isawaitable(done):
            await done

    def _rubric_reset(self, *names: str) -> Any:
        resets = (getattr(self.rubric, name, None) for name in names)
        reset: Callable[[], Any] | None = next(filter(None, resets), None)
        return None if reset is None else reset()


def default_metadata(class_name: str) -> EnvironmentMetadata:
    """What is known of an environment that says nothing of itself."""
    return EnvironmentMetadata(name=class_name, description=f"{class_name} environment", version="1.0.0")
