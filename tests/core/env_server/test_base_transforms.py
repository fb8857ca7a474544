"""The two basic transforms."""

from __future__ import annotations

from openenv.core.env_server.base_transforms import CompositeTransform, NullTransform
from openenv.core.env_server.interfaces import Transform
from openenv.core.env_server.types import Observation


class Note(Transform[Observation]):
    """Writes its name behind the others."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, observation: Observation) -> Observation:
        seen = [*observation.metadata.get("seen", []), self.name]
        return observation.model_copy(update={"metadata": {"seen": seen}})


def test_composite_applies_each_to_the_output_of_the_one_before() -> None:
    transform = CompositeTransform([Note("first"), Note("second"), NullTransform()])
    assert transform(Observation()).metadata == {"seen": ["first", "second"]}


def test_composite_of_nothing_and_null_give_the_same_object_back() -> None:
    observation = Observation(reward=1.0)
    assert CompositeTransform([])(observation) is observation
    assert NullTransform()(observation) is observation


def test_composite_does_not_follow_the_list_it_was_made_from() -> None:
    notes: list[Transform[Observation]] = [Note("one")]
    transform = CompositeTransform(notes)
    notes.append(Note("two"))
    assert transform(Observation()).metadata == {"seen": ["one"]}
