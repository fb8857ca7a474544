"""The core: clients, sessions, the wire and the server."""
