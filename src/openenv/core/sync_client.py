"""`SyncEnvClient`: the blocking, fully typed face of a client. All of them share one I/O thread."""

from __future__ import annotations

import functools
import inspect
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from openenv.core.client_types import StepResult
from openenv.core.env_client import UNSET, EnvClient, MaybeSeconds

__all__ = ["SyncEnvClient"]

ActT = TypeVar("ActT")
ObsT = TypeVar("ObsT")
StateT = TypeVar("StateT")


class SyncEnvClient(Generic[ActT, ObsT, StateT]):
    """Blocking methods of an `EnvClient`; get one from ``client.sync()``.

    Works with and without a running event loop, and from several threads (calls are served in order). Methods and
    attributes that are not listed here are the client's own; its coroutine functions become blocking.

    Args:
        async_client: the client.
    """

    def __init__(self, async_client: EnvClient[ActT, ObsT, StateT]) -> None:
        self._client = async_client

    @property
    def async_client(self) -> EnvClient[ActT, ObsT, StateT]:
        """The client behind."""
        return self._client

    def connect(self) -> Self:
        """See `EnvClient.connect`."""
        self._wait(self._client.connect())
        return self

    def wait_ready(self, timeout: float | None = 300.0) -> Self:
        """See `EnvClient.wait_ready`."""
        self._wait(self._client.wait_ready(timeout))
        return self

    def reset(self, *, timeout_s: MaybeSeconds = UNSET, **kwargs: Any) -> StepResult[ObsT]:
        """See `EnvClient.reset`."""
        if timeout_s is not UNSET:
            kwargs["timeout_s"] = timeout_s
        return cast("StepResult[ObsT]", self._wait(self._client.reset(**kwargs)))

    def step(self, action: ActT, *, timeout_s: MaybeSeconds = UNSET, **kwargs: Any) -> StepResult[ObsT]:
        """See `EnvClient.step`."""
        if timeout_s is not UNSET:
            kwargs["timeout_s"] = timeout_s
        return cast("StepResult[ObsT]", self._wait(self._client.step(action, **kwargs)))

    def state(self, *, timeout_s: MaybeSeconds = UNSET) -> StateT:
        """See `EnvClient.state`."""
        limit = {} if timeout_s is UNSET else {"timeout_s": timeout_s}
        return cast("StateT", self._wait(self._client.state(**limit)))

    def settle(self, *, timeout_s: MaybeSeconds = UNSET) -> StepResult[ObsT] | None:
        """See `EnvClient.settle`."""
        limit = {} if timeout_s is UNSET else {"timeout_s": timeout_s}
        return cast("StepResult[ObsT] | None", self._wait(self._client.settle(**limit)))

    def disconnect(self) -> None:
        """See `EnvClient.disconnect`."""
        self._wait(self._client.disconnect())

    def close(self) -> None:
        """See `EnvClient.close`."""
        self._wait(self._client.close())

    def new_session(self) -> SyncEnvClient[ActT, ObsT, StateT]:
        """See `EnvClient.new_session`."""
        child = cast("EnvClient[ActT, ObsT, StateT]", self._wait(self._client.new_session()))
        return child.sync()

    def __enter__(self) -> Self:
        return self.connect()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<blocking {self._client!r}>"

    def __getattr__(self, name: str) -> Any:
        if name == "_client":
            raise AttributeError(name)  # an object under construction, or a copy
        value = getattr(self._client, name)
        if not (callable(value) and inspect.iscoroutinefunction(inspect.unwrap(value))):
            return value

        @functools.wraps(value)
        def blocking(*args: Any, **kwargs: Any) -> Any:
            return self._wait(value(*args, **kwargs))

        return blocking

    def _wait(self, value: Any) -> Any:
        return self._client._finished(value)
