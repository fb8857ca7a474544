"""Which environment packages are installed here, and what their classes are called.

Nothing is imported to find out: an environment's code runs when one of its classes is asked for. What was found is kept
in memory, for this process; in a file only by who asks for that.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from openenv.auto._cache_file import (
    default_cache_file as _default_cache_file,
)
from openenv.auto._cache_file import (
    is_trusted_cache_file as _is_trusted_cache_file,
)
from openenv.auto._cache_file import (
    open_trusted_cache as _open_trusted_cache,
)
from openenv.auto._cache_file import (
    read_cache,
    write_cache,
)
from openenv.auto._manifest import find_manifest, read_manifest

__all__ = [
    "EnvironmentDiscovery",
    "EnvironmentInfo",
    "_default_cache_file",
    "_is_trusted_cache_file",
    "_open_trusted_cache",
    "get_discovery",
    "reset_discovery",
    "unknown_environment",
]

_PREFIX = "openenv-"
_NOT_ENVIRONMENTS = {"openenv-core"}
_RULE = "-" * 70
_HUB_PAGE = re.compile(r"^(https?://)?(www\.)?(huggingface\.co|hf\.co)/", re.IGNORECASE)
_REPOSITORY = re.compile(r"(?:spaces/)?(\w[\w.-]{0,95}/\w[\w.-]{0,95})/?", re.ASCII)


@dataclass
class EnvironmentInfo:
    """An installed environment package.

    Attributes:
        env_key: its short name, as ``echo``.
        name: its name, as ``echo_env``.
        package_name: the distribution, as ``openenv-echo-env``.
        version: of the distribution.
        description: one line.
        client_module_path: the module that has its classes, as ``echo_env.client``.
        client_class_name: as ``EchoEnv``.
        action_class_name: as ``EchoAction``.
        observation_class_name: as ``EchoObservation``.
        default_image: its container image, as ``echo-env:latest``.
        spec_version: of its manifest.
        manifest: all that its ``openenv.yaml`` says; None without one.
    """

    env_key: str
    name: str
    package_name: str
    version: str
    description: str
    client_module_path: str
    client_class_name: str
    action_class_name: str
    observation_class_name: str
    default_image: str
    spec_version: int | None = None
    manifest: dict[str, Any] | None = None

    def get_client_class(self) -> type[Any]:
        """Import the client's class.

        Raises:
            ImportError: it is not where it should be.
        """
        return self._load(self.client_class_name)

    def get_action_class(self) -> type[Any]:
        """Import the action's class; raises as `get_client_class`."""
        return self._load(self.action_class_name)

    def get_observation_class(self) -> type[Any]:
        """Import the observation's class; raises as `get_client_class`."""
        return self._load(self.observation_class_name)

    def _load(self, name: str) -> type[Any]:
        package = self.client_module_path.rpartition(".")[0]
        first: ImportError | None = None
        for module_name in dict.fromkeys(filter(None, (self.client_module_path, f"{package}.models", package))):
            try:
                found = getattr(importlib.import_module(module_name), name, None)
            except ImportError as error:
                first = first or error
                continue
            if isinstance(found, type):
                return found
        why = first or f"there is no class {name} in it"
        raise ImportError(
            f"Failed to import {name} from {self.client_module_path}: {why}. "
            f"Is the package whole? pip install --force-reinstall {self.package_name}"
        ) from first


def _normalize_env_name(name: str) -> str:
    """``echo``, ``echo-env`` and ``echo_env`` are all ``echo_env``."""
    return re.sub(r"[-_]env$", "", name).replace("-", "_") + "_env"


def _is_hub_url(name: str) -> bool:
    """Whether a name is a repository on the Hub, as ``openenv/echo_env`` or its address, and not a package's name."""
    return "/" in name or name == "huggingface.co"


def _repo_id(name: str) -> str:
    """``org/name`` of a Space, from that or from its address.

    Raises:
        ValueError: it is neither. What else a name may hold, as ``#``, would change which code is installed.
    """
    found = _REPOSITORY.fullmatch(_HUB_PAGE.sub("", name))
    if found is None:
        raise ValueError(f"{name[:200]!r} is no Space: give its name, as openenv/echo_env, or the address of its page.")
    return found[1]


def _infer_class_name(env_name: str, class_type: str) -> str:
    """The class that an environment has by convention: ``EchoEnv``, ``EchoAction``, ``EchoObservation``.

    Raises:
        ValueError: ``class_type`` is not ``client``, ``action`` or ``observation``.
    """
    ends = {"client": "Env", "action": "Action", "observation": "Observation"}
    if class_type not in ends:
        raise ValueError(f"Unknown class type: {class_type}")
    words = env_name.removesuffix("_env").split("_")
    return "".join(word[:1].upper() + word[1:].lower() for word in words) + ends[class_type]


def _load_manifest_from_package(package_name: str, module_name: str) -> dict[str, Any] | None:
    path = find_manifest(module_name)
    return None if path is None else read_manifest(path)


