"""Rubrics made of rubrics. Parts may be synchronous and asynchronous; one asynchronous part makes the whole so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from openenv.core.rubrics.base import Rubric, discard, is_pending, settled

__all__ = ["Gate", "RubricDict", "RubricList", "Sequential", "WeightedSum"]


class _AwaitableScore(float):
    """A score that may also be awaited: programs written for other OpenEnv packages await a synchronous `Sequential`
    where an event loop runs, because there it is a coroutine."""

    def __await__(self) -> Generator[Any, None, float]:
        return float(self)
        yield


class Sequential(Rubric):
    """Asks rubrics in order and gives the last score; stops at the first 0 and gives that. Without rubrics: 1.0.

    Args:
        rubrics: the rubrics, first one first.
    """

    def __init__(self, *rubrics: Rubric) -> None:
        self._rubric_list = _register(self, rubrics)

    def forward(self, action: Any, observation: Any) -> Any:
        """See `Rubric.forward`."""
        score: Any = 1.0
        for number, rubric in enumerate(self._rubric_list, start=1):
            score = rubric(action, observation)
            if is_pending(score):
                return self._go_on(score, number, action, observation)
            if score == 0.0:
                return 0.0
        return +score if isinstance(score, _AwaitableScore) else score

    async def _go_on(self, pending: Awaitable[Any], number: int, action: Any, observation: Any) -> Any:
        score = await pending
        for rubric in self._rubric_list[number:]:
            if score == 0.0:
                return 0.0
            score = await settled(rubric(action, observation))
        return 0.0 if score == 0.0 else score

    def __call__(self, action: Any, observation: Any) -> Any:
        """See `Rubric.__call__`."""
        score = super().__call__(action, observation)
        return _AwaitableScore(score) if type(score) is float and asyncio._get_running_loop() is not None else score

    def __len__(self) -> int:
        return len(self._rubric_list)

    def __getitem__(self, index: int) -> Rubric:
        return self._rubric_list[index]


class Gate(Rubric):
    """Gives a rubric's score if it reaches a threshold, else 0.

    Args:
        rubric: the rubric.
        threshold: the least score that passes.
    """

    def __init__(self, rubric: Rubric, threshold: float = 1.0) -> None:
        self.rubric = rubric
        self.threshold = threshold

    def forward(self, action: Any, observation: Any) -> Any:
        """See `Rubric.forward`."""
        score = self.rubric(action, observation)
        return self._wait(score) if is_pending(score) else self._pass(score)

    async def _wait(self, pending: Awaitable[Any]) -> Any:
        return self._pass(await pending)

    def _pass(self, score: Any) -> Any:
        return score if score >= self.threshold else 0.0


class WeightedSum(Rubric):
    """Adds up the scores of rubrics, each times its weight. Asynchronous ones run at the same time.

    Args:
        rubrics: the rubrics.
        weights: a weight for each; they add up to 1.

    Raises:
        ValueError: not as many weights as rubrics, or they do not add up to 1.
    """

    def __init__(self, rubrics: Sequence[Rubric], weights: Sequence[float]) -> None:
        if len(rubrics) != len(weights):
            raise ValueError(f"the number of rubrics ({len(rubrics)}) must match that of weights ({len(weights)})")
        if not abs(sum(weights) - 1.0) <= 1e-6:
            raise ValueError(f"weights must sum to 1.0, not to {sum(weights)}")
        self._rubric_list = _register(self, rubrics)
        self._weights = list(weights)

    def forward(self, action: Any, observation: Any) -> Any:
        """See `Rubric.forward`."""
        scores: list[Any] = []
        try:
            for rubric in self._rubric_list:
                scores.append(rubric(action, observation))
        except BaseException:  # raised on; no coroutine is left unawaited
            for score in scores:
                discard(score)
            raise
        return self._wait(scores) if any(map(is_pending, scores)) else self._sum(scores)

    async def _wait(self, scores: list[Any]) -> Any:
        tasks = [asyncio.ensure_future(settled(score)) for score in scores]
        try:
            return self._sum(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _sum(self, scores: Sequence[Any]) -> Any:
        return sum((score * weight for score, weight in zip(scores, self._weights, strict=True)), 0.0)

    @property
    def weights(self) -> list[float]:
        """The weights; a copy."""
        return list(self._weights)


class RubricList(Rubric):
    """A list of rubrics, as a part of a rubric that decides which to ask.

    Args:
        rubrics: rubrics to begin with.
    """

    def __init__(self, rubrics: Iterable[Rubric] | None = None) -> None:
        self._rubrics: list[Rubric] = []
        self.extend(rubrics or ())

    def forward(self, action: Any, observation: Any) -> Any:
        """A list has no score of its own.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("RubricList has no score; call its rubrics from the rubric that it is a part of")

    def append(self, rubric: Rubric) -> None:
        """Add a rubric."""
        setattr(self, f"rubric_{len(self._rubrics)}", rubric)
        self._rubrics.append(rubric)

    def extend(self, rubrics: Iterable[Rubric]) -> None:
        """Add rubrics."""
        for rubric in rubrics:
            self.append(rubric)

    def __len__(self) -> int:
        return len(self._rubrics)

    def __getitem__(self, index: int) -> Rubric:
        return self._rubrics[index]

    def __iter__(self) -> Iterator[Rubric]:
        return iter(self._rubrics)


class RubricDict(Rubric):
    """Rubrics by name, as a part of a rubric that decides which to ask.

    Args:
        rubrics: rubrics to begin with.
    """

    def __init__(self, rubrics: Mapping[str, Rubric] | None = None) -> None:
        self._rubric_dict: dict[str, Rubric] = {}
        self.update(rubrics or {})

    def forward(self, action: Any, observation: Any) -> Any:
        """A dict has no score of its own.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("RubricDict has no score; call its rubrics from the rubric that it is a part of")

    def __setitem__(self, key: str, rubric: Rubric) -> None:
        self._rubric_dict[key] = rubric
        if hasattr(type(self), key):  # as "items" is: the name of a child, but no attribute
            self._rubric_children[key] = rubric
        else:
            setattr(self, key, rubric)

    def __getitem__(self, key: str) -> Rubric:
        return self._rubric_dict[key]

    def __contains__(self, key: object) -> bool:
        return key in self._rubric_dict

    def __len__(self) -> int:
        return len(self._rubric_dict)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rubric_dict)

    def keys(self) -> Iterator[str]:
        """The names."""
        return iter(self._rubric_dict)

    def values(self) -> Iterator[Rubric]:
        """The rubrics."""
        return iter(self._rubric_dict.values())

    def items(self) -> Iterator[tuple[str, Rubric]]:
        """Names and rubrics."""
        return iter(self._rubric_dict.items())

    def update(self, rubrics: Mapping[str, Rubric]) -> None:
        """Add or replace rubrics."""
        for key in rubrics:
            self[key] = rubrics[key]


def _register(parent: Rubric, rubrics: Iterable[Rubric]) -> list[Rubric]:
    found = list(rubrics)
    for number, rubric in enumerate(found):
        setattr(parent, f"rubric_{number}", rubric)
    return found
