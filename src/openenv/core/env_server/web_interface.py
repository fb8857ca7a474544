"""Names of the web interface where other OpenEnv packages have them."""

from __future__ import annotations

from openenv.core.env_server.env_metadata import load_environment_metadata
from openenv.core.env_server.gradio_tab import WebInterfaceManager
from openenv.core.env_server.http_server import create_app

__all__ = ["WebInterfaceManager", "create_web_interface_app", "load_environment_metadata"]

create_web_interface_app = create_app
"""`create_app`, by the name that other OpenEnv packages have for it."""
