import dataclasses

from openenv.core.client_types import StepResult
from openenv.core.env_client import StepResult as Same

result = StepResult(observation={"a": 1})
print(result.observation, result.reward, result.done, Same is StepResult, dataclasses.is_dataclass(result))
print(StepResult({"a": 1}, 0.5, True).done)
