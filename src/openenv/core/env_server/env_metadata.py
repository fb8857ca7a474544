"""What is known of an environment before one is made: its names and its README."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import EnvironmentMetadata

__all__ = ["load_environment_metadata"]

logger = logging.getLogger("openenv.server")

README_VARIABLE = "ENV_README_PATH"

_IN_IMAGES = (Path("/app/env/README.md"), Path("/app/README.md"))


def load_environment_metadata(
    env: Environment[Any, Any, Any] | Callable[..., Any], env_name: str | None = None
) -> EnvironmentMetadata:
    """What an environment says of itself, or what is known of one that is not made yet.

    Args:
        env: an environment, which is asked; or its class, a function that makes it, or a `functools.partial` of either,
            none of which is called.
        env_name: its name; also the folder under ``envs`` where its README may be.

    Returns:
        The metadata; for what is not made yet with the README from the path in ``ENV_README_PATH``, from
        ``envs/<env_name>/README.md``, from where images have it (``/app/env``, ``/app``), or from beside the
        ``openenv.yaml`` of the package that it is in: the first there is.
    """
    if isinstance(env, Environment):
        return env.get_metadata()
    factory = env.func if isinstance(env, functools.partial) else env
    own_name = getattr(factory, "__name__", type(factory).__name__)
    described = own_name if inspect.isclass(factory) else env_name or own_name
    return EnvironmentMetadata(
        name=env_name or described,
        description=f"{described} environment",
        version="1.0.0",
        readme_content=_readme(env_name, factory),
    )


def _readme(env_name: str | None, factory: Any) -> str | None:
    given = os.environ.get(README_VARIABLE)
    places = [Path(given)] if given else []
    places += [Path("envs") / env_name / "README.md"] if env_name else []
    for place in (*places, *_IN_IMAGES, *_in_package(factory)):
        try:
            text = place.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            continue
        except OSError as error:
            logger.warning("the README %s could not be read: %s", place, error)
            continue
        if text:
            return text
    return None


def _in_package(factory: Any) -> list[Path]:
    """Where an environment that is a package of its own has its README."""
    module = sys.modules.get(getattr(factory, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    folders = Path(file).resolve().parents[:4] if file else ()
    return [folder / "README.md" for folder in folders if (folder / "openenv.yaml").is_file()]
