"""What is shown of an environment to people: its metadata with its README.

There is no web page yet: an application made here serves the environment without one.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import EnvironmentMetadata

__all__ = ["WebInterfaceManager", "create_web_interface_app", "load_environment_metadata"]

logger = logging.getLogger("openenv.server")

create_web_interface_app = create_app
"""`create_app`, by the name that other OpenEnv packages have for it with a page."""

WebInterfaceManager: Any = None
"""None, as other OpenEnv packages have it where there is no web page."""

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
        ``envs/<env_name>/README.md``, or from where images have it (``/app/env``, ``/app``): the first there is.
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
        readme_content=_readme(env_name),
    )


def _readme(env_name: str | None) -> str | None:
    given = os.environ.get(README_VARIABLE)
    places = [Path(given)] if given else []
    places += [Path("envs") / env_name / "README.md"] if env_name else []
    for place in (*places, *_IN_IMAGES):
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
