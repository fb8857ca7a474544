"""Old name of `openenv.core`."""
