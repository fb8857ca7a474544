"""`AutoEnv`: a client from a name.

The name is that of an installed package, an address, or a Space. Code is fetched and installed only with
``trust_remote_code=True`` and the commit that is meant; without that a Space is played with a generic client, which
needs none of its code.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from openenv.auto._discovery import (
    EnvironmentInfo,
    _is_hub_url,
    _normalize_env_name,
    _repo_id,
    get_discovery,
    unknown_environment,
)
from openenv.auto._schema_models import client_with_models
from openenv.core.env_client import EnvClient
from openenv.core.exceptions import ConnectError
from openenv.core.generic_client import GenericEnvClient
from openenv.core.transport.address import Address
from openenv.core.utils import hf_space_subdomain

__all__ = ["AutoEnv"]

logger = logging.getLogger("openenv.client")

OPENENV_TRUST_REMOTE_CODE = "OPENENV_TRUST_REMOTE_CODE"

_ADVICE = "give an address, as http://localhost:8000, or a Space, as openenv/echo_env."
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SCHEMA_S = 15.0


class AutoEnv:
    """Makes clients from names; not to be instantiated."""

    def __init__(self) -> None:
        raise TypeError("AutoEnv is a factory class: call AutoEnv.from_env() or AutoEnv.from_hub(), make no instance.")

    @classmethod
    def from_env(
        cls,
        name: str,
        base_url: str | None = None,
        docker_image: str | None = None,
        container_provider: Any = None,
        wait_timeout: float = 30.0,
        env_vars: Mapping[str, str] | None = None,
        trust_remote_code: bool = False,
        skip_install: bool = False,
        *,
        revision: str | None = None,
        **kwargs: Any,
    ) -> EnvClient[Any, Any, Any]:
        """A client of an environment.

        The typed client where its package is installed; otherwise a `GenericEnvClient` with models made from the
        server's ``/schema``. An installed package without a server runs in a container, from its default image.

        Args:
            name: an installed package, as ``echo``, ``echo-env`` or ``echo_env``; an address, as
                ``http://localhost:8000``; or a Space, as ``openenv/echo_env``.
            base_url: where its server is.
            docker_image: the image to start a server from, where there is no address.
            container_provider: starts it; `LocalDockerProvider` by default.
            wait_timeout: seconds to wait for a server that sleeps or starts.
            env_vars: of the container.
            trust_remote_code: install the package of a Space; needs ``revision``.
            skip_install: use a generic client, whatever is installed.
            revision: the commit of the Space that is meant, in full.
            **kwargs: arguments of the client, as ``token``.

        Returns:
            The client. One in a container is connected.

        Raises:
            ValueError: no such environment is installed; no Space can be called so; ``trust_remote_code`` without a
                commit; or the typed client could not be made.
            ImportError: the package is installed and its client cannot be imported.
            ConnectionError: the server cannot be reached.
        """
        start = {"provider": container_provider, "ready_timeout_s": wait_timeout, "env_vars": dict(env_vars or {})}
        if _is_address(name):
            name, base_url = "", base_url or name
        if trust_remote_code and not skip_install and _is_hub_url(name):
            _check_commit(name, revision)
        if skip_install:
            return cls._generic(name, base_url, docker_image, start, wait_timeout, kwargs)
        env_name = name
        if _is_hub_url(name):
            pinned = {} if revision is None else {"revision": revision}
            env_name = cls._ensure_package_from_hub(name, trust_remote_code=trust_remote_code, **pinned) or ""
            if base_url is None and docker_image is None:
                base_url = cls._resolve_space_url(name)
        if not env_name and base_url is not None:
            info = None if _is_hub_url(name) else cls._package_of_server(base_url, wait_timeout, kwargs)
            if info is None:
                return cls._with_models(base_url, wait_timeout, kwargs)
            env_name = info.env_key
        if not env_name:
            return cls._generic(name, base_url, docker_image, start, wait_timeout, kwargs)
        return cls._typed(env_name, base_url, docker_image, start, wait_timeout, kwargs)

    @classmethod
    def from_hub(
        cls,
        name: str,
        base_url: str | None = None,
        docker_image: str | None = None,
        container_provider: Any = None,
        wait_timeout: float = 30.0,
        env_vars: Mapping[str, str] | None = None,
        trust_remote_code: bool = False,
        skip_install: bool = False,
        **kwargs: Any,
    ) -> EnvClient[Any, Any, Any]:
        """The same as `from_env`."""
        given = (base_url, docker_image, container_provider, wait_timeout, env_vars, trust_remote_code, skip_install)
        return cls.from_env(name, *given, **kwargs)

    @classmethod
    def get_env_class(cls, name: str) -> type[Any]:
        """The client's class of an installed environment.

        Raises:
            ValueError: none is called so.
            ImportError: it cannot be imported.
        """
        return _installed(name).get_client_class()

    @classmethod
    def get_env_info(cls, name: str) -> dict[str, Any]:
        """What is known of an installed environment.

        Raises:
            ValueError: none is called so.
        """
        info = _installed(name)
        return {
            "env_key": info.env_key,
            "name": info.name,
            "package": info.package_name,
            "version": info.version,
            "description": info.description,
            "env_class": info.client_class_name,
            "action_class": info.action_class_name,
            "observation_class": info.observation_class_name,
            "module": info.client_module_path,
            "default_image": info.default_image,
            "spec_version": info.spec_version,
        }

    @classmethod
    def list_environments(cls) -> None:
        """Print the installed environments."""
        get_discovery().list_environments()

    # ------------------------------------------------------------------ the three kinds of client

    @classmethod
    def _typed(
        cls,
        env_name: str,
        base_url: str | None,
        image: str | None,
        start: dict[str, Any],
        wait_timeout: float,
        kwargs: dict[str, Any],
    ) -> EnvClient[Any, Any, Any]:
        info = get_discovery().get_environment_by_name(env_name)
        if info is None:
            raise unknown_environment(env_name, get_discovery().discover(), _ADVICE)
        try:
            made = info.get_client_class()
        except ImportError as error:
            raise ImportError(
                f"Failed to import the client of {env_name!r}, whose package is installed: {error} "
                f"Try: pip install --force-reinstall {info.package_name}"
            ) from error
        try:
            if base_url is not None:
                if cls._check_server_availability(base_url, **_of_request(kwargs)):
                    return _client(made(base_url=base_url, provider=None, **kwargs))
                if not cls._is_local_url(base_url):
                    cls._wait(base_url, wait_timeout, kwargs)
                    return _client(made(base_url=base_url, provider=None, **kwargs))
            return _started(made, image or info.default_image, start, kwargs)
        except Exception as error:  # callers of other OpenEnv packages catch ValueError here, whatever it was
            raise ValueError(f"The client {made!r} of {env_name!r} could not be made: {error}") from error

    @classmethod
    def _generic(
        cls,
        name: str,
        base_url: str | None,
        image: str | None,
        start: dict[str, Any],
        wait_timeout: float,
        kwargs: dict[str, Any],
    ) -> EnvClient[Any, Any, Any]:
        available: Callable[..., bool] = cls._check_server_availability
        if base_url is None and image is None and _is_hub_url(name):
            base_url, available = cls._resolve_space_url(name), cls._check_space_availability
        if base_url is not None:
            return cls._with_models(base_url, wait_timeout, kwargs, available)
        if image is None:
            raise ValueError(
                f"skip_install=True says not to use the package of {name!r}: give the base_url of its server, or a "
                "docker_image to start one from."
            )
        return _started(GenericEnvClient, image, start, kwargs)

    @classmethod
    def _with_models(
        cls,
        base_url: str,
        wait_timeout: float,
        kwargs: dict[str, Any],
        available: Callable[..., bool] | None = None,
    ) -> EnvClient[Any, Any, Any]:
        if available is None or not available(base_url, **_of_request(kwargs)):
            cls._wait(base_url, wait_timeout, kwargs)
        schema = _ask(base_url, "/schema", kwargs)
        if schema is None:
            return GenericEnvClient(base_url=base_url, **kwargs)
        return client_with_models(schema)(base_url=base_url, **kwargs)

    @classmethod
    def _package_of_server(cls, base_url: str, wait_timeout: float, kwargs: dict[str, Any]) -> EnvironmentInfo | None:
        """The installed package of the environment that a server says it is; None if there is none."""
        cls._wait(base_url, wait_timeout, kwargs)
        told = (_ask(base_url, "/metadata", kwargs) or {}).get("name")
        if not isinstance(told, str) or not told:
            return None
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", told.removesuffix("Environment").removesuffix("Env")).lower()
        by_name = get_discovery().get_environment_by_name
        return by_name(snake.replace(" ", "_").strip("_")) or by_name(told)

    @classmethod
    def _wait(cls, base_url: str, wait_timeout: float, kwargs: Mapping[str, Any]) -> None:
        client = GenericEnvClient(base_url=base_url, **_of_request(kwargs))
        client.sync().wait_ready(wait_timeout)

    # ------------------------------------------------------------------ addresses

    @classmethod
    def _resolve_space_url(cls, repo_id: str) -> str:
        return f"https://{hf_space_subdomain(_repo_id(repo_id))}.hf.space"

    @classmethod
    def _is_local_url(cls, url: str) -> bool:
        if "://" not in url:
            return False
        try:
            return urlsplit(url).hostname == "0.0.0.0" or Address.parse(url).loopback
        except ValueError:
            return False

    @classmethod
    def _check_server_availability(cls, base_url: str, timeout: float = 2.0, **request: Any) -> bool:
        """Whether a server is ready, or about to be."""
        try:
            cls._wait(base_url, timeout if not cls._is_local_url(base_url) else min(timeout, 0.5), request)
        except ConnectError:
            return False
        return True

    @classmethod
    def _check_space_availability(cls, space_url: str, timeout: float = 5.0, **request: Any) -> bool:
        return cls._check_server_availability(space_url, timeout, **request)

    # ------------------------------------------------------------------ code from the Hub

    @classmethod
    def _ensure_package_from_hub(
        cls, name: str, trust_remote_code: bool = False, revision: str | None = None
    ) -> str | None:
        """The installed environment of a Space, by its name; None if there is none and none may be installed.

        Raises:
            ValueError: it may be installed, and the commit is not told; or it could not be.
        """
        expected = _normalize_env_name(_repo_id(name).rpartition("/")[2])
        if get_discovery().get_environment_by_name(expected) is not None:
            return expected
        if not trust_remote_code:
            return None
        _check_commit(name, revision)
        before = set(get_discovery().discover(use_cache=False))
        package = cls._install_from_hub(name, trust_remote_code=True, revision=revision)
        importlib.invalidate_caches()
        found = get_discovery().discover(use_cache=False)
        wanted = _plain(package)
        mine = [key for key, info in found.items() if _plain(info.package_name) == wanted]
        new = sorted(set(found) - before)
        return next(iter((*mine, *new)), expected)

    @classmethod
    def _install_from_hub(cls, repo_id: str, trust_remote_code: bool = False, revision: str | None = None) -> str:
        """Install the package of a Space, and tell the name of its distribution."""
        if not trust_remote_code and not _confirm_remote_install(repo_id):
            raise ValueError(f"Installation cancelled: the code of {_repo_id(repo_id)} was not trusted.")
        url = cls._get_hub_git_url(repo_id) + (f"@{revision}" if revision else "")
        command = [*_get_pip_command(), "install", url]
        logger.warning("Installing the code of a Space: %s", url)
        try:
            done = subprocess.run(command, check=True, capture_output=True, text=True)
        except (subprocess.CalledProcessError, OSError) as error:
            detail = getattr(error, "stderr", None) or str(error)
            raise ValueError(f"Failed to install {url}: {detail}") from error
        said = re.findall(r"\bopenenv-[\w-]+?(?=-\d|==|\s|$)", f"{done.stdout}\n{done.stderr}")
        names = [one for one in said if _plain(one) != "openenv-core"]
        return names[0] if names else f"openenv-{_normalize_env_name(_repo_id(repo_id).rpartition('/')[2])}"

    @classmethod
    def _get_hub_git_url(cls, repo_id: str) -> str:
        return f"git+https://huggingface.co/spaces/{_repo_id(repo_id)}"


def _client(made: Any) -> EnvClient[Any, Any, Any]:
    client: EnvClient[Any, Any, Any] = made
    return client


def _started(made: Any, image: str, start: dict[str, Any], kwargs: dict[str, Any]) -> EnvClient[Any, Any, Any]:
    """A client in a container; connected on the I/O thread, so that any event loop, or none, can use it."""
    return _client(made.from_docker_image(image, **start, **kwargs).sync().async_client)


def _of_request(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: kwargs[name] for name in ("token", "headers") if name in kwargs}


def _ask(base_url: str, route: str, kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    client = GenericEnvClient(base_url=base_url, **_of_request(kwargs))
    try:
        answer: dict[str, Any] = client._blocking(lambda: client._dialer.ask(route, _SCHEMA_S))
    except ConnectError as error:
        logger.info("%s The client has no models from it.", error)
        return None
    return answer


def _installed(name: str) -> EnvironmentInfo:
    info = get_discovery().get_environment_by_name(name)
    if info is None:
        raise ValueError(f"Unknown environment: {name!r} is not installed. AutoEnv.list_environments() tells what is.")
    return info


def _is_address(name: str) -> bool:
    """Whether a name is a server's address, and not that of a page on the Hub."""
    if not name.lower().startswith(("http://", "https://", "ws://", "wss://")):
        return False
    return urlsplit(name).hostname not in ("huggingface.co", "www.huggingface.co", "hf.co")


def _check_commit(name: str, revision: str | None) -> None:
    if not isinstance(revision, str) or not _COMMIT.fullmatch(revision):
        raise ValueError(
            f"trust_remote_code=True installs the code of {_repo_id(name)}: name the commit that you have read, as "
            f"revision=<40 hexadecimal digits>. A branch or a tag, as {revision or 'main'!r}, may change."
        )


def _plain(package: str) -> str:
    return package.lower().replace("_", "-")


def _has_uv() -> bool:
    return shutil.which("uv") is not None


def _get_pip_command() -> list[str]:
    return ["uv", "pip"] if _has_uv() else [sys.executable, "-m", "pip"]


def _confirm_remote_install(repo_id: str) -> bool:
    """Ask a person whether the code of a Space may be installed; nobody there means no."""
    if os.environ.get(OPENENV_TRUST_REMOTE_CODE, "").lower() in ("1", "true", "yes"):
        return True
    if not sys.stdin.isatty():
        return False
    try:
        answer = input(f"Install code from https://huggingface.co/spaces/{_repo_id(repo_id)} and run it? [y/N] ")
    except (EOFError, KeyboardInterrupt):
        return False
    return answer.strip().lower() in ("y", "yes")
