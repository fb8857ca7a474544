"""What stands beside the session answers the same questions as upstream does: see ``shared/beside.py``."""

from __future__ import annotations

from typing import Any

import pytest

from interop.sides import OURS, UPSTREAM, Side, run_shared


def ask(side: Side) -> dict[str, Any]:
    answers: dict[str, Any] = run_shared(side, "beside.py")
    return answers


@pytest.fixture(scope="module")
def answers() -> tuple[dict[str, Any], dict[str, Any]]:
    return ask(UPSTREAM), ask(OURS)


@pytest.mark.parametrize("room", ["rubrics", "messages", "harness", "small"])
def test_the_answers_are_the_same(answers: tuple[dict[str, Any], dict[str, Any]], room: str) -> None:
    theirs, ours = answers
    assert set(ours[room][0] if isinstance(ours[room], list) else ours[room])
    assert ours[room] == theirs[room]


def test_web_forms_are_read_the_same_way(answers: tuple[dict[str, Any], dict[str, Any]]) -> None:
    theirs, ours = answers
    assert len(ours["forms"]) == 38
    for number, (one, other) in enumerate(zip(theirs["forms"], ours["forms"], strict=True)):
        assert other == one, number


def test_metadata_is_the_same_where_upstream_can_tell(answers: tuple[dict[str, Any], dict[str, Any]]) -> None:
    theirs, ours = answers
    assert [told["name"] for told in ours["metadata"]] == ["Env", "e", "e", "Env"]
    assert theirs["metadata"] in (None, ours["metadata"])  # None: its web interface needs gradio
