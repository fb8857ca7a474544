"""What trainers import of the harness: traces of model calls, and the sampling that they allow."""

from __future__ import annotations

from typing import Any

import pytest

from openenv.core.harness import TrainingTrace, TrainingTurn
from openenv.core.harness.capture.upstream import training_sampling

TURN: dict[str, Any] = {
    "node_id": "a",
    "prompt_token_ids": [1, 2],
    "completion_token_ids": [3],
    "per_token_logps": [-0.5],
    "loss_mask": [0, 0, 1],
}


def test_a_trace_survives_the_way_through_its_records() -> None:
    trace = TrainingTrace(
        turns=[TrainingTurn(**TURN, metadata={"model": "m"}), TrainingTurn(**{**TURN, "node_id": "b"})]
    )
    records = trace.to_trace_entries()
    assert [record["metadata"] for record in records] == [{"model": "m", "node_id": "a"}, {"node_id": "b"}]
    again = TrainingTrace.from_entries(records)
    assert again.to_trace_entries() == records


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"per_token_logps": []}, "1 tokens were said, and there are 0"),
        ({"loss_mask": [0, 1]}, r"the mask has 2 entries for 2 \+ 1 tokens"),
        ({"loss_mask": [1, 0, 1]}, "0 for the tokens of the prompt"),
        ({"loss_mask": [0, 0, 2]}, "of 0 and 1"),
        ({"node_id": ""}, "node_id"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_turn_whose_parts_do_not_fit_is_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        TrainingTurn(**{**TURN, **change})


def test_two_turns_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="several turns have the node_id 'a'"):
        TrainingTrace(turns=[TrainingTurn(**TURN), TrainingTurn(**TURN)])


def test_the_sampling_of_a_training_is_the_whole_distribution() -> None:
    assert training_sampling(None) == {}
    found = training_sampling({"temperature": 1, "top_k": 0})
    assert found == {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
    }


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0},
        {"temperature": True},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 1, "best_of": 2},
        [],
    ],
)
def test_other_sampling_is_refused(sampling: Any) -> None:
    with pytest.raises(ValueError, match=r"training|mapping"):
        training_sampling(sampling)
