"""Each client with each server: the same calls get the same answers, whoever is at the two ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from interop.sides import OURS, UPSTREAM, Driver, Ended, Link, Mirror, mirror_server


def assert_swapped(driver: Driver, after: Ended, number: int) -> None:
    """Upstream's client tells of a dead socket once or not at all, then steps in an environment nobody reset."""
    if after.error is not None:
        after = driver.step()
    assert after.seen["env_no"] != number
    assert after.seen["count"] == 1


def test_reset_step_state(driver: Driver, server: Mirror) -> None:
    driver.new(server.url)
    begun = driver.reset(seed=7, episode_id="E-7", level="hard").value
    assert begun["reward"] is None
    assert begun["done"] is False
    assert begun["observation"]["echo"] == {"seed": 7, "level": "hard"}
    number = begun["observation"]["env_no"]
    assert [driver.step().seen["count"] for _ in range(3)] == [1, 2, 3]
    state = driver.state().value
    assert state == {"episode_id": "E-7", "step_count": 3, "env_no": number, "more": {"a": [1]}}
    (reset,) = server.events("reset", env_no=number)
    assert (reset["seed"], reset["episode_id"], reset["kwargs"]) == (7, "E-7", {"level": "hard"})
    _ = driver.call("close").value
    server.wait_for("close", env_no=number)


def test_rewards_keep_their_type(driver: Driver, server: Mirror) -> None:
    driver.new(server.url)
    for reward in [True, False, 3, 0, 0.5, 0.0, None, -1, 1e300]:
        result = driver.step("reward", reward).value
        assert result["reward"] == reward
        assert type(result["reward"]) is type(reward)


def test_metadata_done_and_text(driver: Driver, server: Mirror) -> None:
    driver.new(server.url)
    _ = driver.reset().value
    metadata = {"k": [1, None, {"é": "日本"}]}
    told = driver.step("metadata", metadata).value
    assert told["observation"]["metadata"] == told["metadata"] == metadata
    assert driver.step("done").value["done"] is True
    text = 'é 日本 \u2028 \U0001f600 \x00 "\\ </script>'
    assert driver.step("echo", {"text": text, "big": 2**70, "tiny": 5e-324}).seen["echo"] == {
        "text": text,
        "big": 2**70,
        "tiny": 5e-324,
    }


def test_errors_of_calls_leave_the_session_open(driver: Driver, server: Mirror, link: Link) -> None:
    driver.new(server.url)
    number = driver.reset().seen["env_no"]

    crashed = driver.step("raise", "no such door")
    refused = driver.call("step", {"op": "inc", "nonsense": 1})
    for ended, code in ((crashed, "EXECUTION_ERROR"), (refused, "VALIDATION_ERROR")):
        assert ended.is_a("RuntimeError"), ended
        assert ended.error is not None
        assert code in ended.error["message"]
    if link.client is OURS:
        assert (crashed.raised, refused.raised) == ("EnvExecutionError", "ActionValidationError")
        assert crashed.error is not None
        assert crashed.error["fields"]["message"] == "no such door"
        assert crashed.error["fields"]["error_type"] == ("ValueError" if link.server is OURS else None)
        assert refused.error is not None
        assert refused.error["fields"]["field"] == "nonsense"
        assert refused.error["fields"]["outcome"] == "not_applied"
    after = driver.step()
    assert (after.seen["env_no"], after.seen["count"]) == (number, 1)


def test_an_action_whose_validator_raises(driver: Driver, server: Mirror, link: Link) -> None:
    """Upstream's server ends the session over it, because the error list that it sends holds the exception itself."""
    driver.new(server.url)
    number = driver.reset().seen["env_no"]
    ended = driver.call("step", {"op": "inc", "even": 3, "metadata": {"mark": f"{link}-odd"}})
    after = driver.step()
    assert server.ran_on(f"{link}-odd") == []
    if link.server is OURS:
        assert ended.is_a("RuntimeError")
        assert (after.seen["env_no"], after.seen["count"]) == (number, 1)
    elif link.client is OURS:
        assert ended.raised == after.raised == "SessionLostError"
    else:
        assert ended.raised == "RuntimeError"
        assert_swapped(driver, after, number)


def test_an_action_that_is_not_json(link: Link, server: Mirror) -> None:
    with Driver(link.client) as driver:
        driver.new(server.url, kind="unusual:OddClient")
        number = driver.reset().seen["env_no"]
        ended = driver.step("inc")
        assert ended.is_a("TypeError")
        assert driver.state().value["env_no"] == number


def test_full_server(link: Link, tmp_path: Path) -> None:
    with mirror_server(link.server, tmp_path, MAX_CONCURRENT_ENVS="1") as server, Driver(link.client) as driver:
        driver.new(server.url)
        _ = driver.reset().value
        driver.new(server.url, client="b")
        ended = driver.reset(client="b")
        assert ended.is_a("RuntimeError")
        assert ended.error is not None
        if link.client is OURS:
            assert ended.raised == "CapacityError"
            assert (ended.error["fields"]["active"], ended.error["fields"]["max"]) == (1, 1)
        else:
            assert "CAPACITY_REACHED" in ended.error["message"]
        assert driver.step().seen["count"] == 1  # the session that has the slot does not notice
        _ = driver.call("close").value
        server.wait_for("close")
        assert driver.reset(client="b").seen["count"] == 0


