"""`Rubric`: one reward, computed from an action and the observation that followed.

A rubric is synchronous or asynchronous by what it is made of, never by where it is called: it is asynchronous if its
``forward`` is (or returns something to await, as a part of it does) or if one of its hooks is. Calling a synchronous
rubric returns the score; calling an asynchronous one returns a coroutine of it.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Self

__all__ = ["Rubric"]


class Rubric(ABC):
    """Computes a reward; subclass it and write `forward`.

    A rubric that is assigned to an attribute of another becomes its child: it can be found by its path, and is reset
    with its parent. Calling ``super().__init__()`` is not required.

    Attributes:
        last_score: the score of the last call; None before it.
    """

    last_score: float | None = None

    _rubric_children: dict[str, Rubric]
    _forward_hooks: list[Callable[..., Any]]
    _forward_pre_hooks: list[Callable[..., Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        rubric = super().__new__(cls)
        object.__setattr__(rubric, "_rubric_children", {})
        object.__setattr__(rubric, "_forward_hooks", [])
        object.__setattr__(rubric, "_forward_pre_hooks", [])
        return rubric

    def __init__(self) -> None:
        return  # there is nothing left to do; a subclass may call it or not

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Rubric):
            self._rubric_children[name] = value
        else:
            self._rubric_children.pop(name, None)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        self._rubric_children.pop(name, None)
        object.__delattr__(self, name)

    @abstractmethod
    def forward(self, action: Any, observation: Any) -> Any:
        """Compute the score: a number, mostly from 0 to 1. May be ``async def``.

        Args:
            action: what the agent did.
            observation: what came of it.
        """
        raise NotImplementedError

    def __call__(self, action: Any, observation: Any) -> Any:
        """Compute the score, with the hooks around it.

        Returns:
            The score, or for an asynchronous rubric a coroutine of it.
        """
        hooks = (*self._forward_pre_hooks, *self._forward_hooks)
        if inspect.iscoroutinefunction(self.forward) or any(map(_is_async, hooks)):
            return self._score_async(action, observation)
        for hook in self._forward_pre_hooks:
            hook(self, action, observation)
        score = self.forward(action, observation)
        if is_pending(score):
            return self._finish_async(action, observation, score)
        self.last_score = score
        for hook in self._forward_hooks:
            hook(self, action, observation, score)
        return score

    async def _score_async(self, action: Any, observation: Any) -> Any:
        for hook in self._forward_pre_hooks:
            await settled(hook(self, action, observation))
        return await self._finish_async(action, observation, self.forward(action, observation))

    async def _finish_async(self, action: Any, observation: Any, pending: Any) -> Any:
        score = self.last_score = await settled(pending)
        for hook in self._forward_hooks:
            await settled(hook(self, action, observation, score))
        return score

    # ------------------------------------------------------------------ hooks

    def register_forward_hook(self, hook: Callable[[Rubric, Any, Any, float], Any]) -> None:
        """Have ``hook(rubric, action, observation, score)`` called after each score."""
        self._forward_hooks.append(hook)

    def register_forward_pre_hook(self, hook: Callable[[Rubric, Any, Any], Any]) -> None:
        """Have ``hook(rubric, action, observation)`` called before each score."""
        self._forward_pre_hooks.append(hook)

    # --------------------------------------------------------------- the tree

    def children(self) -> Iterator[Rubric]:
        """The direct parts."""
        yield from self._rubric_children.values()

    def named_children(self) -> Iterator[tuple[str, Rubric]]:
        """The direct parts with their names."""
        yield from self._rubric_children.items()

    def rubrics(self) -> Iterator[Rubric]:
        """All parts below, depth first."""
        for _, rubric in self.named_rubrics():
            yield rubric

    def named_rubrics(self, prefix: str = "") -> Iterator[tuple[str, Rubric]]:
        """All parts below with their paths, depth first.

        Args:
            prefix: put before each path.
        """
        for name, child in self._rubric_children.items():
            path = f"{prefix}.{name}" if prefix else name
            yield path, child
            yield from child.named_rubrics(path)

    def get_rubric(self, path: str) -> Rubric:
        """Find a part by its path, as ``"code.syntax"``.

        Raises:
            KeyError: there is none.
        """
        found = self
        for name in path.split("."):
            try:
                found = found._rubric_children[name]
            except KeyError:
                raise KeyError(f"Rubric path not found: {path}") from None
        return found

    # ------------------------------------------------------------- its state

    def reset(self) -> Any:
        """Forget the last episode, parts included. An override that keeps something of its own calls this too.

        Returns:
            None; if a part's reset is asynchronous, a coroutine.
        """
        pending = [done for done in [child.reset() for child in self.children()] if is_pending(done)]
        return _await_all(pending) if pending else None

    def state_dict(self) -> dict[str, Any]:
        """The rubric's settings, to be kept with a checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over settings that `state_dict` gave."""
        return


def is_pending(value: Any) -> bool:
    """Whether a score is still to be awaited. A number is not, even one that may be awaited."""
    return inspect.isawaitable(value) and not isinstance(value, float)


async def settled(value: Any) -> Any:
    """A value, awaited if need be."""
    return await value if is_pending(value) else value


def discard(pending: Any) -> None:
    """Close a score that will not be awaited, and those that it would have waited for, so that none warns."""
    if not inspect.iscoroutine(pending):
        return
    for value in inspect.getcoroutinelocals(pending).values():
        for one in value if isinstance(value, list) else [value]:
            discard(one)
    pending.close()


async def _await_all(pending: list[Awaitable[Any]]) -> None:
    for one in pending:
        await one


def _is_async(hook: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(getattr(hook, "__call__", None))  # noqa: B004
