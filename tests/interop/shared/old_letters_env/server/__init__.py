"""Server side."""
