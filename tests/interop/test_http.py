"""Route by route: the same requests to upstream's server and to ours; status and body are compared field by field.

What differs is listed here, case by case; everything else is equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from interop.sides import OURS, UPSTREAM, Mirror, mirror_server

Twins = tuple[Mirror, Mirror]


@pytest.fixture(scope="module")
def taskless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    """Two servers of an environment without tasks, whose reset takes no further arguments."""
    directory = tmp_path_factory.mktemp("taskless")
    with (
        mirror_server(UPSTREAM, directory, MIRROR_ENV="TasklessEnv") as theirs,
        mirror_server(OURS, directory, MIRROR_ENV="TasklessEnv") as ours,
    ):
        yield theirs, ours


def ask(server: Mirror, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
    if isinstance(body, bytes):
        more |= {"content": body, "headers": {"Content-Type": "application/json"}}
    elif body is not None:
        more["json"] = body
    return httpx.request(method, server.url + path, trust_env=False, timeout=60, **more)


SAME = [
    ("GET", "/health", None),
    ("GET", "/metadata", None),
    ("POST", "/reset", None),
    ("POST", "/reset", {}),
    ("POST", "/reset", {"seed": 5, "episode_id": "E"}),
    ("POST", "/reset", {"seed": 5, "level": {"é": [1]}}),
    ("POST", "/reset", {"seed": None, "episode_id": None}),
    ("POST", "/step", {"action": {"op": "inc"}}),
    ("POST", "/step", {"action": {"op": "inc"}, "timeout_s": 5.0, "request_id": "r", "more": 1}),
    ("POST", "/step", {"action": {"op": "reward", "arg": True}}),
    ("POST", "/step", {"action": {"op": "reward", "arg": 3}}),
    ("POST", "/step", {"action": {"op": "reward", "arg": None}}),
    ("POST", "/step", {"action": {"op": "metadata", "arg": {"k": [1]}}}),
    ("POST", "/step", {"action": {"op": "done"}}),
    ("POST", "/step", {"action": {"op": "echo", "arg": "日本 \U0001f600"}}),
    ("GET", "/state", None),
    ("GET", "/list_environments", None),
    ("GET", "/mirror/splits", None),
    ("GET", "/MIRROR/splits", None),
    ("POST", "/mirror/tasks", {"split": "train"}),
    ("POST", "/mirror/num_tasks", {"split": "train"}),
    ("POST", "/mirror/task", {"split": "train", "index": 1}),
    ("POST", "/mirror/task", {"split": "train", "index": 99}),
    ("POST", "/mirror/task_range", {"split": "train"}),
    ("POST", "/mirror/task_range", {"split": "train", "start": 1, "stop": 2}),
    ("GET", "/other/splits", None),
    ("GET", "/nothing", None),
    ("GET", "/reset", None),
    ("POST", "/health", None),
    ("GET", "/", None),
    ("GET", "/web", None),
]


@pytest.mark.parametrize(("method", "path", "body"), SAME, ids=lambda part: str(part)[:60])
def test_same_status_and_body(method: str, path: str, body: Any, twins: Twins) -> None:
    theirs, ours = (ask(server, method, path, body) for server in twins)
    assert ours.status_code == theirs.status_code
    assert ours.json() == theirs.json()
    assert ours.headers["content-type"] == theirs.headers["content-type"]


REFUSED = [
    ("/reset", {"seed": -1}),
    ("/reset", {"seed": "bad"}),
    ("/reset", {"episode_id": "x" * 256}),
    ("/reset", [1]),
    ("/step", {}),
    ("/step", None),
    ("/step", {"action": 5}),
    ("/step", {"action": {}}),
    ("/step", {"action": {"op": "inc", "bogus": 1}}),
    ("/step", {"action": {"op": "inc"}, "timeout_s": 0}),
    ("/mirror/tasks", {}),
    ("/mirror/tasks", {"split": "train", "more": 1}),
    ("/mirror/task", {"split": "train", "index": "one"}),
    ("/mirror/tasks", None),
    ("/reset", b"{not json"),
    ("/step", b"{} x"),
    ("/step", b"null"),
    ("/step", b'"text"'),
    ("/step", b"5"),
]


@pytest.mark.parametrize(("path", "body"), REFUSED, ids=lambda part: str(part)[:60])
def test_refusals_have_the_same_status_and_places(path: str, body: Any, twins: Twins) -> None:
    theirs, ours = (ask(server, "POST", path, body) for server in twins)
    assert ours.status_code == theirs.status_code == 422
    their_places = [(one["type"], one["loc"]) for one in theirs.json()["detail"]]
    our_places = [(one["type"], one["loc"]) for one in ours.json()["detail"]]
    assert our_places == their_places


def test_an_environment_that_raises_is_a_500_that_says_why_here(twins: Twins) -> None:
    theirs, ours = (ask(server, "POST", "/step", {"action": {"op": "raise", "arg": "a door"}}) for server in twins)
    assert theirs.status_code == ours.status_code == 500
    assert theirs.text == "Internal Server Error"
    assert ours.json()["message"] == "a door"
    assert ours.json()["code"] == "EXECUTION_ERROR"
    assert ours.json()["error_type"] == "ValueError"


def test_not_a_number_is_null_there_and_itself_here(twins: Twins) -> None:
    theirs, ours = (ask(server, "POST", "/step", {"action": {"op": "nan"}}) for server in twins)
    assert theirs.json()["reward"] is None
    assert ours.json()["reward"] != ours.json()["reward"]


def test_reset_answers_with_a_session_here(twins: Twins) -> None:
    theirs, ours = (ask(server, "POST", "/reset", {}) for server in twins)
    assert "OpenEnv-Session" not in theirs.headers
    session = {"OpenEnv-Session": ours.headers["OpenEnv-Session"]}
    counts = [
        ask(twins[1], "POST", "/step", {"action": {"op": "inc"}}, headers=session).json()["observation"]["count"]
        for _ in range(3)
    ]
    assert counts == [1, 2, 3]
    alone = ask(twins[1], "POST", "/step", {"action": {"op": "inc"}})
    assert alone.json()["observation"]["count"] == 1
    assert "OpenEnv-Session" in alone.headers["Warning"]


def test_schemas_describe_the_same_fields(twins: Twins) -> None:
    theirs, ours = (ask(server, "GET", "/schema").json() for server in twins)
    assert ours.keys() == theirs.keys()
    for name in theirs:
        assert bare(ours[name]) == bare(theirs[name]), name


def bare(schema: Any) -> Any:
    """A schema without its prose; in a union the order of the members says nothing."""
    if isinstance(schema, dict):
        kept = {name: bare(value) for name, value in schema.items() if name != "description"}
        for union in ("anyOf", "required"):
            if union in kept:
                kept[union] = sorted(kept[union], key=str)
        return kept
    return [bare(value) for value in schema] if isinstance(schema, list) else schema


def test_openapi_has_the_same_routes(twins: Twins) -> None:
    theirs, ours = (ask(server, "GET", "/openapi.json").json() for server in twins)
    assert (ours["info"]["title"], ours["info"]["version"]) == (theirs["info"]["title"], theirs["info"]["version"])
    assert ours["paths"].keys() == theirs["paths"].keys()
    for path in ours["paths"]:
        more = {"get", "delete"} if path == "/mcp" else set()  # standard MCP, which upstream does not speak
        assert ours["paths"][path].keys() - more == theirs["paths"][path].keys()


def test_production_mode_has_the_same_routes(tmp_path: Path) -> None:
    with (
        mirror_server(UPSTREAM, tmp_path, OPENENV_MODE="production") as theirs,
        mirror_server(OURS, tmp_path, OPENENV_MODE="production") as ours,
    ):
        for method, path, body in SAME:
            answers = [ask(server, method, path, body) for server in (theirs, ours)]
            assert answers[1].status_code == answers[0].status_code, path


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/mirror/splits", None),
        ("POST", "/mirror/tasks", {"split": "a"}),
        ("POST", "/mirror/task_range", {"split": "a"}),
        ("POST", "/reset", {"seed": 1, "unknown": 2}),
        ("POST", "/step", {"action": {"op": "inc"}, "timeout_s": 1.0, "unknown": 2}),
        ("GET", "/metadata", None),
        ("GET", "/state", None),
    ],
)
def test_an_environment_of_the_plainest_kind(method: str, path: str, body: Any, taskless: Twins) -> None:
    theirs, ours = (ask(server, method, path, body) for server in taskless)
    assert (ours.status_code, ours.json()) == (theirs.status_code, theirs.json())
