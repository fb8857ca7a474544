"""Session-safe client and server SDK for reinforcement-learning environments behind a network.

Importing this package loads nothing of it; each name loads its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from openenv._lazy import lazy_exports

if TYPE_CHECKING:
    from openenv import cli, core
    from openenv._version import __version__
    from openenv.auto.auto_action import AutoAction
    from openenv.auto.auto_env import AutoEnv
    from openenv.core.client_types import ClientSession, StepResult
    from openenv.core.env_client import EnvClient
    from openenv.core.exceptions import (
        ActionValidationError,
        CallTimeoutError,
        CapacityError,
        ConcurrencyConfigurationError,
        ConnectError,
        ConnectionReplaced,
        EnvExecutionError,
        EnvironmentFactoryError,
        ForeignLoopError,
        ForkedClientError,
        InvalidActionError,
        LateResultError,
        LLMError,
        MessageTooLargeError,
        NotResetError,
        OpenEnvError,
        Outcome,
        OutcomeUnknownError,
        PolicyActionError,
        PolicyLinkError,
        PolicyProtocolError,
        PolicyUsageError,
        ProviderError,
        ProviderTimeoutError,
        ReplyValidationError,
        ReuseError,
        ServerError,
        ServerStopped,
        SessionCapacityError,
        SessionClosedError,
        SessionCreationError,
        SessionLostError,
        SessionNotFoundError,
        ToolCallError,
    )
    from openenv.core.generic_client import GenericAction, GenericEnvClient
    from openenv.core.mcp_client import MCPClientBase, MCPToolClient
    from openenv.core.sync_client import SyncEnvClient

__all__ = [
    "ActionValidationError",
    "AutoAction",
    "AutoEnv",
    "CallTimeoutError",
    "CapacityError",
    "ClientSession",
    "ConcurrencyConfigurationError",
    "ConnectError",
    "ConnectionReplaced",
    "EnvClient",
    "EnvExecutionError",
    "EnvironmentFactoryError",
    "ForeignLoopError",
    "ForkedClientError",
    "GenericAction",
    "GenericEnvClient",
    "InvalidActionError",
    "LLMError",
    "LateResultError",
    "MCPClientBase",
    "MCPToolClient",
    "MessageTooLargeError",
    "NotResetError",
    "OpenEnvError",
    "Outcome",
    "OutcomeUnknownError",
    "PolicyActionError",
    "PolicyLinkError",
    "PolicyProtocolError",
    "PolicyUsageError",
    "ProviderError",
    "ProviderTimeoutError",
    "ReplyValidationError",
    "ReuseError",
    "ServerError",
    "ServerStopped",
    "SessionCapacityError",
    "SessionClosedError",
    "SessionCreationError",
    "SessionLostError",
    "SessionNotFoundError",
    "StepResult",
    "SyncEnvClient",
    "ToolCallError",
    "__version__",
    "cli",
    "core",
]

if not TYPE_CHECKING:  # a type checker would take any name for granted
    _SUBMODULES = ("cli", "core")
    _homes = {name: "openenv.core" for name in __all__ if name not in _SUBMODULES}  # which knows where each one lives
    _homes |= {
        "AutoAction": "openenv.auto.auto_action",
        "AutoEnv": "openenv.auto.auto_env",
        "__version__": "openenv._version",
    }
    __getattr__, __dir__ = lazy_exports(__name__, _homes, _SUBMODULES)
