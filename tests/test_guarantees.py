"""The page of guarantees: each has tests, they exist, and the fault suite knows the same guarantees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
SECTIONS = dict(re.findall(r"^## (G\d+) .*?\n(.*?)(?=^## )", PAGE, re.M | re.S))
ALL = [f"G{number}" for number in range(1, 13)]


def named_tests(guarantee: str) -> list[str]:
    named = re.search(r"^Tests: (.*?)(?:\n\n|\Z)", SECTIONS[guarantee], re.M | re.S)
    return re.findall(r"`(tests/[\w/.]+)`", named.group(1)) if named else []


def test_all_guarantees_are_there_in_order() -> None:
    assert list(SECTIONS) == ALL


@pytest.mark.parametrize("guarantee", ALL)
def test_a_guarantee_names_tests_that_exist(guarantee: str) -> None:
    named = named_tests(guarantee)
    assert len(named) >= 2
    for name in named:
        text = (ROOT / name).read_text()
        runs = re.search(r"^\s*(?:async )?def (?:test_|run_)\w+\(|^Test\w+ = ", text, re.M)
        assert runs, f"{name} has no test"


@pytest.mark.parametrize("guarantee", ALL)
def test_a_guarantee_says_where_it_ends_against_a_plain_server(guarantee: str) -> None:
    assert "Plain server:" in SECTIONS[guarantee]


def test_every_scenario_attacks_a_guarantee_whose_section_names_its_file() -> None:
    used = set()
    for path in (ROOT / "tests" / "faults").glob("test_*.py"):
        for marked in re.findall(r"\.guarantee\((.*?)\)", path.read_text(), re.S):
            used |= {(one, path.name) for one in re.findall(r'"(G\d+)"', marked)}
    assert {one for one, _ in used} <= set(ALL)
    for one in ALL:
        files = {name for guarantee, name in used if guarantee == one}
        named = {Path(name).name for name in named_tests(one) if name.startswith("tests/faults/")}
        assert named <= files, f"{one} names {named - files}, where no scenario attacks it"
        assert bool(named) == bool(files), f"{one} is attacked in {files}, and its section names none of them"
