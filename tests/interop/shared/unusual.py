"""Clients that go wrong on purpose."""

from typing import Any

from openenv.core.generic_client import GenericEnvClient


class OddClient(GenericEnvClient):
    """Sends what is not JSON."""

    def _step_payload(self, action: Any) -> dict[str, Any]:
        return {"op": "echo", "arg": object()}
