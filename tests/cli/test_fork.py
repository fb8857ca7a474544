"""``openenv fork``: what of a copied Space is edited, what arrives at the Hub, and which Spaces are refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import uv

from openenv.cli._space_files import Refusal
from openenv.cli._swap import Swap, wanted_files
from openenv.cli._wheel import WHEEL
from support.commands import openenv
from support.hub_stub import TOKEN, HubStub, StubSpace

PIN = "https://example.org/openenv-0.11.0-py3-none-any.whl"
OURS = f"openenv[core] @ {PIN}"

DOCKERFILE = """\
FROM python:3.12-slim AS builder
RUN apt-get install -y git
COPY pyproject.toml uv.lock ./
# openenv stays where it is in comments
RUN --mount=type=cache,target=/cache \\
    if [ -f uv.lock ]; then \\
        uv sync --frozen --no-editable; \\
    else \\
        uv sync --no-editable; \\
    fi
RUN uv sync --locked
CMD ["uvicorn", "server.app:app", "--workers", "1"]
"""
PYPROJECT = """\
[build-system]
requires = ["setuptools"]

[project]
name = "openenv-game"
requires-python = ">=3.10"
dependencies = [
    # "openenv @ git+https://github.com/huggingface/OpenEnv.git",
    "openenv[core]>=0.2.2",
    "numpy",
]

[project.optional-dependencies]
dev = ["pytest>=8"]

