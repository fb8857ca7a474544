"""The models that cross the wire, and the small ones that describe a server. Pydantic only, no web framework.

Actions and observations refuse unknown fields: a misspelt field is an error where it is made, not a default
somewhere else. States keep unknown fields, because a client may know less of a state than its server.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from openenv.core.wire.messages import WSErrorCode

__all__ = [
    "Action",
    "BaseMessage",
    "CodeExecResult",
    "ConcurrencyConfig",
    "EnvironmentMetadata",
    "GetTaskRangeRequest",
    "GetTaskRequest",
    "HealthResponse",
    "HealthStatus",
    "ListTasksRequest",
    "NumTasksRequest",
    "Observation",
    "ResetRequest",
    "ResetResponse",
    "Scalar",
    "SchemaResponse",
    "ServerCapacityStatus",
    "ServerMode",
    "SessionInfo",
    "State",
    "StepRequest",
    "StepResponse",
    "WSCloseMessage",
    "WSErrorCode",
    "WSErrorResponse",
    "WSIncomingMessage",
    "WSObservationResponse",
    "WSResetMessage",
    "WSStateMessage",
    "WSStateResponse",
    "WSStepMessage",
]

Scalar = bool | int | float
"""A number as JSON knows it; True, 0 and 0.0 stay apart."""


def _python_number(value: Any) -> Any:
    """Turn a numpy scalar (or a 0-d array) into the Python number it stands for."""
    if hasattr(value, "dtype") and getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        return value.item()
    return value


Reward = Annotated[Scalar | None, BeforeValidator(_python_number)]


class ServerMode(StrEnum):
    """Which routes a server has: all of them, or only those meant for deployed agents."""

    SIMULATION = "simulation"
    PRODUCTION = "production"


class HealthStatus(StrEnum):
    """What ``GET /health`` says."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    DEGRADED = "degraded"


# ---------------------------------------------------------------- what an environment is made of

# Without "constants", pydantic turns a NaN in an undeclared place (an `Any` field, metadata) into null.
_VALUES = ConfigDict(validate_assignment=True, arbitrary_types_allowed=True, ser_json_inf_nan="constants")


class Action(BaseModel):
    """What a client asks an environment to do. Subclass it and add fields; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", **_VALUES)

    metadata: dict[str, Any] = Field(default_factory=dict)


class Observation(BaseModel):
    """What an environment answers. Subclass it and add fields; unknown fields are refused.

    Attributes:
        done: whether the episode has ended.
        reward: a number, or None where the environment gives none; ``True``, ``0`` and ``0.0`` stay apart.
        metadata: anything else, as JSON values.
    """

    model_config = ConfigDict(extra="forbid", **_VALUES)

    done: Annotated[bool, BeforeValidator(_python_number)] = False
    reward: Reward = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class State(BaseModel):
    """Where an episode stands. Fields that this class does not declare are kept.

    Attributes:
        episode_id: name of the episode, if it has one.
        step_count: steps taken since the last reset.
    """

    model_config = ConfigDict(extra="allow", **_VALUES)

    episode_id: str | None = None
    step_count: int = Field(default=0, ge=0)


class CodeExecResult(BaseModel):
    """What a piece of code printed, and how it ended."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    stdout: str
    stderr: str
    exit_code: int


class EnvironmentMetadata(BaseModel):
    """Who an environment is, for people and for catalogues."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    name: str
    description: str
    readme_content: str | None = None
    version: str | None = None
    author: str | None = None
    documentation_url: str | None = None


# ---------------------------------------------------------------- what a server says of itself


class ConcurrencyConfig(BaseModel):
    """How many sessions a server holds at once, and when an idle one ends.

    Attributes:
        max_concurrent_envs: most environments alive at any moment, over all routes.
        session_timeout: seconds without a frame after which an idle session ends; None for never.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    max_concurrent_envs: int = Field(default=1, ge=1)
    session_timeout: float | None = Field(default=None, gt=0)


