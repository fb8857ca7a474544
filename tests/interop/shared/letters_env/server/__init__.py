"""Server side of the letters environment."""
