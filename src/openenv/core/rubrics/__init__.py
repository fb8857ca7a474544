"""Rubrics: rewards computed from actions and observations, put together from small parts.

Importing this package loads nothing of it; each name loads its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from openenv._lazy import lazy_exports

if TYPE_CHECKING:
    from openenv.core.rubrics.base import Rubric
    from openenv.core.rubrics.containers import Gate, RubricDict, RubricList, Sequential, WeightedSum
    from openenv.core.rubrics.llm_judge import LLMJudge
    from openenv.core.rubrics.trajectory import ExponentialDiscountingTrajectoryRubric, TrajectoryRubric

__all__ = [
    "ExponentialDiscountingTrajectoryRubric",
    "Gate",
    "LLMJudge",
    "Rubric",
    "RubricDict",
    "RubricList",
    "Sequential",
    "TrajectoryRubric",
    "WeightedSum",
]

_MODULES = {
    "openenv.core.rubrics.base": ("Rubric",),
    "openenv.core.rubrics.containers": ("Gate", "RubricDict", "RubricList", "Sequential", "WeightedSum"),
    "openenv.core.rubrics.llm_judge": ("LLMJudge",),
    "openenv.core.rubrics.trajectory": ("ExponentialDiscountingTrajectoryRubric", "TrajectoryRubric"),
}

if not TYPE_CHECKING:  # a type checker would take any name for granted
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {name: module for module, names in _MODULES.items() for name in names},
        submodules=("base", "containers", "llm_judge", "trajectory"),
    )
