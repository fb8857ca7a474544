"""What holds for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# By default hypothesis fails an example that takes 0.2 s, or a slow draw of one: on a busy machine any of them may.
settings.register_profile("openenv", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("openenv")
