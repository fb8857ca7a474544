"""Servers that are started for a client: see `openenv.core.containers.runtime`."""
