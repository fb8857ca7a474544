"""The server of the TextArena environments."""
