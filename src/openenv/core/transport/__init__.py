"""Moves frames. The only package that knows a WebSocket library."""
