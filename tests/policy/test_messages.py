"""The four messages: what their frames look like, what is accepted, and what is refused with which path."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openenv.core.exceptions import PolicyProtocolError, PolicyUsageError, ReuseError
from openenv.core.wire.arrays import decode, encode
from openenv.policy.messages import (
    Action,
    Feedback,
    Infer,
    Metadata,
    Observation,
    encode_message,
    parse,
)


def frame(message: Any) -> bytes:
    return b"".join(encode_message(message))


def observation(count: int = 2) -> dict[str, Any]:
    return {
        "images": {"c": np.zeros((count, 2, 2, 3), np.uint8)},
        "states": {"t": np.zeros((count, 3), np.float32)},
        "text": np.array(["ab"] * count, dtype=np.str_),
    }


def infer(**changes: Any) -> dict[str, Any]:
    message = {"message_type": "infer", "data": observation(), "env_indices": np.array([3, 1])}
    return {**message, "step_ids": np.array([0, 2]), **changes}


def action(**changes: Any) -> dict[str, Any]:
    return {"message_type": "action", "data": {"env_ids": np.array([3, 1]), "action": np.zeros((4, 2, 7)), **changes}}


def feedback(**changes: Any) -> dict[str, Any]:
    data = {
        "obs": observation(),
        "rewards": np.zeros(2, np.float32),
        "terminated": np.zeros(2, bool),
        "truncated": np.zeros(2, bool),
        "info": {},
    }
    head = {"message_type": "feedback", "env_indices": np.array([3, 1]), "step_ids": np.array([0, 2])}
    return {**head, "data": {**data, **changes}}


def without(message: dict[str, Any], *keys: str) -> dict[str, Any]:
    """The message with one nested key taken out."""
    if len(keys) > 1:
        return {**message, keys[0]: without(message[keys[0]], *keys[1:])}
    return {key: value for key, value in message.items() if key != keys[0]}


# ------------------------------------------------------------------ what is accepted


@pytest.mark.parametrize(
    "message", [infer(), action(), feedback(), {"message_type": "metadata", "data": {"server": "x"}}]
)
def test_a_message_is_read_and_written_again_byte_for_byte(message: dict[str, Any]) -> None:
    assert frame(parse(encode(message))) == encode(message)


def test_an_infer_is_written_with_binary_array_keys_and_text_ones_outside() -> None:
    raw = msgpack.unpackb(frame(parse(encode(infer()))), strict_map_key=False)
    assert list(raw) == ["message_type", "data", "env_indices", "step_ids"]
    assert raw["message_type"] == "infer"
    assert set(raw["env_indices"]) == {b"__ndarray__", b"data", b"dtype", b"shape"}
    assert raw["data"]["text"][b"dtype"] == "<U2"


def test_keys_that_nobody_knows_are_ignored() -> None:
    assert parse(encode(infer(extra=1))).env_indices.tolist() == [3, 1]


@pytest.mark.parametrize("text", [["ab", "c"], np.array(["ab", "c"]), np.array(["ab", "c"], dtype=">U9")])
def test_text_comes_in_two_forms_and_leaves_in_one(text: Any) -> None:
    found = parse(encode(infer(data={**observation(), "text": text}))).observation.text
    assert found.dtype.kind == "U"
    assert found.tolist() == ["ab", "c"]


@pytest.mark.parametrize("text", [[], np.array([]), np.array([], dtype="<U4"), np.array([], dtype=np.int64)])
def test_text_without_rows_may_have_any_form(text: Any) -> None:
    data = {**observation(0), "text": text}
    message = parse(encode(infer(data=data, reuse=np.array([True, True]))))
    assert message.observation.text.dtype.kind == "U"
    assert len(message.observation) == 0


def test_indices_come_in_any_integer_type_and_order_of_bytes() -> None:
    message = parse(encode(infer(env_indices=np.array([3, 1], dtype=">u2"))))
    assert message.env_indices.dtype == np.int64
    assert message.env_indices.tolist() == [3, 1]


@pytest.mark.parametrize("reuse", [None, np.array([False, False])])
def test_no_reuse_nil_and_all_false_send_every_row(reuse: Any) -> None:
    message = parse(encode(infer(reuse=reuse)))
    assert len(message.observation) == 2


@pytest.mark.parametrize("data", [{}, {"action_horizon": 0}, {"action_horizon": True}, {"action_horizon": "4"}])
def test_metadata_that_is_missing_or_odd_is_unknown(data: dict[str, Any]) -> None:
    found = parse(encode({"message_type": "metadata", "data": data}))
    assert isinstance(found, Metadata)
    assert (found.action_horizon, found.action_dim, found.protocol_version) == (None, None, None)
    assert found.data == data


@pytest.mark.parametrize(
    ("features", "read"), [(["a", "b"], {"a", "b"}), (["a", 3], {"a"}), ("a", set()), (None, set())]
)
def test_features_are_the_names_that_are_listed(features: Any, read: set[str]) -> None:
    assert parse(encode({"message_type": "metadata", "data": {"features": features}})).features == read


def test_metadata_without_data_is_metadata() -> None:
    assert parse(encode({"message_type": "metadata"})).data == {}


def test_chunks_are_put_into_the_order_of_the_request() -> None:
    rows = np.arange(4 * 2 * 7).reshape(4, 2, 7)
    found = parse(encode(action(action=rows))).for_envs(np.array([1, 3]))
    assert found.env_ids.tolist() == [1, 3]
    assert np.array_equal(found.action, rows[:, ::-1])
    assert found.horizon == 4


@pytest.mark.parametrize("envs", [[1, 2], [1], [1, 2, 3]])
def test_chunks_for_other_environments_are_refused(envs: list[int]) -> None:
    with pytest.raises(PolicyProtocolError, match="answer a request") as caught:
        parse(encode(action())).for_envs(np.array(envs))
    assert caught.value.field == "data.env_ids"


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("message", "path", "why"),
    [
        (without(infer(), "message_type"), "message_type", "missing"),
        ({**infer(), "message_type": b"infer"}, "message_type", "no message"),
        ({**infer(), "message_type": "Infer"}, "message_type", "no message"),
        ([1], "", "map"),
        (without(infer(), "data"), "data", "missing"),
        (without(infer(), "env_indices"), "env_indices", "missing"),
        (without(infer(), "step_ids"), "step_ids", "missing"),
        (without(infer(), "data", "text"), "data.text", "missing"),
        (without(infer(), "data", "images"), "data.images", "missing"),
        (infer(data={**observation(), "sound": 1}), "data", "sound"),
        (infer(data=observation(3)), "data.images.c", "leading dimension 3"),
        (infer(env_indices=[3, 1]), "env_indices", "array"),
        (infer(env_indices=np.array([3, 3])), "env_indices", "twice"),
        (infer(env_indices=np.array([3, -1])), "env_indices", "-1"),
        (infer(env_indices=np.array([3.0, 1.0])), "env_indices", "integer"),
        (infer(env_indices=np.array([], int)), "env_indices", "no environment"),
        (infer(env_indices=np.array([[3, 1]])), "env_indices", "vector"),
        (infer(step_ids=np.array([1])), "step_ids", "2 entries"),
        (infer(data={**observation(), "images": {"c": np.zeros((2, 2, 2, 3))}}), "data.images.c", "uint8"),
        (infer(data={**observation(), "images": {"c": np.zeros((2, 2), np.uint8)}}), "data.images.c", "uint8"),
        (infer(data={**observation(), "states": {"t": np.zeros((2, 3), int)}}), "data.states.t", "float"),
        (infer(data={**observation(), "states": {"t": [1.0]}}), "data.states.t", "array"),
        (infer(data={**observation(), "states": [1]}), "data.states", "map"),
        (infer(data={**observation(), "text": "ab"}), "data.text", "list of str"),
        (infer(data={**observation(), "text": ["a", 1]}), "data.text", "list of str"),
        (infer(data={**observation(), "text": ["a"]}), "data.text", "leading dimension 1"),
        (infer(data={**observation(), "text": np.zeros(2)}), "data.text", "text"),
        (without(action(), "data", "action"), "data.action", "missing"),
        (action(action=np.zeros((4, 3, 7))), "data.action", "3 chunks"),
        (action(action=np.zeros(4)), "data.action", "H, n"),
        (action(action=np.zeros((0, 2, 7))), "data.action", "H, n"),
        (action(action=np.zeros((4, 2), dtype=bool)), "data.action", "H, n"),
        (action(env_ids=[3, 1]), "data.env_ids", "array"),
        (without(feedback(), "data", "info"), "data.info", "missing"),
        (without(feedback(), "data", "obs"), "data.obs", "missing"),
        (feedback(obs=observation(1)), "data.obs.images.c", "leading dimension 1"),
        (feedback(rewards=np.zeros(3)), "data.rewards", "2 entries"),
        (feedback(rewards=np.zeros(2, int)), "data.rewards", "float"),
        (feedback(terminated=np.zeros(2)), "data.terminated", "bool"),
        (feedback(truncated=np.zeros((2, 1), bool)), "data.truncated", "bool"),
        (feedback(info={"task": "pick"}), "data.info", "one environment"),
        (feedback(info={"a": {"b": np.zeros(3)}}), "data.info", "leading dimension 3"),
        (feedback(info=[1]), "data.info", "map"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_path(message: Any, path: str, why: str) -> None:
    with pytest.raises(PolicyProtocolError, match=why) as caught:
        parse(encode(message))
    assert caught.value.field == path


@pytest.mark.parametrize(
    ("message", "path", "why"),
    [
        (infer(reuse=[True, False]), "reuse", "bool array"),
        (infer(reuse=np.array([1, 0])), "reuse", "bool array"),
        (infer(reuse=np.array([True])), "reuse", "bool array"),
        (infer(reuse=np.array([True, False])), "data.images.c", "leading dimension"),
        (infer(data={**observation(1), "text": ["a", "b"]}, reuse=np.array([True, False])), "data.text", "leading dim"),
    ],
)
def test_a_reuse_that_does_not_fit_has_an_error_of_its_own(message: Any, path: str, why: str) -> None:
    with pytest.raises(ReuseError, match=why) as caught:
        parse(encode(message))
    assert caught.value.field == path


@pytest.mark.parametrize("given", ["text", b"", b"\xc1", encode(infer())[:-3]])
def test_a_frame_that_is_no_message_is_refused(given: Any) -> None:
    with pytest.raises(PolicyProtocolError):
        parse(given)


def test_the_path_of_a_forged_array_is_told() -> None:
    with pytest.raises(PolicyProtocolError) as caught:
        parse(msgpack.packb({"message_type": "infer", "data": {"states": {"t": {b"__ndarray__": True}}}}))
    assert caught.value.field == "data.states.t"


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=3), st.binary(max_size=3), st.just([]), st.just({}),
    st.just(np.zeros(2)), st.just(np.zeros((2, 1), bool)), st.just(np.array(["a", "b"])), st.just(np.int8(1)),
)  # fmt: skip


@given(st.sampled_from([infer, action, feedback]), st.data())
def test_junk_in_any_place_is_read_or_refused(make: Callable[[], dict[str, Any]], data: st.DataObject) -> None:
    message = make()
    parent = message
    while True:
        key = data.draw(st.sampled_from(sorted(parent)))
        if isinstance(parent[key], dict) and parent[key] and data.draw(st.booleans()):
            parent[key] = dict(parent[key])
            parent = parent[key]
            continue
        parent[key] = data.draw(JUNK)
        break
    try:
        parse(encode(message))
    except PolicyProtocolError:
        pass


# ------------------------------------------------------------------ what a caller gives


def test_one_text_is_for_all_rows_and_groups_may_be_missing() -> None:
    found = Observation.of({"text": "go"}, 3)
    assert found.text.tolist() == ["go"] * 3
    assert (found.images, found.states) == ({}, {})
    assert Observation.of({}, 2).text.tolist() == ["", ""]


def test_lists_become_arrays() -> None:
    assert Observation.of({"states": {"t": [[1.0], [2.0]]}}, 2).states["t"].shape == (2, 1)


def test_rows_are_chosen_by_mask() -> None:
    found = Observation.of({"states": {"t": np.array([[1.0], [2.0]])}, "text": ["a", "b"]}, 2)
    chosen = found.rows(np.array([False, True]))
    assert (chosen.states["t"].tolist(), chosen.text.tolist(), len(chosen)) == ([[2.0]], ["b"], 1)


def test_a_value_that_cannot_be_sent_names_its_path() -> None:
    message = Feedback(Observation.of({}, 1), np.array([0]), np.array([0]), np.zeros(1), *[np.zeros(1, bool)] * 2,
                       {"task": {"x": object()}})  # fmt: skip
    with pytest.raises(PolicyUsageError, match="object") as caught:
        encode_message(message)
    assert caught.value.field == "data.info.task.x"


def test_arrays_of_a_message_are_views_of_its_frame() -> None:
    received = encode(infer())
    found = parse(received).observation.states["t"]
    assert np.shares_memory(found, np.frombuffer(received, "u1"))
    assert isinstance(decode(received), dict)


def test_types_are_told_apart() -> None:
    kinds = [type(parse(encode(message))) for message in (infer(), action(), feedback())]
    assert kinds == [Infer, Action, Feedback]


# ------------------------------------------------------------------ the extra


@pytest.mark.parametrize("missing", ["numpy", "msgpack"])
def test_without_the_extra_the_error_says_what_to_install(missing: str) -> None:
    script = f"""
import sys
sys.modules[{missing!r}] = None
try:
    import openenv.policy
except ImportError as error:
    assert {missing!r} in str(error) and "pip install 'openenv[policy]'" in str(error), error
else:
    raise SystemExit("no error")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_loads_nothing_of_it() -> None:
    script = "import sys, openenv.policy; assert not {'numpy', 'msgpack', 'websockets', 'asyncio'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
