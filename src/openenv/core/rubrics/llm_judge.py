"""`LLMJudge`: a rubric that asks a language model for the score."""

from __future__ import annotations

import logging
import math
import re
from typing import TYPE_CHECKING, Any

from openenv.core.rubrics.base import Rubric

if TYPE_CHECKING:
    from openenv.core.llm_client import LLMClient

__all__ = ["LLMJudge"]

logger = logging.getLogger("openenv.server")

_NUMBER = r"((?:(?<!\w)[-+])?(?:\d+\.?\d*|\.\d+))"


class LLMJudge(Rubric):
    """Asks a language model and reads the score from its answer. Asynchronous: use it from ``step_async``.

    What the client raises, as `LLMError`, is raised on: a service that is down is not a score.

    Args:
        prompt_template: the question, with ``{action}`` and ``{observation}`` in it; other braces are doubled.
        client: the model.
        score_pattern: regular expression that finds the score, its first group if it has one. By default the first
            number in the answer, with its sign.
        default_score: the score of an answer without one.
        normalize: clamp scores to 0 to 1.
    """

    def __init__(
        self,
        prompt_template: str,
        client: LLMClient,
        *,
        score_pattern: str | None = None,
        default_score: float = 0.0,
        normalize: bool = True,
    ) -> None:
        self.prompt_template = prompt_template
        self._client = client
        self._score_pattern = re.compile(score_pattern or _NUMBER)
        self.default_score = default_score
        self.normalize = normalize
        self._warned = False

    async def forward(self, action: Any, observation: Any) -> float:
        """See `Rubric.forward`."""
        return self._parse_score(await self._client.complete(self._render_prompt(action, observation)))

    def _render_prompt(self, action: Any, observation: Any) -> str:
        """The question for one step; a subclass may ask differently."""
        return self.prompt_template.format(action=action, observation=observation)

    def _parse_score(self, response: str) -> float:
        """The score in an answer; a subclass may read it differently."""
        score = self._find(response)
        if score is None:
            if not self._warned:
                self._warned = True
                logger.warning("a judge's answer held no score; such answers score %s", self.default_score)
            return self.default_score
        return min(max(score, 0.0), 1.0) if self.normalize else score

    def _find(self, response: str) -> float | None:
        match = self._score_pattern.search(response)
        if match is None:
            return None
        try:
            score = float(match.group(1 if match.re.groups else 0))
        except (TypeError, ValueError):  # the pattern found no number, or its group took no part
            return None
        return score if math.isfinite(score) else None

    def state_dict(self) -> dict[str, Any]:
        """See `Rubric.state_dict`; the client is not in it."""
        return {
            "prompt_template": self.prompt_template,
            "score_pattern": self._score_pattern.pattern,
            "default_score": self.default_score,
            "normalize": self.normalize,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Rubric.load_state_dict`."""
        self.prompt_template = state.get("prompt_template", self.prompt_template)
        self._score_pattern = re.compile(state.get("score_pattern", self._score_pattern))
        self.default_score = state.get("default_score", self.default_score)
        self.normalize = state.get("normalize", self.normalize)
