"""Clients and actions from names: packages, addresses, Spaces; and that no code is fetched unasked."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pydantic
import pytest

from openenv import AutoAction, AutoEnv, GenericAction, GenericEnvClient
from openenv.auto import auto_env, reset_discovery
from openenv.auto._schema_models import SchemaModel, model_from_schema
from openenv.core.env_server.http_server import create_app
from openenv.testing import SpaceStub
from sudoku_env import SudokuEnv
from sudoku_env.server.app import app as sudoku_app
from support.clients import CountServer, count_server
from support.live import serve

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """No process is started unless a test looks at it."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Any:
        commands.append(command)
        return SimpleNamespace(stdout="Successfully installed openenv-core-0.3 openenv-wordle_env-0.1.0", stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    reset_discovery()
    yield commands
    reset_discovery()


@pytest.fixture
def space(
    monkeypatch: pytest.MonkeyPatch, space_stub: Callable[..., SpaceStub]
) -> Iterator[tuple[SpaceStub, CountServer]]:
    """The Space org/count, which sleeps for a moment."""
    with count_server() as server:
        stub = space_stub(server.url, "hf_x", sleep_s=0.2)
        monkeypatch.setattr(AutoEnv, "_resolve_space_url", lambda name: stub.url)
        yield stub, server


def test_neither_is_instantiated() -> None:
    for factory in (AutoEnv, AutoAction):
        with pytest.raises(TypeError, match=rf"factory class.*{factory.__name__}\.from_hub\(\)"):
            factory()


def test_an_installed_package_with_an_address_gives_the_typed_client() -> None:
    with serve(sudoku_app) as url:
        client: Any = AutoEnv.from_env("sudoku", base_url=url)
        assert type(client) is SudokuEnv
        with client.sync() as playing:
            assert playing.reset(seed=1).observation.done is False
        assert AutoEnv.get_env_class("sudoku-env") is SudokuEnv
        assert AutoEnv.get_env_info("sudoku_env")["package"] == "openenv-sudoku-env"
        assert AutoAction.get_action_info("sudoku")["module"] == "sudoku_env.client"


def test_an_address_alone_finds_the_package_by_what_the_server_says() -> None:
    with serve(sudoku_app) as url:
        assert type(AutoEnv.from_env(url)) is SudokuEnv
        assert isinstance(AutoEnv.from_env(url, skip_install=True), GenericEnvClient)


def test_an_address_of_what_is_not_installed_gives_models(nothing_is_fetched: list[list[str]]) -> None:
    with count_server() as server:
        client: Any = AutoEnv.from_env(server.url)
        made = AutoAction.from_env(server.url)
        assert isinstance(client, GenericEnvClient)
        with client.sync() as playing:
            playing.reset()
            result = playing.step(client.action_model(op="inc"))
            assert result.observation.count == result.observation["count"] == 1
            assert playing.step({"op": "inc"}).observation.count == 2
            assert playing.step(made(op="inc")).observation.get("count") == 3
            assert playing.state()["step_count"] == 3
        with pytest.raises(pydantic.ValidationError):
            made(op=[])
        with pytest.raises(pydantic.ValidationError, match="nonsense"):
            made(op="inc", nonsense=1)
        assert len(server.env.log.of("step")) == 3
    assert nothing_is_fetched == []


def test_a_space_is_waited_for_and_played_without_its_code(
    space: tuple[SpaceStub, CountServer], nothing_is_fetched: list[list[str]]
) -> None:
    stub, server = space
    client: Any = AutoEnv.from_env("org/count", token="hf_x")
    assert isinstance(client, GenericEnvClient)
    with client.sync() as playing:
        playing.reset()
        assert playing.step(AutoAction.from_env("org/count", token="hf_x")(op="inc")).observation.count == 1
    assert len(server.env.log.of("step")) == 1
    assert all(one.authorized for one in stub.requests)
    assert stub.requests[0].answer == 503
    assert nothing_is_fetched == []


def test_a_space_whose_package_is_installed_gives_the_typed_client(space: tuple[SpaceStub, CountServer]) -> None:
    space[0].wake()
    assert type(AutoEnv.from_hub("org/sudoku_env", base_url=space[0].url, token="hf_x")) is SudokuEnv
    assert AutoAction.from_hub("org/sudoku-env").__name__ == AutoEnv.get_env_info("sudoku")["action_class"]


@pytest.mark.parametrize("revision", [None, "main", "v1.0", "0123abc", COMMIT.upper()])
def test_code_is_installed_at_a_commit_only(revision: str | None, nothing_is_fetched: list[list[str]]) -> None:
    with pytest.raises(ValueError, match="revision=<40 hexadecimal digits>"):
        AutoEnv.from_env("org/wordle", trust_remote_code=True, revision=revision)
    assert nothing_is_fetched == []


def test_code_is_installed_when_it_is_trusted_and_pinned(
    nothing_is_fetched: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto_env, "_has_uv", lambda: False)
    name = AutoEnv._ensure_package_from_hub("org/wordle", trust_remote_code=True, revision=COMMIT)
    assert name == "wordle_env"
    (command,) = nothing_is_fetched
    assert command[1:] == ["-m", "pip", "install", f"git+https://huggingface.co/spaces/org/wordle@{COMMIT}"]


@pytest.mark.parametrize(("answer", "installs"), [("y", True), ("n", False), (None, False)])
def test_a_person_is_asked_where_nothing_was_said(
    answer: str | None, installs: bool, nothing_is_fetched: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENENV_TRUST_REMOTE_CODE", raising=False)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: answer is not None))
    monkeypatch.setattr("builtins.input", lambda _: answer)
    if installs:
        assert AutoEnv._install_from_hub("org/wordle") == "openenv-wordle_env"
    else:
        with pytest.raises(ValueError, match="Installation cancelled"):
            AutoEnv._install_from_hub("org/wordle")
    assert len(nothing_is_fetched) == installs


def test_trust_in_the_environment_does_not_replace_the_commit(
    space: tuple[SpaceStub, CountServer], nothing_is_fetched: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENENV_TRUST_REMOTE_CODE", "1")
    assert isinstance(AutoEnv.from_env("org/count", token="hf_x"), GenericEnvClient)
    assert nothing_is_fetched == []


def test_names_that_are_not_installed() -> None:
    with pytest.raises(ValueError, match=r"Unknown environment 'sudoko'.*Did you mean: sudoku"):
        AutoEnv.from_env("sudoko")
    with pytest.raises(ValueError, match="Unknown environment"):
        AutoAction.from_env("nonesuch")
    for ask in (AutoEnv.get_env_info, AutoEnv.get_env_class, AutoAction.get_action_info):
        with pytest.raises(ValueError, match="Unknown environment"):
            ask("nonesuch")
    with pytest.raises(ValueError, match="skip_install"):
        AutoEnv.from_env("sudoku", skip_install=True)
    assert AutoAction.from_env("nonesuch", skip_install=True) is GenericAction


def test_a_server_that_is_not_there() -> None:
    from openenv.testing.processes import free_port

    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ConnectionError, match="not ready within"):
        AutoEnv.from_env(url, wait_timeout=0.2)
    with pytest.raises(ConnectionError):
        AutoEnv.from_env("sudoku", base_url=url, skip_install=True, wait_timeout=0.2)


def test_addresses_of_spaces() -> None:
    for name in ("org/My_env", "https://huggingface.co/spaces/org/My_env", "https://huggingface.co/org/My_env/"):
        assert AutoEnv._resolve_space_url(name) == "https://org-my-env.hf.space"
        assert AutoEnv._get_hub_git_url(name) == "git+https://huggingface.co/spaces/org/My_env"


@pytest.mark.parametrize(
    "name",
    [
        *(
            "org/wordle#x",
            "org/wordle@main",
            "org/wordle?x",
            "org/wordle\n",
            "org/wor dle",
            "org/../wordle",
            "-e/wordle",
        ),
        *("a/b/wordle", "/wordle", "org/", "https://huggingface.co/org", "git+https://example.com/org/wordle"),
        *("https://huggingface.co/spaces/org/wordle/tree/main", "https://user:pw@huggingface.co/spaces/org/wordle"),
    ],
)
def test_a_name_that_no_space_has_installs_nothing_and_asks_nobody(
    name: str, nothing_is_fetched: list[list[str]]
) -> None:
    """After a ``#`` the commit would be no commit any more."""
    for trusted in (True, False):
        with pytest.raises(ValueError, match="is no Space"):
            AutoEnv.from_env(name, trust_remote_code=trusted, revision=COMMIT, wait_timeout=0.2)
    assert nothing_is_fetched == []


def test_an_address_is_one_in_any_case() -> None:
    assert auto_env._is_address("HTTP://localhost:8000/org/wordle")
    assert not auto_env._is_address("HTTPS://HuggingFace.co/spaces/org/wordle")
    assert AutoEnv._resolve_space_url("HTTPS://HuggingFace.co/spaces/org/wordle") == "https://org-wordle.hf.space"


@pytest.mark.parametrize("url", ["http://localhost:8000", "http://127.5.5.5", "http://[::1]:8000", "http://0.0.0.0"])
def test_local_addresses(url: str) -> None:
    assert AutoEnv._is_local_url(url) is True


@pytest.mark.parametrize(
    "url", ["http://localhost.evil.com", "http://my-127.0.0.1.io", "https://example.com/?q=localhost", "not-a-url", ""]
)
def test_other_addresses(url: str) -> None:
    assert AutoEnv._is_local_url(url) is False


# ------------------------------------------------------------------- models


def test_a_model_from_a_schema_that_pydantic_wrote() -> None:
    class Inner(pydantic.BaseModel):
        x: int

    class Full(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        kind: str = pydantic.Field(pattern="a|b", max_length=3)
        n: int = pydantic.Field(5, ge=1, le=9)
        choice: pydantic.types.StrictStr | None = None
        inner: Inner
        many: list[Inner] = []
        table: dict[str, float] = {}
        copy_: int = pydantic.Field(1, alias="copy")
        json_: int = pydantic.Field(1, alias="json")

    made = model_from_schema(Full.model_json_schema(), "Full")
    one = made(kind="a", inner={"x": 1}, many=[{"x": 2}], copy=4)
    assert one["copy"] == 4
    assert one["inner"].x == 1
    assert one["n"] == 5
    assert one.model_dump(by_alias=True, exclude_unset=True) == {
        "kind": "a",
        "inner": {"x": 1},
        "many": [{"x": 2}],
        "copy": 4,
    }
    for wrong in ({"n": 10}, {"inner": 1}, {"many": [{}]}, {"kind": "abcd"}, {"more": 1}):
        with pytest.raises(pydantic.ValidationError):
            made(**{"kind": "a", "inner": {"x": 1}, **wrong})


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"properties": {"a": True, "b": {"type": "what"}, "c": {"$ref": "#/$defs/none"}, "d": {"enum": [[1]]}}},
        {"properties": {"class": {"type": "string"}, "1x": {"type": ["integer", "null"]}, "_p": {}, "model_dump": {}}},
        {
            "$defs": {"T": {"type": "object", "properties": {"next": {"$ref": "#/$defs/T"}}}},
            "properties": {"t": {"$ref": "#/$defs/T"}},
        },
        {"oneOf": [{"type": "object"}, {"type": "string"}]},
        {"required": 5, "title": "a\x00b", "properties": {"a b": {}, "a_b": {}, "": {}, "²": {}}},
        {"required": [["a"]], "properties": {"a": [1]}},
        {"properties": {"a\x00": {"type": "object", "properties": {"b": {"type": "string"}}}}},
    ],
)
def test_odd_schemas_give_a_model_all_the_same(schema: dict[str, Any]) -> None:
    made = model_from_schema(schema, "Odd")
    assert made is not SchemaModel
    values = {key: None for key in schema.get("properties", {}) if key not in ("class", "t")}
    assert set(made(**values).keys()) >= set(values)


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ({"type": "integer", "minLength": 3}, 2),  # words for another type
        ({"type": "string", "minimum": 3}, "a"),
        ({"type": "boolean", "maximum": 0}, True),
        ({"type": "integer", "exclusiveMinimum": True, "minimum": 1.5}, 0),
        ({"type": "number", "minimum": float("nan"), "maximum": float("inf")}, 0.5),
        ({"type": "string", "minLength": -1, "maxLength": 10**30}, "a"),
        ({"type": "array", "minItems": 0.5}, []),
    ],
)
def test_a_limit_that_means_nothing_is_none(spec: dict[str, Any], value: object) -> None:
    made = model_from_schema({"properties": {"a": spec}}, "Odd")
    assert made is not SchemaModel
    assert made(a=value).model_dump() == {"a": value}


