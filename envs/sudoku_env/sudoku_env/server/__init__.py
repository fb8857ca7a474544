"""The server of the Sudoku environment."""
