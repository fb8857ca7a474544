"""The client: it lists and calls the tools of a session of the server."""

from __future__ import annotations

from openenv.core.mcp_client import MCPToolClient

__all__ = ["EchoEnv"]


class EchoEnv(MCPToolClient):
    """Call the echo's tools. A client of tools needs nothing more."""