def _create_env_info_from_package(package_name: str, module_name: str, version: str) -> EnvironmentInfo | None:
    """What an installed package is, from its manifest, and by convention where that says nothing."""
    manifest = _load_manifest_from_package(package_name, module_name)
    told = manifest or {}
    name = str(told.get("name") or module_name)
    if not name.endswith("_env"):
        name = f"{name}_env"

    def named(kind: str) -> str:
        given = told.get(kind)
        return given if isinstance(given, str) and given else _infer_class_name(name, kind)

    spec = told.get("spec_version")
    return EnvironmentInfo(
        env_key=name.removesuffix("_env"),
        name=name,
        package_name=package_name,
        version=version,
        description=str(told.get("description") or f"{name} environment"),
        client_module_path=f"{module_name}.client",
        client_class_name=named("client"),
        action_class_name=named("action"),
        observation_class_name=named("observation"),
        default_image=f"{name.replace('_', '-')}:latest",
        spec_version=spec if isinstance(spec, int) else None,
        manifest=manifest,
    )


class EnvironmentDiscovery:
    """Finds the environment packages that are installed: distributions called ``openenv-...``."""

    def __init__(self) -> None:
        self._cache: dict[str, EnvironmentInfo] | None = None
        self._chosen_file: Path | None = None

    def discover(self, use_cache: bool = True) -> dict[str, EnvironmentInfo]:
        """The installed environments by their short names.

        Args:
            use_cache: take what was found before in this process.
        """
        if self._cache is None or not use_cache:
            self._cache = self._discover_installed_packages()
        return self._cache

    def _discover_installed_packages(self) -> dict[str, EnvironmentInfo]:
        importlib.invalidate_caches()
        found: dict[str, EnvironmentInfo] = {}
        for distribution in importlib.metadata.distributions():
            package = str(distribution.metadata["Name"] or "")
            plain = package.lower().replace("_", "-")
            if not plain.startswith(_PREFIX) or plain in _NOT_ENVIRONMENTS:
                continue
            info = _create_env_info_from_package(package, _module_of(package, distribution), distribution.version)
            if info is not None:
                found.setdefault(info.env_key, info)  # the first on the path is the one that is imported
        return found

    def get_environment(self, env_key: str) -> EnvironmentInfo | None:
        """The environment of this short name; None if there is none."""
        return self.discover().get(env_key)

    def get_environment_by_name(self, name: str) -> EnvironmentInfo | None:
        """The environment that is called ``echo``, ``echo-env`` or ``echo_env``; None if there is none."""
        return self.get_environment(_normalize_env_name(name).removesuffix("_env"))

    def list_environments(self) -> None:
        """Print what is installed."""
        found = self.discover()
        lines = ["Available OpenEnv Environments:", _RULE]
        if not found:
            lines += ["  No OpenEnv environments found.", "  Install environments with: pip install openenv-<env-name>"]
        for key in sorted(found):
            info = found[key]
            lines += [f"  {key:<15}: {info.description} (v{info.version})", f"{'':19}Package: {info.package_name}"]
        lines += [_RULE, f"Total: {len(found)} environments"]
        sys.stdout.write("\n".join(lines) + "\n")

    @property
    def _cache_file(self) -> Path:
        return self._chosen_file or _default_cache_file()

    @_cache_file.setter
    def _cache_file(self, path: Path) -> None:
        self._chosen_file = path

    def _save_cache(self, environments: dict[str, EnvironmentInfo]) -> None:
        write_cache(self._cache_file, {key: asdict(info) for key, info in environments.items()})

    def _load_cache(self) -> dict[str, EnvironmentInfo] | None:
        kept = read_cache(self._cache_file)
        try:
            return None if kept is None else {key: EnvironmentInfo(**told) for key, told in kept.items()}
        except TypeError:  # written by another version
            return None

    def clear_cache(self) -> None:
        """Forget what was found, and delete the file if there is one."""
        self._cache = None
        with contextlib.suppress(OSError, RuntimeError):  # no file, no place for one
            self._cache_file.unlink()


def _module_of(package: str, distribution: importlib.metadata.Distribution) -> str:
    """The import package of a distribution: by convention, or the one that its files show."""
    usual = package[len(_PREFIX) :].replace("-", "_")
    try:
        if find_spec(usual) is not None:
            return usual
        files = distribution.files
    except (ImportError, ValueError, AttributeError):
        return usual
    marks = ("client.py", "openenv.yaml")
    tops = (file.parts[0] for file in _listed(files) if len(file.parts) == 2 and file.name in marks)
    return next(tops, usual)


def _listed(files: Any) -> Iterable[Any]:
    return files if isinstance(files, list) else ()


def unknown_environment(name: str, found: Iterable[str], advice: str) -> ValueError:
    """The error for a name that no installed environment has.

    Args:
        name: the name.
        found: the short names of those that are installed.
        advice: what to write in place of a name.
    """
    keys = sorted(found)
    if not keys:
        return ValueError(
            f"No OpenEnv environments found, so none is called {name!r}. Install one with: "
            f"pip install openenv-<env-name>. Or {advice}"
        )
    close = get_close_matches(name, keys, n=3, cutoff=0.6)
    hint = f" Did you mean: {', '.join(close)}?" if close else ""
    return ValueError(f"Unknown environment {name!r}.{hint} Available environments: {', '.join(keys)}. Or {advice}")


_discovery: EnvironmentDiscovery | None = None


def get_discovery() -> EnvironmentDiscovery:
    """The discovery of this process."""
    global _discovery
    if _discovery is None:
        _discovery = EnvironmentDiscovery()
    return _discovery


def reset_discovery() -> None:
    """Begin anew: the next `get_discovery` makes another one."""
    global _discovery
    _discovery = None