[tool.uv.sources]
openenv = { git = "https://github.com/meta-pytorch/OpenEnv.git" }
"""
LOCK = 'version = 1\n\n[[package]]\nname = "openenv"\nversion = "0.2.3"\n'
APP = "import requests\nimport numpy\nfrom openenv.core.env_server import create_app\n"


@pytest.fixture
def hub() -> Iterator[HubStub]:
    with HubStub() as stub:
        yield stub


def signed_in(hub: HubStub, tmp_path: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "hf-home")}


def game(**more: str) -> StubSpace:
    files = {
        "Dockerfile": DOCKERFILE,
        "pyproject.toml": PYPROJECT,
        "uv.lock": LOCK,
        "server/app.py": APP,
        "README.md": "",
    }
    return StubSpace({path: text.encode() for path, text in {**files, **more}.items()})


def swapped(reference: str = PIN, **files: str) -> Swap:
    """The swap of a Space of these files."""
    swap = Swap(files, list(files), reference)
    swap.run()
    return swap


def test_a_safe_fork_sends_exactly_the_edits(hub: HubStub, tmp_path: Path) -> None:
    hub.spaces["org/game"] = game()
    before = dict(hub.spaces["org/game"].files)
    done = openenv(
        *("fork", "org/game", "--safe", "--openenv", PIN, "-e", "A=1", "-s", "KEY=the-secret", "-H", "cpu-upgrade"),
        env=signed_in(hub, tmp_path),
    )
    assert (done.returncode, done.stdout) == (0, f"{hub.url}/spaces/me/game\n"), done.stderr
    mine = hub.spaces["me/game"]
    assert (mine.variables, mine.secrets, mine.hardware) == ({"A": "1"}, {"KEY": "the-secret"}, "cpu-upgrade")
    assert [set(commit["files"]) for commit in mine.commits] == [{"Dockerfile", "pyproject.toml"}]
    assert mine.commits[0]["deleted"] == ["uv.lock"]
    assert set(mine.files) == set(before) - {"uv.lock"}
    pyproject = mine.files["pyproject.toml"].decode()
    assert pyproject == PYPROJECT.replace('"openenv[core]>=0.2.2"', f'"{OURS}", "requests"').replace(
        'openenv = { git = "https://github.com/meta-pytorch/OpenEnv.git" }\n', ""
    ).replace(">=3.10", ">=3.11")
    dockerfile = mine.files["Dockerfile"].decode()
    assert dockerfile == DOCKERFILE.replace("pyproject.toml uv.lock", "pyproject.toml").replace(" --locked", "")
    assert f'+    "{OURS}", "requests",' in done.stderr
    assert '-    "openenv[core]>=0.2.2",' in done.stderr
    assert hub.spaces["org/game"].files == before
    assert "the-secret" not in done.stdout + done.stderr
    assert TOKEN not in done.stdout + done.stderr


def test_by_default_the_wheel_that_runs_goes_into_the_copy_and_installs(hub: HubStub, tmp_path: Path) -> None:
    hub.spaces["org/game"] = game()
    done = openenv("fork", "org/game", "--safe", "--repo-id", "me/other", env=signed_in(hub, tmp_path))
    assert done.returncode == 0, done.stderr
    first, second = hub.spaces["me/other"].commits
    assert list(first["files"]) == [f"wheels/{WHEEL}"]
    assert second["deleted"] == ["uv.lock"]
    line = next(one for one in second["files"]["pyproject.toml"].decode().splitlines() if "openenv[core]" in one)
    reference = line.strip().split('"')[1].replace("[core]", "")
    assert f"{hub.url}/spaces/me/other/resolve/" in reference
    assert "#sha256=" in reference
    command = [
        uv.find_uv_bin(),
        "pip",
        "install",
        "--no-deps",
        "--no-cache",
        "--no-config",
        "--target",
        str(tmp_path / "x"),
    ]
    installed = subprocess.run(
        [*command, "--python", sys.executable, reference], capture_output=True, text=True, check=False, timeout=100
    )
    assert installed.returncode == 0, installed.stderr
    assert (tmp_path / "x" / "openenv" / "core" / "env_client.py").is_file()


def test_a_dry_run_shows_the_edits_and_copies_nothing(hub: HubStub, tmp_path: Path) -> None:
    hub.spaces["org/game"] = game()
    done = openenv("fork", "org/game", "--safe", "--openenv", PIN, "--dry-run", env=signed_in(hub, tmp_path))
    assert done.returncode == 0, done.stderr
    assert "--- a/pyproject.toml\n+++ b/pyproject.toml\n" in done.stdout
    assert "--- a/uv.lock\n+++ /dev/null\n" in done.stdout
    assert set(hub.spaces) == {"org/game"}
    assert [method for method, path in hub.requests if method == "POST"] == []


def test_a_plain_fork_is_a_copy(hub: HubStub, tmp_path: Path) -> None:
    hub.spaces["org/game"] = game()
    done = openenv("fork", "org/game", "--private", env=signed_in(hub, tmp_path))
    assert done.returncode == 0, done.stderr
    mine = hub.spaces["me/game"]
    assert (mine.files, mine.private, mine.hardware) == (hub.spaces["org/game"].files, True, "cpu-basic")
    assert mine.commits == []


def test_what_is_not_understood_is_refused_before_anything_is_made(hub: HubStub, tmp_path: Path) -> None:
    hub.spaces["org/game"] = game(**{"src/core/env_server/app.py": ""})
    done = openenv("fork", "org/game", "--safe", "--openenv", PIN, env=signed_in(hub, tmp_path))
    assert done.returncode == 1
    assert "org/game was not copied: the Space brings its own copy of the package" in done.stderr
    assert set(hub.spaces) == {"org/game"}


def test_a_copy_that_could_not_be_edited_is_told(tmp_path: Path) -> None:
    def refuse(method: str, path: str) -> tuple[int, str] | None:
        return (403, "no") if "/commit/" in path else None

    with HubStub(refuse) as hub:
        hub.spaces["org/game"] = game()
        done = openenv("fork", "org/game", "--safe", "--openenv", PIN, env=signed_in(hub, tmp_path))
    assert done.returncode == 1
    assert "me/game was copied, but still runs upstream's package" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("game",), 2, "is not owner/name"),
        (("org/none",), 1, "there is no Space org/none"),
        (("org/game", "--dry-run"), 2, "--safe"),
        (("org/game", "-r", "org/game"), 1, "already"),
        (("org/game", "--safe", "--openenv", "latest"), 2, "it takes git+https"),
        (("org/game", "--safe", "--private"), 2, "name one that it can fetch"),
        (("org/game", "--set-env", f"TOKEN={TOKEN}"), 2, "everybody can read variables, and TOKEN"),
        (("org/game", "--safe", "--openenv", f"git+https://me:{TOKEN}@x.example/o@main"), 2, "holds credentials"),
    ],
)
def test_what_cannot_be_done_is_said(
    hub: HubStub, tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    hub.spaces["org/game"] = game()
    done = openenv("fork", *arguments, env=signed_in(hub, tmp_path))
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr
    assert set(hub.spaces) == {"org/game"}


# ---------------------------------------------------------------- edits


@pytest.mark.parametrize(
    ("command", "new"),
    [
        ("RUN pip install openenv-core", f'RUN pip install "{OURS}"'),
        ("RUN pip install 'openenv[core]>=0.2,<1' numpy", f"RUN pip install '{OURS}' numpy"),
        ("RUN uv pip install --system openenv==0.2.1 && echo", f'RUN uv pip install --system "{OURS}" && echo'),
        ("RUN apt-get install git && pip install git+https://github.com/meta-pytorch/OpenEnv.git@v0.1", None),
        ('RUN pip install "openenv @ git+https://github.com/huggingface/OpenEnv.git"', f'RUN pip install "{OURS}"'),
        ('ARG OPENENV="openenv>=0.2"', f'ARG OPENENV="{OURS}"'),
        ("RUN pip install \\\n    numpy \\\n    openenv_core", f'RUN pip install \\\n    numpy \\\n    "{OURS}"'),
    ],
)
def test_commands_of_a_dockerfile(command: str, new: str | None) -> None:
    text = f"FROM python:3.11\n{command}\nCOPY openenv.yaml .\nCMD openenv-game\n"
    new = new or f'RUN apt-get install git && pip install "{OURS}"'
    assert swapped(Dockerfile=text).edited == {"Dockerfile": text.replace(command, new)}


def test_requirements_and_what_came_along() -> None:
    files = {
        "Dockerfile": "FROM python:3.11\nRUN pip install -r requirements.txt\n",
        "server/requirements.txt": "fastapi\nopenenv[core]>=0.2.0  # the framework\nopenenv-game\npyyaml\n",
        "server/app.py": "import yaml\nimport openai\n",
    }
    swap = Swap(files, list(files), "==0.11.0")
    swap.run()
    assert swap.edited == {
        "server/requirements.txt": "fastapi\nopenenv[core]==0.11.0  # the framework\nopenai\nopenenv-game\npyyaml\n"
    }
    assert "openai" in swap.notes[0]


def test_only_requirements_are_edited() -> None:
    text = (
        '[project]\nname = "x"\nkeywords = ["openenv"]\ndependencies = ["numpy", "openenv"]\n\n'
        '[project.optional-dependencies]\nserver = [\n    "openenv",\n    # "openenv",\n]\n\n'
        '[tool.x]\nnames = ["openenv"]\n'
    )
    files = {"Dockerfile": "FROM python:3.11\nRUN pip install .\n", "pyproject.toml": text}
    swap = Swap(files, list(files), PIN)
    swap.run()
    new = text.replace('"numpy", "openenv"', f'"numpy", "{OURS}"').replace('    "openenv"', f'    "{OURS}"')
    assert swap.edited == {"pyproject.toml": new}


def test_hatchling_is_told_to_take_a_url() -> None:
    text = '[build-system]\nbuild-backend = "hatchling.build"\n[project]\nname = "x"\ndependencies = ["openenv"]\n'
    files = {"Dockerfile": "FROM python:3.11\nRUN pip install .\n", "pyproject.toml": text}
    swap = Swap(files, list(files), PIN)
    swap.run()
    assert "[tool.hatch.metadata]\nallow-direct-references = true\n" in (swap.edited["pyproject.toml"] or "")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"Dockerfile": "FROM ghcr.io/org/openenv-base\nCMD x\n"}, "nothing in its Dockerfile"),
        ({"app.py": ""}, "no Dockerfile"),
        ({"Dockerfile": "FROM python:3.10-slim\nRUN pip install openenv\n"}, "Python 3.10"),
        ({"Dockerfile": "FROM a\nRUN git clone https://github.com/meta-pytorch/OpenEnv\n"}, "clones"),
        ({"Dockerfile": "FROM a\nCOPY src/core /app/core\nRUN pip install openenv\n"}, "copies upstream's sources"),
        ({"Dockerfile": "FROM a\n", "pyproject.toml": '[tool.poetry.dependencies]\nopenenv = "*"\n'}, "Poetry"),
        ({"Dockerfile": "FROM a\n", "requirements.txt": "-e git+https://github.com/x/openenv\n"}, "not understood"),
        ({"Dockerfile": "FROM a\n", "requirements.txt": "openenv @ https://example.org/a.whl\n"}, "not upstream's"),
        ({"Dockerfile": "FROM a\n", "requirements.txt": "openenv; python_version > '3'\n"}, "under a condition"),
        ({"Dockerfile": "FROM a\n", "pyproject.toml": "[project\n"}, "cannot be read"),
    ],
)
def test_refusals(files: dict[str, str], reason: str) -> None:
    swap = Swap(files, list(files), PIN)
    with pytest.raises(Refusal, match=reason):
        swap.run()


def test_a_reference_to_a_repository_needs_git_in_the_image() -> None:
    files = {"Dockerfile": "FROM python:3.11\nRUN pip install openenv\n"}
    with pytest.raises(Refusal, match="has no git"):
        Swap(files, list(files), "git+https://example.org/r@abc").run()


def test_which_files_are_read() -> None:
    paths = [
        "Dockerfile",
        "server/Dockerfile",
        "a/b/Dockerfile",
        "uv.lock",
        "x.py",
        "a/b/y.py",
        "data.bin",
        "README.md",
    ]
    assert wanted_files([*paths, "requirements-dev.txt"]) == [
        *(p for p in paths[:2]),
        *paths[3:6],
        "requirements-dev.txt",
    ]


def test_upstreams_own_template_is_understood() -> None:
    templates = Path(__file__).parents[2].glob(".peer/lib/python3*/site-packages/openenv/cli/templates/openenv_env")
    folder = next(templates, None)
    if folder is None:
        pytest.skip("needs the peer's environment")
    names = ("server/Dockerfile", "server/requirements.txt", "pyproject.toml")
    files = {name: (folder / name).read_text() for name in names}
    swap = Swap(files, list(files), PIN)
    swap.run()
    assert set(swap.edited) == {"server/requirements.txt", "pyproject.toml"}
    for new in swap.edited.values():
        assert new is not None
        assert OURS in new
