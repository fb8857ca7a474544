"""Writes the tables and bytes of docs/SPEC-policy-link.md from what the policy link and its checkers run on.

``python scripts/policy_spec.py`` brings the page up to date; ``--check`` only says whether it is.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from openenv.conformance.policy.clauses import POLICY_CLAUSES, select_policy
from openenv.core.wire.arrays import encode
from openenv.policy import link_states, protocol

PAGE = Path(__file__).resolve().parents[1] / "docs" / "SPEC-policy-link.md"


def observation(*steps: float) -> dict[str, Any]:
    """What an env shows that counts its steps; no rows where no steps are given."""
    text = np.array(["go"] * len(steps), dtype="U")
    return {"images": {}, "states": {"t": np.array(steps, float).reshape(-1, 1)}, "text": text}


BYTES: dict[str, Any] = {
    "indices": np.array([0, 2]),
    "metadata": {
        "message_type": "metadata",
        "data": {
            "protocol_version": 1,
            "action_horizon": 2,
            "action_dim": 1,
            "features": ["reuse-feedback-obs"],
        },
    },
    "infer": {
        "message_type": "infer",
        "data": observation(3.0),
        "env_indices": np.array([2]),
        "step_ids": np.array([0]),
    },
    "action": {
        "message_type": "action",
        "data": {"env_ids": np.array([2]), "action": np.array([[[20.0]], [[10020.0]]], np.float32)},
    },
    "feedback": {
        "message_type": "feedback",
        "data": {
            "obs": observation(5.0),
            "rewards": np.array([2.0], np.float32),
            "terminated": np.array([False]),
            "truncated": np.array([False]),
            "info": {},
        },
        "env_indices": np.array([2]),
        "step_ids": np.array([0]),
    },
    "reuse": {
        "message_type": "infer",
        "data": observation(),
        "env_indices": np.array([2]),
        "step_ids": np.array([1]),
        "reuse": np.array([True]),
    },
}


def grid(corner: str, heads: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    heads = [corner, *heads]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def conversation() -> str:
    """What may come when, and what is due then."""
    rows = [
        [str(state), *(str(protocol.TABLE.get((state, event), "protocol error")) for event in protocol.Event)]
        for state in protocol.State
        if state is not protocol.State.CLOSED
    ]
    return grid("", (f"{event}" for event in protocol.Event), rows)


def client() -> str:
    """The table that this package's agents run on."""
    rows = [
        [
            event.value,
            *(link_states.TABLE.get((row, event), "–").replace("_", " ") for row in link_states.LinkState),
        ]
        for event in link_states.LinkEvent
    ]
    return grid("", (row.value for row in link_states.LinkState), rows)


def clauses() -> str:
    """The clauses that are graded."""
    graded = {end: {one.id for one in select_policy(end)} for end in "cs"}
    rows = [
        [f"**{one.id}**", "".join(end for end in "cs" if one.id in graded[end]), one.title, one.text]
        for one in POLICY_CLAUSES.values()
    ]
    return grid("clause", ["graded in", "name", "rule"], rows)


def dump(value: Any) -> str:
    """The frame as a hex dump, 32 bytes a line, what is text beside it."""
    frame = encode(value)
    lines = []
    for start in range(0, len(frame), 32):
        part = frame[start : start + 32]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{part.hex(' ', 2):<80}{shown}")
    return "```\n" + "\n".join(lines) + "\n```"


def written(text: str) -> str:
    """The page with its generated parts written anew."""
    parts = {f"table: {one.__name__}": one() for one in (conversation, client, clauses)}
    parts |= {f"bytes: {name}": dump(value) for name, value in BYTES.items()}
    for name, part in parts.items():
        begin, end = f"<!-- {name} -->\n", "<!-- end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        text, count = pattern.subn(lambda _, block=f"{begin}{part}\n{end}": block, text)
        if count != 1:
            raise ValueError(f"{PAGE.name} has {count} places for '{name}'")
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the tables of the policy link's specification.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is not current")
    check = parser.parse_args().check
    old = PAGE.read_text(encoding="utf-8")
    new = written(old)
    if check:
        return int(old != new)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
