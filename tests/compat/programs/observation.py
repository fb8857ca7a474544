from openenv.core.env_server import Observation


class Board(Observation):
    cells: list[int] = []


board = Board(cells=[1], reward=True, done=True)
print(board.model_dump(), Observation().model_dump(), type(Board(reward=1).reward).__name__)
print(sorted(Board.model_json_schema()["properties"]))