def test_a_field_takes_no_value_of_another_whose_name_is_like_its_own() -> None:
    made = model_from_schema({"properties": {"a b": {}, "a_b": {}}}, "Odd")
    assert made.model_validate({"a_b": 1}).model_dump(by_alias=True) == {"a b": None, "a_b": 1}


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": {"type": "array", "items": schema}}}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        _nested(450),
        {"properties": {"a": {"anyOf": [{"const": number} for number in range(3000)]}}},
        {"properties": {"a": {"type": ["string", "null"] * 1000}}},
        {
            "properties": {"a": {"$ref": "#/$defs/1"}},
            "$defs": {str(n): {"type": "array", "items": {"$ref": f"#/$defs/{n + 1}"}} for n in range(1000)},
        },
    ],
    ids=["deep", "wide", "types", "referring"],
)
def test_a_schema_without_end_costs_no_more_than_its_reading(schema: dict[str, Any]) -> None:
    made = model_from_schema(schema, "Odd")
    assert made is not SchemaModel
    assert made.model_validate({}).get("a") is None


def test_a_server_without_a_schema_gives_a_plain_generic_client(monkeypatch: pytest.MonkeyPatch) -> None:
    from openenv.core.env_server.types import Action, Observation
    from support.envs import fresh_env

    app = create_app(fresh_env(), Action, Observation)
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", "") != "/schema"]
    with serve(app) as url:
        assert type(AutoEnv.from_env(url)) is GenericEnvClient
        assert AutoAction.from_env(url) is GenericAction
