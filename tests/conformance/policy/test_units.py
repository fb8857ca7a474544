"""The checkers' codec, clauses and sums, without a socket."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgpack
import numpy as np
import pytest

from openenv.conformance.clauses import Dialect
from openenv.conformance.policy.clauses import POLICY_CLAUSES, REUSE, select_policy
from openenv.conformance.policy.client.scenarios import SCENARIOS
from openenv.conformance.policy.codec import Form, pack, unpack
from openenv.conformance.policy.judge import Fault, Judge
from openenv.conformance.policy.ledger import Ledger
from openenv.conformance.policy.messages import read_feedback, read_infer, read_message
from openenv.conformance.policy.probe import DTYPES, Origin, origin, values
from openenv.conformance.policy.server.phases import STEPS
from openenv.conformance.policy.server.run import PHASES
from openenv.conformance.report import Verdict

# ------------------------------------------------------------ codec


def test_an_array_to_the_byte() -> None:
    assert pack(np.array([0, 2])).hex(" ") == (
        "84 c4 0b 5f 5f 6e 64 61 72 72 61 79 5f 5f c3 c4 04 64 61 74 61 c4 10 00 00 00 00 00 00 00 00 02 00 00 00 00 "
        "00 00 00 c4 05 64 74 79 70 65 a3 3c 69 38 c4 05 73 68 61 70 65 91 02"
    )


@pytest.mark.parametrize("form", [Form(), Form(">"), Form("<", reverse=True), Form(">", reverse=True)])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype="i4").reshape(2, 3)),
        np.zeros((0, 4), "f4"),
        np.array(7, "u1"),
        np.array([True, False]),
        np.array(["ab", "c"]),
    ],
    ids=lambda array: f"{array.dtype.str}{array.shape}",
)
def test_arrays_survive_in_every_form(array: Any, form: Form) -> None:
    back = unpack(pack({"a": [array]}, form))["a"][0]
    assert back.shape == array.shape
    assert back.tolist() == array.tolist()
    assert back.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")


def forged(**changes: Any) -> bytes:
    written = {b"__ndarray__": True, b"data": bytes(8), b"dtype": "<f8", b"shape": [1]}
    written.update({name.encode(): value for name, value in changes.items()})
    packed: bytes = msgpack.packb({"x": written})
    return packed


@pytest.mark.parametrize(
    ("frame", "name"),
    [
        (b"\xc1", "no-msgpack"),
        (b"", "no-msgpack"),
        (forged(shape=[1 << 50]), "wrong-length"),
        (forged(shape=[-1]), "bad-shape"),
        (forged(shape=1), "bad-shape"),
        (forged(shape=[True]), "bad-shape"),
        (forged(dtype="|O"), "bad-dtype"),
        (forged(dtype="float64"), "bad-dtype"),
        (forged(dtype=8), "bad-dtype"),
        (forged(dtype="<c8"), "bad-dtype"),
        (forged(data="text"), "bad-data"),
        (msgpack.packb({"__ndarray__": True, "data": b"", "dtype": "<f8", "shape": [0]}), "str-keys"),
        (msgpack.packb({b"__npgeneric__": True, b"data": "x", b"dtype": "<f8"}), "bad-data"),
    ],
)
def test_forged_arrays_are_named(frame: bytes, name: str) -> None:
    with pytest.raises(Fault) as caught:
        unpack(frame)
    assert caught.value.name == name


def test_a_scalar_and_a_dtype_as_bin_are_read() -> None:
    assert unpack(msgpack.packb({b"__npgeneric__": True, b"data": 3, b"dtype": "<i8"})) == 3
    assert unpack(forged(dtype=b"<f8"))["x"].tolist() == [0.0]


# ------------------------------------------------------------ messages


def observation(rows: int) -> dict[str, Any]:
    return {"images": {}, "states": {"t": np.zeros((rows, 1)), "a": np.zeros((rows, 7))}, "text": np.array([""] * rows)}


def infer(envs: list[int], **changes: Any) -> dict[str, Any]:
    indices = np.array(envs, "i8")
    message = {"message_type": "infer", "data": observation(len(envs)), "env_indices": indices, "step_ids": 0 * indices}
    return {**message, **changes}


@pytest.mark.parametrize(
    ("changes", "clause"),
    [
        ({"env_indices": [0, 1]}, "5.2a"),
        ({"env_indices": np.array([0.0, 1.0])}, "5.2a"),
        ({"env_indices": np.array([0, 0])}, "4.4a"),
        ({"env_indices": np.array([0, -1])}, "4.4a"),
        ({"step_ids": np.array([0])}, "5.2a"),
        ({"data": None}, "5.2a"),
        ({"data": {**observation(2), "audio": {}}}, "5.2a"),
        ({"data": observation(1)}, "5.2a"),
        ({"data": {**observation(2), "states": {"t": np.zeros((2, 1), "i8")}}}, "5.2a"),
        ({"data": {**observation(2), "text": [b"a", b"b"]}}, "3.4a"),
        ({"data": {**observation(2), "text": "both"}}, "5.2a"),
        ({"reuse": np.array([True])}, "10.1d"),
        ({"reuse": [True, False]}, "10.1d"),
        ({"reuse": np.array([True, False])}, "10.1d"),
    ],
)
def test_a_bad_infer_is_named(changes: dict[str, Any], clause: str) -> None:
    with pytest.raises(Fault) as caught:
        read_infer(infer([0, 1], **changes), Judge("", "4a"))
    assert caught.value.clause == clause


def test_the_rows_that_are_sent() -> None:
    message = infer([2, 5, 1], data=observation(1), reuse=np.array([True, False, True]))
    assert read_infer(message, Judge("", "4a")).sent == [5]
    empty = {**observation(0), "text": np.array([])}
    assert read_infer(infer([2], data=empty, reuse=np.array([True])), Judge("", "4a")).sent == []


@pytest.mark.parametrize(
    "frame", ["text", pack(7), pack({}), pack({"message_type": b"infer"}), pack({b"message_type": "x"})]
)
def test_what_is_no_message(frame: str | bytes) -> None:
    with pytest.raises(Fault) as caught:
        read_message(frame)
    assert caught.value.clause == ("1a" if isinstance(frame, str) else "2a")


@pytest.mark.parametrize(
    ("info", "fits"),
    [
        ({}, True),
        ({"task": "pick"}, False),
        ({"task": "pick", "x": np.zeros(2)}, True),
        ({"episode": {"r": np.zeros(2)}}, True),
        ({"episode": {"r": np.zeros(3)}}, False),
        ([], False),
    ],
)
def test_info_must_split(info: Any, fits: bool) -> None:
    flags = np.zeros(2, bool)
    data = {"obs": observation(2), "rewards": np.zeros(2, "f4"), "terminated": flags, "truncated": flags, "info": info}
    message = {**infer([0, 1]), "message_type": "feedback", "data": data}
    if fits:
        read_feedback(message, Judge("", "4a"))
    else:
        with pytest.raises(Fault, match=r"5\.4c bad-info"):
            read_feedback(message, Judge("", "4a"))


# ------------------------------------------------------------ sums


def test_the_first_answer_has_the_values_of_the_specification() -> None:
    made = values([0, 12], 3, 2, "float64", 0)
    assert made.shape == (3, 2, 2)
    assert made[2, 1].tolist() == [20120, 20121]


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_action_tells_where_it_comes_from(dtype: str) -> None:
    made = values([3, 999], 99, 9, dtype, DTYPES[dtype] - 1)
    assert origin(made[98, 1]) == Origin(DTYPES[dtype] - 1, 98, 999)
    assert origin(made[98, 1] + 1) is None
    assert origin(made[98, 1] * -1) is None


def test_after_a_loss_an_env_may_be_anywhere_in_its_chunk_and_only_there() -> None:
    judge = Judge("", "7.6d")
    ledger = Ledger(judge, 2, 7, "float64", probe=True)
    ledger.connected(())
    first = read_infer(infer([0, 1]), judge)
    ledger.infer(first)
    ledger.act(first)
    ledger.connected(())
    moved = observation(2)
    moved["states"]["t"][:, 0] = [2, 3]
    ledger.infer(read_infer(infer([0, 1], data=moved), judge))
    [found] = [one for one in judge.findings if one.verdict is Verdict.VIOLATION]
    assert found.clause == "7.6d"
    assert found.text == "env 1 infers at t = 3; it was at 0 or 1 or 2"


# ------------------------------------------------------------ clauses


def test_clauses_have_their_section_in_their_number() -> None:
    assert all(one.id[:-1].replace(".", "").isdigit() and one.id[-1].islower() for one in POLICY_CLAUSES.values())
    assert {one.dialect for one in POLICY_CLAUSES.values()} == {Dialect.POLICY}


def test_clauses_of_a_feature_are_left_out_without_it() -> None:
    left_out = {one.id for one in select_policy("c")} - {one.id for one in select_policy("c", features=())}
    assert left_out == {"10.1b", "10.1c", "10.1d"}
    assert select_policy("c", features=(REUSE,)) == select_policy("c")


def test_scenarios_and_steps_say_what_they_do() -> None:
    assert {"basic", "resync", "text"} <= {one.name for one in SCENARIOS}
    assert all(one.text and one.main in POLICY_CLAUSES for one in [*SCENARIOS, *STEPS])
    assert {one.phase for one in STEPS} == {*PHASES}


def test_without_the_extra_the_command_is_named() -> None:
    code = "import sys; sys.modules['msgpack'] = None\nimport openenv.conformance.policy"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "grading the policy link needs msgpack: pip install 'openenv[policy]'" in done.stderr
