"""The Python surface of both packages, read by one script in each: what upstream has, ours has, and takes alike.

Ours may take more (keyword) arguments and have more names. Names of later work are listed here until they exist.
"""

from __future__ import annotations

from typing import Any

import pytest

from interop.sides import OURS, UPSTREAM, Side, run_shared

Surface = dict[str, dict[str, dict[str, Any]]]

LATER: set[str] = set()
"""Names that come with work of their own: take them out when they exist."""

UNLISTED = {"MCPEnvironment"}
"""Needs an extra, so it is in no `import *`; it can be imported by name."""

TYPE_VARIABLES = {"EnvClientT", "ResultT", "SessionT", "StateT"}

SAFER_DEFAULTS = {"UVProvider.__init__(host=)"}
"""Upstream's listens on all interfaces."""


def read(side: Side) -> Surface:
    surface: Surface = run_shared(side, "surface.py")
    return surface


@pytest.fixture(scope="module")
def surfaces() -> tuple[Surface, Surface]:
    return read(UPSTREAM), read(OURS)


def test_every_name_is_where_upstream_has_it(surfaces: tuple[Surface, Surface]) -> None:
    theirs, ours = surfaces
    assert sum(map(len, theirs.values())) > 200
    missing = {
        name
        for module, names in theirs.items()
        for name in names
        if name not in ours[module] or ours[module][name]["kind"] == "missing"
    }
    assert missing - TYPE_VARIABLES - UNLISTED <= LATER


def both(surfaces: tuple[Surface, Surface], kind: str) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    theirs, ours = surfaces
    return [
        (f"{module}.{name}", described, ours[module][name])
        for module, names in theirs.items()
        for name, described in names.items()
        if described["kind"] == kind and name in ours[module] and name != "WSIncomingMessage"
    ]


def test_models_have_the_same_fields_defaults_and_strictness(surfaces: tuple[Surface, Surface]) -> None:
    found = both(surfaces, "model")
    assert len(found) > 40
    for name, theirs, ours in found:
        assert (ours["fields"], ours["extra"]) == (theirs["fields"], theirs["extra"]), name
        assert ours["validate_assignment"] or not theirs["validate_assignment"], name


def test_enumerations_have_the_same_members(surfaces: tuple[Surface, Surface]) -> None:
    found = both(surfaces, "enum")
    assert len(found) > 5
    for name, theirs, ours in found:
        assert ours == theirs, name


def assert_takes(name: str, theirs: list[list[Any]] | str | None, ours: Any) -> None:
    """Ours can be called however upstream's can."""
    if not isinstance(theirs, list) or not isinstance(ours, list):
        return
    if ours and ours[-1][1] == "VAR_KEYWORD" and not theirs:
        return
    positional = {"POSITIONAL_OR_KEYWORD"} | (
        {"POSITIONAL_ONLY"} if name.endswith("MCPToolClient.call_tool") else set()
    )
    plain = [one for one in ours if one[1] in positional]  # a tool may have an argument called name
    by_name = {one[0]: one for one in ours}
    position = 0
    for parameter, kind, default in theirs:
        if kind == "POSITIONAL_OR_KEYWORD":
            assert plain[position][0] == parameter, name
            if default:
                assert plain[position][2] == default, f"{name}({parameter}=)"
            position += 1
        elif kind == "KEYWORD_ONLY":
            place = f"{name}({parameter}=)"
            assert by_name[parameter][2] == default or place.endswith(tuple(SAFER_DEFAULTS)), place
        else:
            assert kind in {one[1] for one in ours}, f"{name} takes any arguments"
    assert all(one[2] for one in plain[position:]), f"{name} needs more than upstream's"


def test_functions_take_the_same_arguments(surfaces: tuple[Surface, Surface]) -> None:
    found = both(surfaces, "function")
    assert {"create_app", "create_fastapi_app", "serialize_observation"} <= {
        name.rsplit(".")[-1] for name, _, _ in found
    }
    for name, theirs, ours in found:
        assert_takes(name, theirs["parameters"], ours["parameters"])


def test_classes_have_the_same_methods(surfaces: tuple[Surface, Surface]) -> None:
    found = both(surfaces, "class")
    assert {"EnvClient", "Environment", "SyncEnvClient", "HTTPEnvServer"} <= {
        name.rsplit(".")[-1] for name, _, _ in found
    }
    for name, theirs, ours in found:
        assert set(ours["abstract"]) <= set(theirs["abstract"]), name
        for method, parameters in theirs["methods"].items():
            if name.endswith("HTTPEnvServer") and method == "concurrency_config":
                continue  # set by the constructor, here
            assert method in ours["methods"], f"{name}.{method}"
            assert_takes(f"{name}.{method}", parameters, ours["methods"][method])
