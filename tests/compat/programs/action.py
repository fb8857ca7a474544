from openenv.core.env_server.types import Action
from pydantic import ValidationError


class Move(Action):
    row: int
    column: int = 0


move = Move(row=1, metadata={"why": "test"})
print(move.model_dump())
for wrong in ({}, {"row": 1, "depth": 2}, {"row": "x"}):
    try:
        Move(**wrong)
    except ValidationError as error:
        print([one["type"] for one in error.errors()])
try:
    move.row = "x"
except ValidationError as error:
    print(error.errors()[0]["type"])
