"""Environment packages that were written for upstream run here as they are: their server, their client, both."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from websockets.sync.client import connect

from interop.sides import OURS, UPSTREAM, Driver, Link, Servers, Side

LETTERS = {
    "app": "letters_env.server.app:app",
    "kind": "letters_env.client:LettersEnv",
    "action": "letters_env.models:LettersAction",
}
OLD = {
    "app": "old_letters_env.server.app:app",
    "kind": "old_letters_env.client:OldLettersEnv",
    "action": "old_letters_env.models:OldAction",
}


def play(driver: Driver, package: dict[str, str], letters: str, **reset: Any) -> list[Any]:
    """Everything that a short episode returned."""
    told = [driver.reset(**reset).value]
    for letter in letters:
        told.append(driver.call("step", {"letter": letter}, action=package["action"]).value)
        told.append(driver.state().value)
    return told


def test_a_package_with_todays_paths(driver: Driver, link: Link, servers: Servers) -> None:
    driver.new(servers(link.server, LETTERS["app"]).url, kind=LETTERS["kind"])
    told = play(driver, LETTERS, "aplqe", seed=3, episode_id="E")
    first, last, state = told[0], told[-2], told[-1]
    assert first["observation"]["shown"] == "_____"
    assert first["reward"] == first["observation"]["reward"] == 0.0
    assert [one["reward"] for one in told[1::2]] == [1.0, 1.0, 1.0, -0.5, 1.0]
    assert last["done"] is last["observation"]["done"] is True
    assert last["observation"]["metadata"] == {"praise": "well done"}
    assert last["observation"]["shown"] == "apple"
    assert state == {"episode_id": "E", "step_count": 5, "word_length": 5, "guessed": list("aplqe")}
    refused = driver.call("step", {"shown": "a"}, action="letters_env.models:LettersObservation")
    assert refused.error is not None  # not an action: whatever the hook raises, the session is still there
    assert driver.state().value["step_count"] == 5


def test_a_package_with_the_old_name(driver: Driver, link: Link, servers: Servers) -> None:
    driver.new(servers(link.server, OLD["app"]).url, kind=OLD["kind"])
    told = play(driver, OLD, "az")
    assert told[0]["observation"]["said"] == "ready"
    assert told[1]["observation"]["said"] == "A"
    assert told[1]["reward"] == 1
    assert told[1]["observation"]["note"] == {"text": "é"}
    assert told[-2]["done"] is True
    assert told[-1] == {"episode_id": "old", "step_count": 2}


def test_what_hooks_do_not_copy_is_where_it_belongs_with_our_client(
    servers: Servers, drivers: Callable[[Side, str], Driver]
) -> None:
    """A hook leaves reward and done on the envelope; with upstream's client the observation keeps its defaults."""
    seen = {}
    for side in (UPSTREAM, OURS):
        driver = drivers(side, "async")
        driver.new(servers(UPSTREAM, OLD["app"]).url, kind=OLD["kind"])
        seen[side] = play(driver, OLD, "z")[1]
        driver.forget()
    assert seen[UPSTREAM]["reward"] == 1
    assert seen[UPSTREAM]["observation"]["reward"] is None
    assert seen[UPSTREAM]["observation"]["done"] is False
    assert seen[OURS]["reward"] == seen[OURS]["observation"]["reward"] == 1
    assert seen[OURS]["done"] is seen[OURS]["observation"]["done"] is True


@pytest.mark.parametrize(("package", "letters"), [(LETTERS, "aple"), (OLD, "az")], ids=["letters", "old letters"])
def test_the_package_answers_with_the_same_bytes(package: dict[str, str], letters: str, servers: Servers) -> None:
    data = {"seed": 0, "episode_id": "E"} if package is LETTERS else {}
    frames: list[dict[str, Any]] = [{"type": "reset", "data": data}]
    for letter in letters:
        frames += [{"type": "step", "data": {"letter": letter}}, {"type": "state"}]
    answers: dict[Side, list[str]] = {}
    for side in (UPSTREAM, OURS):
        with connect(servers(side, package["app"]).ws, proxy=None) as socket:
            answers[side] = []
            for frame in frames:
                socket.send(json.dumps(frame))
                answers[side].append(str(socket.recv(timeout=30)))
    assert answers[OURS] == answers[UPSTREAM]
