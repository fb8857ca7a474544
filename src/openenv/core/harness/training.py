"""What a trainer takes from a session whose agent ran its own loop: its model calls, with tokens and masks.

Who records them is not here: a session that can hands a `TrainingTrace` to its trainer.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["TrainingTrace", "TrainingTurn"]


class TrainingTurn(BaseModel):
    """One model call.

    Attributes:
        node_id: names it within its trace.
        prompt_token_ids: what the model saw.
        completion_token_ids: what it said.
        per_token_logps: log-probability of each token it said.
        loss_mask: 1 for a token that is trained on, else 0; prompt and completion.
        request: the call, as it was made.
        response: its answer.
        metadata: whatever else is known.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    node_id: str = Field(min_length=1)
    prompt_token_ids: list[int]
    completion_token_ids: list[int]
    per_token_logps: list[float]
    loss_mask: list[int]
    request: dict[str, Any] = Field(default_factory=dict)
    response: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        prompt, said = len(self.prompt_token_ids), len(self.completion_token_ids)
        if len(self.per_token_logps) != said:
            raise ValueError(f"{said} tokens were said, and there are {len(self.per_token_logps)} log-probabilities")
        if len(self.loss_mask) != prompt + said:
            raise ValueError(f"the mask has {len(self.loss_mask)} entries for {prompt} + {said} tokens")
        if not set(self.loss_mask) <= {0, 1} or any(self.loss_mask[:prompt]):
            raise ValueError("a mask is of 0 and 1, and 0 for the tokens of the prompt")
        return self


class TrainingTrace(BaseModel):
    """The model calls of one rollout, in order. Each is told apart by its ``node_id``."""

    model_config = ConfigDict(strict=True, extra="forbid")

    schema_version: Literal[1] = 1
    turns: list[TrainingTurn]

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        twice = [name for name, count in Counter(turn.node_id for turn in self.turns).items() if count > 1]
        if twice:
            raise ValueError(f"several turns have the node_id {twice[0]!r}")
        return self

    @classmethod
    def from_entries(cls, entries: list[dict[str, Any]]) -> Self:
        """A trace from records as `to_trace_entries` makes them; nothing is filled in.

        Raises:
            KeyError: a record has no tokens, mask or ``node_id``.
            ValueError: the parts of a record do not fit.
        """
        optional = ("request", "response", "metadata")
        needed = ("prompt_token_ids", "completion_token_ids", "per_token_logps", "loss_mask")
        turns = [
            TrainingTurn(
                node_id=entry["metadata"]["node_id"],
                **{name: entry[name] for name in needed},
                **{name: entry[name] for name in optional if name in entry},
            )
            for entry in entries
        ]
        return cls(turns=turns)

    def to_trace_entries(self) -> list[dict[str, Any]]:
        """The turns as plain records, for reward functions and viewers; ``node_id`` is in their metadata."""
        records = [turn.model_dump() for turn in self.turns]
        for record in records:
            record["metadata"] = {**record["metadata"], "node_id": record.pop("node_id")}
        return records
