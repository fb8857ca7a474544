"""The server of the echo environment."""
