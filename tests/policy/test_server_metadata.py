"""What a server tells of itself: what it knows, nothing that it cannot know, and never an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from openenv._version import __version__
from openenv.policy.messages import encode_message
from openenv.policy.server_metadata import assemble


class Bare:
    pass


class Told:
    action_horizon = np.int64(8)
    action_dim = 7

    def metadata(self) -> dict[str, Any]:
        return {"algorithm": "PPO", "note": [1, 2]}


class Raising:
    action_dim = 7

    @property
    def action_horizon(self) -> int:
        raise KeyError("horizon")

    @property
    def metadata(self) -> dict[str, Any]:
        raise KeyError("metadata")


class RaisingMethod:
    def metadata(self) -> dict[str, Any]:
        raise KeyError("metadata")


class NotAMap:
    metadata = 3


def test_a_policy_that_tells_nothing() -> None:
    told = assemble(Bare()).data
    assert told == {
        "protocol_version": 1,
        "server": "openenv",
        "server_version": __version__,
        "policy": "Bare",
        "features": ["reuse-feedback-obs"],
    }


def test_a_policy_that_tells() -> None:
    told = assemble(Told(), reuse=False)
    assert (told.action_horizon, told.action_dim) == (8, 7)
    assert type(told.data["action_horizon"]) is int
    assert told.data["algorithm"] == "PPO"
    assert "features" not in told.data


def test_the_operator_goes_before_everything() -> None:
    told = assemble(Told(), {"policy": "mine", "action_dim": 3, "algorithm": "SAC", "features": []}).data
    assert (told["policy"], told["action_dim"], told["algorithm"], told["features"]) == ("mine", 3, "SAC", [])


@pytest.mark.parametrize("number", [0, -1, True, 2.0, "4", None, np.zeros(2, int), [1]])
def test_numbers_are_positive_and_whole_or_not_told(number: object) -> None:
    policy = Bare()
    policy.action_horizon = number  # type: ignore[attr-defined]
    assert "action_horizon" not in assemble(policy).data
    assert "action_horizon" not in assemble(Told(), {"action_horizon": number}).data


@pytest.mark.parametrize("policy", [Raising(), RaisingMethod(), NotAMap()])
def test_a_policy_that_fails_is_told_without(policy: object, caplog: pytest.LogCaptureFixture) -> None:
    told = assemble(policy).data
    assert told["policy"] == type(policy).__name__
    assert "action_horizon" not in told
    assert "metadata" in caplog.text


def test_what_cannot_be_sent_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    told = assemble(Bare(), {"config": object(), "array": np.array([None]), "good": np.zeros(2), "seed": 2**70})
    assert told.data["good"].tolist() == [0, 0]
    assert told.data.keys().isdisjoint({"config", "array", "seed"})
    encode_message(told)
    for name in ("config", "array", "seed"):
        assert repr(name) in caplog.text
