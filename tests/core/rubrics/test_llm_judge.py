"""A judge asks a real service over HTTP; how it reads answers needs none."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from openenv.core.exceptions import LLMError
from openenv.core.llm_client import LLMClient, OpenAIClient
from openenv.core.rubrics import LLMJudge, WeightedSum
from support.llm_service import LLMService, llm_service


class Says(LLMClient):
    """A model that always says the same."""

    def __init__(self, answer: str) -> None:
        super().__init__("http://nowhere", 0)
        self.answer = answer
        self.asked: list[str] = []

    async def complete(self, prompt: str, **kwargs: Any) -> str:
        self.asked.append(prompt)
        return self.answer


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("0.75", 0.75),
        ("The score is 0.75 out of 1.", 0.75),
        ("Score: 1", 1.0),
        ("Score: 8", 1.0),
        ("Score: -0.5", 0.0),
        (".5", 0.5),
        ("rating-5", 1.0),
        ("no idea", 0.25),
    ],
)
async def test_how_an_answer_is_read(answer: str, score: float) -> None:
    assert await LLMJudge("{action}", Says(answer), default_score=0.25)("a", "o") == score


@pytest.mark.parametrize(
    ("answer", "pattern", "score"),
    [
        ("Rating: [7/10]", r"\[(\d+)/10\]", 7.0),
        ("good: 3", r"\d", 3.0),
        ("-0.5", None, -0.5),
        ("score nan", r"score (\w+)", 0.5),
        ("score inf", r"score (\w+)", 0.5),
        ("yes", r"yes|(\d)", 0.5),
    ],
)
async def test_scores_by_a_pattern_unclamped(answer: str, pattern: str | None, score: float) -> None:
    judge = LLMJudge("{action}", Says(answer), score_pattern=pattern, normalize=False, default_score=0.5)
    assert await judge("a", "o") == score


async def test_the_question_is_made_from_the_template() -> None:
    model = Says("1")
    await LLMJudge('Did {action!r} lead to {observation}? {{"score": 0}}', model)("go", {"x": "{y}"})
    assert model.asked == ["""Did 'go' lead to {'x': '{y}'}? {"score": 0}"""]


async def test_answers_without_a_score_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    judge = LLMJudge("{action}", Says("secret thoughts"))
    with caplog.at_level(logging.WARNING, "openenv.server"):
        assert [await judge("a", "o"), await judge("a", "o")] == [0.0, 0.0]
    assert [record.getMessage() for record in caplog.records] == [
        "a judge's answer held no score; such answers score 0.0"
    ]


async def test_settings_are_kept_and_taken_over() -> None:
    judge = LLMJudge("{action}", Says("[7]"), score_pattern=r"\[(\d)\]", default_score=0.5, normalize=False)
    twin = LLMJudge("x", Says("[7]"))
    twin.load_state_dict(judge.state_dict())
    assert twin.state_dict() == judge.state_dict()
    assert await twin("a", "o") == 7.0
    twin.load_state_dict({"normalize": True})
    assert await twin("a", "o") == 1.0


async def test_judges_ask_a_real_service() -> None:
    with llm_service() as service:
        service.answers += [service.says("0.8"), service.says("I say 0.6")]
        client = OpenAIClient(service.url, None, "judge", system_prompt="Be fair.")
        judges = WeightedSum([LLMJudge("Rate {action}", client), LLMJudge("Rate {observation}", client)], [0.5, 0.5])
        assert await judges("this", "that") == pytest.approx(0.7)
        assert sorted(asked.body["messages"][1]["content"] for asked in service.asked) == ["Rate that", "Rate this"]
        assert service.asked[0].body["messages"][0] == {"role": "system", "content": "Be fair."}


async def test_a_service_that_refuses_is_not_a_score() -> None:
    with llm_service() as service:
        service.answers.append(LLMService.fails(401, "bad key"))
        with pytest.raises(LLMError, match="401: bad key"):
            await LLMJudge("{action}", OpenAIClient(service.url, None, "judge"))("a", "o")
