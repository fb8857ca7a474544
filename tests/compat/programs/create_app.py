import functools

from counter import CounterAction, CounterEnvironment, CounterObservation
from fastapi.testclient import TestClient
from openenv.core.env_server.http_server import create_app

app = create_app(
    functools.partial(CounterEnvironment), CounterAction, CounterObservation, env_name="counter", max_concurrent_envs=2
)


@app.get("/mine")
def mine():
    return {"mine": True}


with TestClient(app) as client:
    print(
        client.get("/health").json(),
        client.get("/mine").json(),
        sorted(client.get("/schema").json()["action"]["properties"]),
    )
    with client.websocket_connect("/ws") as ws:
        ws.send_json({"type": "reset", "data": {"seed": 2}})
        print(ws.receive_json())
        ws.send_json({"type": "step", "data": {"by": 3}})
        print(ws.receive_json())
        ws.send_json({"type": "state"})
        print(ws.receive_json())
try:
    create_app(CounterEnvironment(), CounterAction, CounterObservation)
except TypeError:
    print("a factory, please")
try:
    create_app(
        CounterEnvironment, CounterAction, CounterObservation, max_concurrent_envs=1, concurrency_config=object()
    )
except ValueError:
    print("one of the two")