class ServerCapacityStatus(BaseModel):
    """How full a server is."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    active_sessions: int = Field(ge=0)
    max_sessions: int = Field(ge=1)

    @property
    def available_slots(self) -> int:
        """Sessions that could be opened now."""
        return max(0, self.max_sessions - self.active_sessions)

    @property
    def is_at_capacity(self) -> bool:
        """Whether the next session would be refused."""
        return self.available_slots == 0

    @classmethod
    def from_counts(cls, active: int, max_sessions: int) -> ServerCapacityStatus:
        """Make a status from the two counts."""
        return cls(active_sessions=active, max_sessions=max_sessions)


class SessionInfo(BaseModel):
    """One open session. Times are seconds since the epoch."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    session_id: str
    created_at: float
    last_activity_at: float
    step_count: int = 0
    environment_type: str


class SchemaResponse(BaseModel):
    """JSON Schemas of an environment's models."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    action: dict[str, Any]
    observation: dict[str, Any]
    state: dict[str, Any]
    reset_observation: dict[str, Any] | None = None

    @model_serializer(mode="wrap")
    def _told_only(self, handler: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def] # it would hide the fields
        dumped = handler(self)
        if self.reset_observation is None:
            dumped.pop("reset_observation", None)
        return dumped


class HealthResponse(BaseModel):
    """Body of ``GET /health``."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    status: HealthStatus = HealthStatus.HEALTHY


# ---------------------------------------------------------------- HTTP bodies


class ResetRequest(BaseModel):
    """Body of ``POST /reset``; further keys are handed to the environment."""

    model_config = ConfigDict(extra="allow")

    seed: int | None = Field(default=None, ge=0)
    episode_id: str | None = Field(default=None, max_length=255)


class StepRequest(BaseModel):
    """Body of ``POST /step``; further keys are handed to the environment."""

    model_config = ConfigDict(extra="allow")

    action: dict[str, Any]
    timeout_s: float | None = Field(default=None, gt=0)
    request_id: str | None = Field(default=None, max_length=255)


class ResetResponse(BaseModel):
    """Answer of ``POST /reset``."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    observation: dict[str, Any]
    reward: float | None = None
    done: bool = False
    metadata: dict[str, Any] | None = None


class StepResponse(BaseModel):
    """Answer of ``POST /step``."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    observation: dict[str, Any]
    reward: float | None = None
    done: bool = False
    metadata: dict[str, Any] | None = None


class ListTasksRequest(BaseModel):
    """Body of ``POST /{env_name}/tasks``."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    split: str


class NumTasksRequest(BaseModel):
    """Body of ``POST /{env_name}/num_tasks``."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    split: str


class GetTaskRequest(BaseModel):
    """Body of ``POST /{env_name}/task``."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    split: str
    index: int


class GetTaskRangeRequest(BaseModel):
    """Body of ``POST /{env_name}/task_range``."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    split: str
    start: int | None = None
    stop: int | None = None


# ---------------------------------------------------------------- frames of the plain dialect


class BaseMessage(BaseModel):
    """Base of the frames: unknown members are refused."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)


class WSResetMessage(BaseMessage):
    """Begin an episode; ``data`` becomes keyword arguments of the environment's ``reset``."""

    type: Literal["reset"] = "reset"
    data: dict[str, Any] = Field(default_factory=dict)


class WSStepMessage(BaseMessage):
    """Take a step; ``data`` is the action."""

    type: Literal["step"] = "step"
    data: dict[str, Any]


class WSStateMessage(BaseMessage):
    """Ask for the state."""

    type: Literal["state"] = "state"


class WSCloseMessage(BaseMessage):
    """End the session; there is no answer."""

    type: Literal["close"] = "close"


WSIncomingMessage = WSResetMessage | WSStepMessage | WSStateMessage | WSCloseMessage
"""Any frame a client may send."""


class WSObservationResponse(BaseMessage):
    """Answer to a reset or a step."""

    type: Literal["observation"] = "observation"
    data: dict[str, Any]


class WSStateResponse(BaseMessage):
    """Answer to a state request."""

    type: Literal["state"] = "state"
    data: dict[str, Any]


class WSErrorResponse(BaseMessage):
    """A request was refused or failed."""

    type: Literal["error"] = "error"
    data: dict[str, Any]
