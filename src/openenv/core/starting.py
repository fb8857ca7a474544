"""How a server is started before there is a client of it: an image or a Space in a container, or a Space with uv."""

from __future__ import annotations

import inspect
import time
from typing import Any, TypeVar

from openenv.core.startup import started
from openenv.core.utils import hf_space_subdomain

__all__ = ["in_container", "space_in_container", "space_with_uv"]

ClientT = TypeVar("ClientT")

_START = ("port", "env_vars", "workers")


def in_container(cls: type[ClientT], image: str, provider: Any, kwargs: dict[str, Any]) -> ClientT:
    """Start an image and make a client of its server, not yet connected.

    Args:
        cls: the client's class.
        image: the image.
        provider: a container provider, the name of one, or None for `LocalDockerProvider`.
        kwargs: ``ready_timeout_s``, arguments of the client, and arguments of ``start_container``.

    Raises:
        ProviderError: it could not be started; nothing is left of it.
    """
    make: Any = cls
    provider = _provider(provider or "docker")
    client, rest = _of_client(cls, kwargs)
    ready = _patience(rest)
    made: ClientT = started(
        lambda: str(provider.start_container(image, **rest)),
        lambda url: provider.wait_for_ready(url, **ready),
        lambda url: make(base_url=url, provider=provider, **client),
        provider.stop_container,
    )
    return made


def space_in_container(cls: type[ClientT], repo_id: str, provider: Any, kwargs: dict[str, Any]) -> ClientT:
    """Start the image of a Space; arguments as for `in_container`, and ``tag``."""
    rest = dict(kwargs)
    image = f"registry.hf.space/{hf_space_subdomain(repo_id)}:{rest.pop('tag', 'latest')}"
    return in_container(cls, image, provider, rest)


def space_with_uv(cls: type[ClientT], repo_id: str, provider: Any, kwargs: dict[str, Any]) -> ClientT:
    """Start the repository of a Space with `UVProvider`.

    Args:
        cls: the client's class.
        repo_id: the Space.
        provider: a runtime provider, or None for `UVProvider`.
        kwargs: ``ready_timeout_s``, arguments of the client, of ``start``, and of `UVProvider`.

    Raises:
        ValueError: arguments of `UVProvider` beside a provider.
        ProviderError: it could not be started; nothing is left of it.
    """
    make: Any = cls
    client, rest = _of_client(cls, kwargs)
    ready = _patience(rest)
    start = {name: rest.pop(name) for name in _START if name in rest}
    if provider is None:
        from openenv.core.containers.runtime.uv_provider import UVProvider

        path = rest.pop("project_path", None) or f"git+https://huggingface.co/spaces/{repo_id}"
        provider = UVProvider(project_path=path, **rest)
    elif rest:
        raise ValueError(f"{', '.join(sorted(rest))}: for UVProvider, but another provider was given")
    else:
        provider = _provider(provider)
    limit = ready.get("timeout_s", getattr(provider, "context_timeout_s", None))
    began = time.monotonic()

    def wait(_: str) -> None:
        if isinstance(limit, int | float):  # for both together
            provider.wait_for_ready(timeout_s=max(0.0, limit - (time.monotonic() - began)))
        else:
            provider.wait_for_ready()

    made: ClientT = started(
        lambda: str(provider.start(**start)),
        wait,
        lambda url: make(base_url=url, provider=provider, **client),
        provider.stop,
    )
    return made


def _provider(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    from openenv.core.containers.runtime.registry import load_provider

    return load_provider(given)


def _of_client(cls: type[Any], kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part arguments into those of the client's constructor, which is asked for their names, and the others."""
    names = {name for base in cls.__mro__ if "__init__" in vars(base) for name in _names(base)}
    names -= {"self", "base_url", "provider", "args", "kwargs"}
    mine = {name: value for name, value in kwargs.items() if name in names}
    return mine, {name: value for name, value in kwargs.items() if name not in names}


def _names(base: type[Any]) -> list[str]:
    try:
        return list(inspect.signature(vars(base)["__init__"]).parameters)
    except (TypeError, ValueError):
        return []


def _patience(rest: dict[str, Any]) -> dict[str, Any]:
    return {"timeout_s": rest.pop("ready_timeout_s")} if "ready_timeout_s" in rest else {}
