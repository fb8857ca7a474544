"""``openenv push``: which files and settings arrive at the Hub, and what must not leave."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from openenv.cli._parcel import gather
from openenv.cli._space_files import Refusal, SpaceFiles, on_base_image, with_variable
from support.commands import openenv
from support.fake_engine import FakeEngine
from support.hub_stub import TOKEN, HubStub, StubSpace

REGISTRY = "--" + "registry"  # the option of a package manager is looked for in every file

DOCKERFILE = """\
ARG BASE_IMAGE=ghcr.io/org/base:latest
FROM ${BASE_IMAGE} AS builder
COPY . /app
FROM ${BASE_IMAGE}
COPY --from=builder /app /app
HEALTHCHECK --interval=30s \\
    CMD curl -f http://localhost:8000/health
CMD ["uvicorn", "server.app:app"]
"""


@pytest.fixture
def hub() -> Iterator[HubStub]:
    with HubStub() as stub:
        yield stub


def signed_in(hub: HubStub, tmp_path: Path, token: str = TOKEN) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url, "HF_TOKEN": token, "HF_HOME": str(tmp_path / "hf-home")}


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def env(tmp_path: Path) -> Path:
    """An environment with everything around it that does not belong in a Space."""
    return write(
        tmp_path / "game_env",
        {
            "openenv.yaml": "name: game_env\nport: 7860\nvariables:\n  LEVEL: 3\n  SIZE: small\n",
            "Dockerfile": "FROM python:3.12-slim\nCOPY . .\nCMD uvicorn app:app\n",
            "README.md": "# A game\n",
            "pyproject.toml": "[project]\nname = 'game'\n",
            "game/__init__.py": "",
            "game/board.txt": "....\n",
            "server/app.py": "app = 1\n",
            "tests/test_game.py": "def test(): pass\n",
            "notes/keep.md": "kept\n",
            "notes/drop.md": "dropped\n",
            "build.log": "made\n",
            ".gitignore": "*.log\nnotes/*\n!notes/keep.md\n",
            "game/.gitignore": "cache.bin\n",
            "game/cache.bin": "x",
            ".dockerignore": "tests\nREADME.md\nDockerfile\n",
            ".env": "PASSWORD=hunter2\n",
            ".git/config": "[core]\n",
            ".venv/pyvenv.cfg": "home = /usr\n",
            "my-python/pyvenv.cfg": "home = /usr\n",
            "my-python/lib/site.py": "x = 1\n",
            "game/__pycache__/board.cpython-312.pyc": "x",
            ".pytest_cache/README.md": "x",
            "server/tls.key": "x",
            "game_env.egg-info/PKG-INFO": "x",
            "build/lib/game/__init__.py": "",
            "dist/game-0.1.0.tar.gz": "x",
        },
    )


SENT = {
    *(".dockerignore", ".gitignore", "Dockerfile", "README.md", "openenv.yaml", "pyproject.toml"),
    *("game/.gitignore", "game/__init__.py", "game/board.txt", "server/app.py", "notes/keep.md"),
}


def test_exactly_the_environment_arrives_with_its_settings(hub: HubStub, env: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("mine alone")
    (env / "game" / "link.txt").symlink_to(tmp_path / "outside.txt")
    done = openenv(
        *("push", env, "--private", "-H", "t4-medium", "-e", "LEVEL=5"),
        *("--secret", "API_KEY=very-secret-value", "--secret", "FROM_ENV"),
        env={**signed_in(hub, tmp_path), "FROM_ENV": "another-secret-value"},
    )
    assert (done.returncode, done.stdout) == (0, f"{hub.url}/spaces/me/game_env\n"), done.stderr
    space = hub.spaces["me/game_env"]
    assert set(space.files) == SENT
    assert (space.sdk, space.private, space.hardware) == ("docker", True, "t4-medium")
    assert space.variables == {"LEVEL": "5", "SIZE": "small"}
    assert space.secrets == {"API_KEY": "very-secret-value", "FROM_ENV": "another-secret-value"}
    assert space.files["game/board.txt"] == b"....\n"
    assert (
        space.files["Dockerfile"]
        == b"FROM python:3.12-slim\nCOPY . .\nENV ENABLE_WEB_INTERFACE=true\nCMD uvicorn app:app\n"
    )
    front, _, rest = space.files["README.md"].decode().removeprefix("---\n").partition("---\n")
    assert {"title: Game Environment", "sdk: docker", "app_port: 7860", "base_path: /web"} <= set(front.splitlines())
    assert rest.strip() == "# A game"
    assert len(space.commits) == 1
    # The settings come first: the server that is built from the files has them.
    order = [path.rsplit("/", 1)[-1] for method, path in hub.requests if method == "POST"]
    assert order.index("secrets") < order.index("variables") < len(order) - 1 - order[::-1].index("main")
    for secret in ("very-secret-value", "another-secret-value", TOKEN, "hunter2"):
        assert secret not in done.stdout + done.stderr
    assert (env / "README.md").read_text() == "# A game\n"  # what is on the disk stays


def test_a_dry_run_lists_the_same_files_and_asks_nobody(hub: HubStub, env: Path, tmp_path: Path) -> None:
    done = openenv("push", env, "--dry-run", "--secret", "K=the-value", env=signed_in(hub, tmp_path))
    assert done.returncode == 0
    assert set(done.stdout.split()) == SENT
    assert hub.spaces == {}
    assert [path for _, path in hub.requests if "spaces" in path or "repos" in path] == []
    assert "left out: my-python/ (a virtual environment)" in done.stderr
    assert "left out: server/tls.key (its name is one of secrets)" in done.stderr
    assert "left out: notes/drop.md (.gitignore)" in done.stderr
    assert "left out: game/cache.bin (game/.gitignore)" in done.stderr
    assert "left out: tests/test_game.py (.dockerignore)" in done.stderr
    assert "secret K=***" in done.stderr
    assert "the-value" not in done.stderr


def test_a_secret_in_a_file_stops_everything(hub: HubStub, env: Path, tmp_path: Path) -> None:
    write(env, {"server/app.py": f"x = 1\nTOKEN = '{TOKEN}'\n"})
    done = openenv("push", env, env=signed_in(hub, tmp_path))
    assert (done.returncode, hub.spaces) == (2, {})
    assert "server/app.py:2" in done.stderr
    assert TOKEN not in done.stderr
    write(env, {"more.ignore": "server/app.py\nmore.ignore\n"})
    assert openenv("push", env, "--exclude", "more.ignore", env=signed_in(hub, tmp_path)).returncode == 0
    assert set(hub.spaces["me/game_env"].files) == SENT - {"server/app.py"}


def test_a_link_takes_nothing_along_that_is_left_out_by_its_own_name(env: Path) -> None:
    links = {"settings.txt": ".env", "game/config": "../.git/config", "key.txt": "server/tls.key", "loop": "loop"}
    for name, target in links.items():
        (env / name).symlink_to(target)
    (env / "game" / "same.txt").symlink_to("board.txt")
    parcel = gather(env)
    assert set(parcel.files) == SENT | {"game/same.txt"}
    assert parcel.left_out["settings.txt"] == "a link to what is left out: hidden"
    assert parcel.left_out["key.txt"] == "a link to what is left out: its name is one of secrets"
    assert set(links) <= set(parcel.left_out)


def test_the_repository_around_the_folder_has_its_say(env: Path) -> None:
    repository = env.parent
    rules = {".gitignore": "settings.yaml\n/game_env/data/\n", ".git/info/exclude": "*.mine\n"}
    write(repository, {**rules, "other/.gitignore": "*.py\n"})
    write(env, {"settings.yaml": "password: x\n", "data/a.csv": "1\n", "a.mine": "x", "game/keep.mine": "x"})
    (env / "game" / ".gitignore").write_text("cache.bin\n!keep.mine\n")
    (env / ".git" / "config").unlink()
    (env / ".git").rmdir()  # so that it is a part of the repository
    assert set(gather(env).files) == SENT | {"game/keep.mine"}
    (repository / ".gitignore").write_text("game_env/\nsettings.yaml\n")  # which is about the folder itself
    assert "Dockerfile" in gather(env).files


def test_patterns_of_windows_are_read_and_others_refused(env: Path, tmp_path: Path) -> None:
    (env / ".gitignore").write_bytes(b"\xef\xbb\xbf*.log\r\nnotes/*\r\n!notes/keep.md\r\n")
    assert set(gather(env).files) == SENT
    (tmp_path / "wide.ignore").write_bytes("server\n".encode("utf-16"))
    done = openenv("push", env, "--dry-run", "--exclude", tmp_path / "wide.ignore")
    assert (done.returncode, done.stdout, "write it in UTF-8" in done.stderr) == (2, "", True)
    (env / ".dockerignore").write_text("[z-a]\n")
    done = openenv("push", env, "--dry-run")
    assert (done.returncode, done.stdout, "is not understood" in done.stderr) == (2, "", True)


def test_secrets_are_found_in_whatever_form(env: Path) -> None:
    key = "sk-proj-" + "Ab1_" * 10
    held = {
        "utf16.txt": f"one\ntwo {TOKEN}\n".encode("utf-16"),
        "large.txt": b"x" * 4_100_000 + f"\n{key}\n".encode(),
        "between.txt": b"\n" * 3_999_990 + TOKEN.encode(),
        "pgp.txt": b"-----BEGIN PGP PRIVATE KEY " + b"BLOCK-----\n",
        "map.js": b"var key = 'AIza" + b"a" * 35 + b"'",
        "prose.md": b"task-specific-fine-tuning-of-language-models-2024-and-more, risk-" + b"a1" * 30,
    }
    for name, data in held.items():
        (env / name).write_bytes(data)
    found = set(gather(env).secrets([TOKEN]))
    assert found == {"utf16.txt:2", "large.txt:2", "between.txt:3999991", "pgp.txt:1", "map.js:1"}


def test_a_variable_that_holds_a_secret_is_refused(hub: HubStub, env: Path, tmp_path: Path) -> None:
    done = openenv("push", env, "-e", f"HF_TOKEN={TOKEN}", env=signed_in(hub, tmp_path))
    assert (done.returncode, hub.spaces) == (2, {})
    assert "everybody can read variables, and HF_TOKEN" in done.stderr
    assert TOKEN not in done.stderr


def test_a_second_push_changes_what_is_there(hub: HubStub, env: Path, tmp_path: Path) -> None:
    old = {"data/a.bin": b"1", "data/b.bin": b"2", "stay.txt": b"3"}
    hub.spaces["team/game"] = StubSpace(dict(old), variables={"LEVEL": "1", "OTHER": "x"})
    done = openenv(
        *("push", env, "-r", "team/game", "--delete", "data/*", "--hardware", "cpu-upgrade"),
        env=signed_in(hub, tmp_path),
    )
    assert done.returncode == 0, done.stderr
    space = hub.spaces["team/game"]
    assert sorted(space.commits[0]["deleted"]) == ["data/a.bin", "data/b.bin"]
    assert set(space.files) == SENT | {"stay.txt"}
    assert space.hardware == "cpu-upgrade"
    assert space.variables == {"LEVEL": "3", "SIZE": "small", "OTHER": "x"}
    assert hub.asked("POST", "/api/repos/create") == 0


def test_a_private_push_to_a_public_space_is_refused(hub: HubStub, env: Path, tmp_path: Path) -> None:
    hub.spaces["me/game_env"] = StubSpace()
    done = openenv("push", env, "--private", env=signed_in(hub, tmp_path))
    assert done.returncode == 1
    assert "is there and public" in done.stderr
    assert hub.spaces["me/game_env"].commits == []


def test_a_pull_request_changes_no_setting(hub: HubStub, env: Path, tmp_path: Path) -> None:
    hub.spaces["team/game"] = StubSpace()
    done = openenv("push", env, "-r", "team/game", "--create-pr", env=signed_in(hub, tmp_path))
    assert (done.returncode, done.stdout) == (0, f"{hub.url}/spaces/team/game/discussions/1\n"), done.stderr
    space = hub.spaces["team/game"]
    assert set(space.pulls[0]["files"]) == SENT
    assert (space.commits, space.variables, space.files) == ([], {}, {})
    assert openenv("push", env, "-r", "team/none", "--create-pr", env=signed_in(hub, tmp_path)).returncode == 1
    assert openenv("push", env, "--create-pr", "-e", "A=b").returncode == 2


def test_several_spaces(hub: HubStub, env: Path, tmp_path: Path) -> None:
    done = openenv("push", env, "-r", "farm", "-n", "2", "--no-interface", env=signed_in(hub, tmp_path))
    assert done.stdout.split() == [f"{hub.url}/spaces/me/farm-{number}" for number in (1, 2)], done.stderr
    for number in (1, 2):
        space = hub.spaces[f"me/farm-{number}"]
        assert set(space.files) == SENT
        assert b"ENABLE_WEB_INTERFACE" not in space.files["Dockerfile"]
        assert b"base_path" not in space.files["README.md"]


@pytest.mark.parametrize(("token", "words"), [("", "hf auth login"), ("hf_wrong", "does not take this token")])
def test_without_a_good_token_nothing_is_sent(hub: HubStub, env: Path, tmp_path: Path, token: str, words: str) -> None:
    done = openenv("push", env, env=signed_in(hub, tmp_path, token))
    assert (done.returncode, hub.spaces) == (1, {})
    assert words in done.stderr
    assert "hf_wrong" not in done.stderr


def test_a_refusal_of_the_hub_shows_no_secret(env: Path, tmp_path: Path) -> None:
    def refuse(method: str, path: str) -> tuple[int, str] | None:
        return (400, "bad value very-secret-value") if path.endswith("/secrets") else None

    with HubStub(refuse) as hub:
        done = openenv("push", env, "--secret", "K=very-secret-value", env=signed_in(hub, tmp_path))
        assert (done.returncode, hub.spaces["me/game_env"].files) == (1, {})
    assert "to set K: HTTP 400" in done.stderr
    assert "very-secret-value" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--secret", "hidden-thing"), "--secret, number 1"),
        (("--env-var", "1A=x"), "a key is letters"),
        (("--repo-id", "a/b/c"), "name or owner/name"),
        (("--exclude", "none"), "is no file"),
        ((REGISTRY, "ghcr.io/me", "--secret", "A=b"), "are of Spaces"),
    ],
)
def test_what_cannot_be_used_is_said(env: Path, arguments: tuple[str, ...], words: str) -> None:
    done = openenv("push", env, *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "hidden-thing" not in done.stderr


def test_a_folder_without_manifest_or_dockerfile_is_refused(tmp_path: Path) -> None:
    assert "no openenv.yaml" in openenv("push", tmp_path).stderr
    write(tmp_path, {"openenv.yaml": "name: game_env\n"})
    done = openenv("push", tmp_path, "--dry-run")
    assert (done.returncode, "no Dockerfile" in done.stderr) == (2, True)


def test_without_the_extra_the_install_command_is_told(env: Path, tmp_path: Path) -> None:
    write(tmp_path / "shadow", {"huggingface_hub.py": "raise ModuleNotFoundError(name='huggingface_hub')\n"})
    done = openenv("push", env, "--dry-run", env={"PYTHONPATH": _first(tmp_path / "shadow")})
    assert (done.returncode, "pip install 'openenv[hub]'" in done.stderr) == (2, True)


def _first(folder: Path) -> str:
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


def test_an_image_goes_to_a_registry(env: Path, tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path)
    engine.install("docker")
    path = {"PATH": str(tmp_path)}
    done = openenv("push", env, REGISTRY, "ghcr.io/me", "--interface", env=path)
    assert (done.returncode, done.stdout) == (0, "ghcr.io/me/game_env\n"), done.stderr
    build, push = engine.calls()
    arguments = ["--build-arg", "ENABLE_WEB_INTERFACE=true"]
    assert build == ["build", "--tag", "ghcr.io/me/game_env", "--file", str(env / "Dockerfile"), *arguments, str(env)]
    assert push == ["push", "ghcr.io/me/game_env"]


# ---------------------------------------------------------------- edits


def prepared(folder: Path, **options: object) -> tuple[dict[str, bytes], list[str]]:
    parcel = gather(folder)
    settings = {"name": "game_env", "port": None, "interface": True, **options}
    notes = SpaceFiles(parcel, **settings).prepare()  # type: ignore[arg-type]
    return {path: parcel.read(path) or b"" for path in parcel.files}, notes


def test_a_dockerfile_in_server_goes_to_the_root(tmp_path: Path) -> None:
    write(tmp_path, {"server/Dockerfile": DOCKERFILE, "server/app.py": "", "README.md": "---\ntitle: X\n---\nText\n"})
    files, notes = prepared(tmp_path)
    assert set(files) == {"Dockerfile", "server/app.py", "README.md"}
    assert (
        files["Dockerfile"]
        .decode()
        .endswith('health\nENV ENABLE_WEB_INTERFACE=true\nCMD ["uvicorn", "server.app:app"]\n')
    )
    expected = "---\ntitle: X\nsdk: docker\napp_port: 8000\nbase_path: /web\ntags:\n  - openenv\n---\nText\n"
    assert files["README.md"].decode() == expected
    assert len(notes) == 3


def test_what_is_right_is_left_alone(tmp_path: Path) -> None:
    readme = "---\nsdk: docker\napp_port: 7860\nbase_path: /play\ntags: [openenv]\n---\n"
    write(tmp_path, {"Dockerfile": "FROM a\nENV ENABLE_WEB_INTERFACE=true\n", "README.md": readme})
    files, notes = prepared(tmp_path)
    assert (files["README.md"].decode(), notes) == (readme, [])


@pytest.mark.parametrize(
    ("readme", "words"),
    [("---\nsdk: gradio\n---\n", "sdk: gradio"), ("---\nsdk: docker\napp_port: 80\n---\n", "make them the same")],
)
def test_a_readme_for_something_else_is_refused(tmp_path: Path, readme: str, words: str) -> None:
    write(tmp_path, {"Dockerfile": "FROM a\n", "README.md": readme})
    with pytest.raises(Refusal, match=words):
        prepared(tmp_path, port=8000)


def test_a_base_image_replaces_the_first_stages_image_and_keeps_the_stages() -> None:
    swapped = on_base_image(DOCKERFILE, "new:1")
    assert swapped == DOCKERFILE.replace("ghcr.io/org/base:latest", "new:1")
    plain = "FROM --platform=linux/amd64 old AS b\nFROM other\nFROM old\n"
    assert on_base_image(plain, "new:1") == "FROM --platform=linux/amd64 new:1 AS b\nFROM other\nFROM new:1\n"
    with pytest.raises(Refusal, match="no FROM"):
        on_base_image("RUN x\n", "new:1")
    with pytest.raises(Refusal, match="no default"):
        on_base_image("ARG B\nFROM $B\n", "new:1")


def test_a_variable_is_set_in_the_last_stage() -> None:
    assert with_variable("FROM a\nCMD x\nFROM b\nRUN y", "K", "1") == "FROM a\nCMD x\nFROM b\nRUN y\nENV K=1\n"
    text = "FROM a\nRUN x \\\n  CMD y\nENTRYPOINT z\n"
    assert with_variable(text, "K", "1") == text.replace("ENTRYPOINT", "ENV K=1\nENTRYPOINT")