def test_a_factory_that_fails(link: Link, tmp_path: Path) -> None:
    with mirror_server(link.server, tmp_path, MIRROR_BROKEN="1") as server, Driver(link.client) as driver:
        driver.new(server.url)
        ended = driver.reset()
        assert ended.is_a("RuntimeError")
        assert ended.error is not None
        assert "MirrorEnv" in ended.error["message"]
        assert "secret" not in ended.error["message"]
        assert ended.raised == ("EnvironmentFactoryError" if link.client is OURS else "RuntimeError")


MILLION = 1_000_000


def test_large_messages_both_ways(driver: Driver, server: Mirror) -> None:
    driver.new(server.url)
    number = driver.reset().seen["env_no"]
    text = "é" * (5 * MILLION)  # ten million bytes of UTF-8; upstream's client writes them as 30 million: past 16 MiB
    text = text if driver.side is OURS else "y" * (10 * MILLION)
    echoed = driver.step("echo", text).seen
    assert echoed["echo"] == text
    assert echoed["env_no"] == number
    big = driver.step("big", 40 * MILLION).seen
    assert (len(big["echo"]), big["env_no"]) == (40 * MILLION, number)


@pytest.mark.parametrize("millions", [2, 4])
def test_reply_over_the_client_limit(millions: int, driver: Driver, server: Mirror, link: Link) -> None:
    driver.new(server.url, max_message_size_mb=1.0)
    number = driver.reset().seen["env_no"]
    ended = driver.step("big", millions * MILLION, mark=f"{link}-over")
    assert ended.error is not None
    after = driver.step(mark=f"{link}-after")
    if link.client is OURS:
        assert ended.raised == "MessageTooLargeError"
        fields = ended.error["fields"]
        assert fields["limit"] == MILLION
        assert fields["size"] > millions * MILLION
        assert fields["outcome"] == "applied"
        if millions == 2 or link.server is OURS:  # our server knows the limit, and does not send it
            assert (after.seen["env_no"], after.seen["count"]) == (number, 2)
        else:  # too much to read and throw away
            assert fields["session_lost"] is True
            assert after.raised == "SessionLostError"
    else:
        assert_swapped(driver, after, number)


def test_action_over_the_server_limit(driver: Driver, server: Mirror, link: Link) -> None:
    """uvicorn takes 16 MiB a message; both servers leave that as it is."""
    driver.new(server.url)
    number = driver.reset().seen["env_no"]
    ended = driver.step("echo", "y" * (17 * 1024 * 1024), mark=f"{link}-too-big")
    assert ended.error is not None
    assert server.ran_on(f"{link}-too-big") == []
    after = driver.step(mark=f"{link}-after-too-big")
    if link.client is OURS:
        assert ended.raised == "MessageTooLargeError"
        assert ended.error["fields"]["outcome"] == "not_applied"
        if link.server is OURS:  # told of its limit, our client does not send it
            assert (after.seen["env_no"], after.seen["count"]) == (number, 1)
            return
        assert after.raised == "SessionLostError"
        assert server.ran_on(f"{link}-after-too-big") == []
        assert driver.reset().seen["env_no"] != number
    else:
        assert_swapped(driver, after, number)


def test_many_sessions_at_once(driver: Driver, server: Mirror, link: Link) -> None:
    names = [f"c{number}" for number in range(12)]
    for name in names:
        driver.new(server.url, client=name)
    resets = [driver.start("reset", client=name) for name in names]
    numbers = [started.end().seen["env_no"] for started in resets]
    assert len(set(numbers)) == len(names)
    for turn in range(1, 4):
        steps = [driver.start_step(mark=f"{name}-{turn}", client=name) for name in names]
        for name, number, started in zip(names, numbers, steps, strict=True):
            seen = started.end().seen
            assert (seen["env_no"], seen["count"], seen["echo"]) == (number, turn, f"{name}-{turn}")
    for name, number in zip(names, numbers, strict=True):
        _ = driver.call("close", client=name).value
        server.wait_for("close", env_no=number)
        assert len(server.events("close", env_no=number)) == 1


def test_children_have_sessions_of_their_own(driver: Driver, server: Mirror) -> None:
    driver.new(server.url)
    parent = driver.reset().seen["env_no"]
    _ = driver.call("new_session", **{"as": "child"}).value
    child = driver.reset(client="child").seen["env_no"]
    assert child != parent
    assert driver.step(client="child").seen["env_no"] == child
    assert driver.step().seen["env_no"] == parent
    _ = driver.call("close").value
    server.wait_for("close", env_no=parent)
    server.wait_for("close", env_no=child)


def test_step_before_reset_is_answered(driver: Driver, server: Mirror) -> None:
    driver.new(server.url)
    assert driver.step().seen["count"] == 1


def test_the_sides_are_what_they_say() -> None:
    with Driver(UPSTREAM) as theirs, Driver(OURS) as ours:
        for driver, lost in ((theirs, False), (ours, True)):
            made = driver.call("new", kind="openenv.core.exceptions:SessionLostError", kwargs={})
            assert (made.error is None) == lost, made
