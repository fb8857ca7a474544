"""The rules about files: a fault of each kind in a package that is good otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from openenv.validation import NotValidated, Verdict, validate_package
from support.dice import DOCKERFILE, MANIFEST, PROJECT, README, broken, package

CMD = DOCKERFILE[DOCKERFILE.index("CMD") :]

FAULTS: dict[str, tuple[str, str, str | None, Verdict, str]] = {
    # what: the rule, the file, its text, the verdict, words of the finding
    "no manifest": ("manifest", "openenv.yaml", None, Verdict.FAIL, "there is no openenv.yaml"),
    "no app": ("manifest", "openenv.yaml", MANIFEST.replace("app:", "apps:"), Verdict.FAIL, "where the application is"),
    "an app that is no name": (
        "manifest",
        "openenv.yaml",
        MANIFEST.replace("dice_app:app", "dice_app"),
        Verdict.FAIL,
        "app:",
    ),
    "an app elsewhere": (
        "manifest",
        "openenv.yaml",
        MANIFEST.replace("dice_app:", "other:"),
        Verdict.FAIL,
        "not in this folder",
    ),
    "no name": ("manifest", "openenv.yaml", MANIFEST.replace("name: dice\n", ""), Verdict.FAIL, "no name"),
    "a bad port": ("manifest", "openenv.yaml", MANIFEST.replace("8000", "many"), Verdict.FAIL, "no port"),
    "no version of the form": (
        "manifest",
        "openenv.yaml",
        MANIFEST.replace("spec_version: 1\n", ""),
        Verdict.WARN,
        "spec_version",
    ),
    "no manifest at all": ("manifest", "openenv.yaml", "- a\n- b\n", Verdict.FAIL, "openenv.yaml"),
    "no project file": ("project", "pyproject.toml", None, Verdict.FAIL, "there is no pyproject.toml"),
    "a project file that is none": ("project", "pyproject.toml", "[project\n", Verdict.FAIL, "cannot be read"),
    "no name of the project": (
        "project",
        "pyproject.toml",
        PROJECT.replace("name", "nam"),
        Verdict.FAIL,
        "names no project",
    ),
    "no version": ("project", "pyproject.toml", PROJECT.replace("version", "ver"), Verdict.FAIL, "no version"),
    "without openenv": (
        "project",
        "pyproject.toml",
        PROJECT.replace("openenv>=", "openenv-other>="),
        Verdict.FAIL,
        "ask for openenv",
    ),
    "no readme": ("readme", "README.md", None, Verdict.WARN, "there is no README.md"),
    "no front matter": ("readme", "README.md", "# Dice\n", Verdict.WARN, "no front matter"),
    "another kind of Space": ("readme", "README.md", README.replace("docker", "gradio"), Verdict.WARN, "sdk: gradio"),
    "no title": ("readme", "README.md", README.replace("title: Dice\n", ""), Verdict.WARN, "no title"),
    "no image": ("dockerfile", "Dockerfile", None, Verdict.WARN, "there is no Dockerfile"),
    "root": ("dockerfile", "Dockerfile", DOCKERFILE.replace("USER user\n", ""), Verdict.WARN, "runs as root"),
    "root at the end": (
        "dockerfile",
        "Dockerfile",
        DOCKERFILE.replace("CMD", "USER root\nCMD"),
        Verdict.WARN,
        "runs as root",
    ),
    "workers": (
        "dockerfile",
        "Dockerfile",
        DOCKERFILE.replace("--workers 1", "--workers 4"),
        Verdict.FAIL,
        "4 workers",
    ),
    "loopback": (
        "dockerfile",
        "Dockerfile",
        DOCKERFILE.replace("0.0.0.0", "127.0.0.1"),
        Verdict.FAIL,
        "inside its container",
    ),
    "another port": (
        "dockerfile",
        "Dockerfile",
        DOCKERFILE.replace("${PORT:-8000}", "9000"),
        Verdict.FAIL,
        "requests come to 8000",
    ),
    "a fixed port": (
        "dockerfile",
        "Dockerfile",
        DOCKERFILE.replace("${PORT:-8000}", "8000"),
        Verdict.WARN,
        "whatever PORT says",
    ),
    "list form": (
        "dockerfile",
        "Dockerfile",
        DOCKERFILE.replace(CMD, 'CMD ["uvicorn", "dice_app:app", "--host", "0.0.0.0", "--port", "9000"]\n'),
        Verdict.FAIL,
        "port 9000",
    ),
    "nothing started": ("dockerfile", "Dockerfile", DOCKERFILE.replace(CMD, ""), Verdict.FAIL, "starts nothing"),
    "no image to begin with": ("dockerfile", "Dockerfile", CMD, Verdict.FAIL, "no FROM"),
    "openenv of an index": (
        "dockerfile",
        "Dockerfile",
        DOCKERFILE.replace("pip install ./wh", "pip install 'openenv[core]' ./wh"),
        Verdict.WARN,
        "index",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_as_what_it_is(fault: str, tmp_path: Path) -> None:
    rule, name, text, verdict, words = FAULTS[fault]
    report = validate_package(package(tmp_path, **{name: text}), running=False)
    assert broken(report) == {rule: verdict}
    assert any(words in one.text for one in report.of(rule)), report.of(rule)
    assert all(one.move for one in report.of(rule))


def test_ports_must_agree(tmp_path: Path) -> None:
    report = validate_package(package(tmp_path, **{"README.md": README.replace("8000", "7000")}), running=False)
    assert "app_port: 7000" in report.of("readme")[0].text
    without = validate_package(
        package(tmp_path, **{"README.md": README.replace("app_port: 8000\n", "")}), running=False
    )
    assert "app_port: 7860" in without.of("readme")[0].text  # what a Space takes it for


def test_continued_lines_comments_and_stages_are_read_as_docker_does(tmp_path: Path) -> None:
    text = (
        "FROM python:3.11 AS build\nRUN pip install \\\n    # a comment\n    ./wheels/openenv-0.11.0-py3-none-any.whl\n"
        "FROM python:3.11-slim\nCOPY --from=build /x /x\nUSER 1000\n"
        'CMD ["sh", "-c", "uvicorn dice_app:app \\\n  --host 0.0.0.0 --port $PORT"]\n'
    )
    assert broken(validate_package(package(tmp_path, Dockerfile=text), running=False)) == {}
    (tmp_path / "Dockerfile").unlink()
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "Dockerfile").write_text(text.replace("USER 1000", "USER root"))
    assert broken(validate_package(tmp_path, running=False)) == {"dockerfile": Verdict.WARN}


def test_what_is_no_package_is_not_validated(tmp_path: Path) -> None:
    with pytest.raises(NotValidated, match="neither a folder nor a URL"):
        validate_package(tmp_path / "nowhere")
    with pytest.raises(NotValidated, match=r"neither openenv\.yaml nor pyproject\.toml"):
        validate_package(tmp_path)


def test_a_package_without_a_manifest_is_not_run(tmp_path: Path) -> None:
    report = validate_package(package(tmp_path, **{"openenv.yaml": None}))
    assert broken(report) == {"manifest": Verdict.FAIL}
    assert {one.verdict for rule in ("starts", "seed", "close") for one in report.of(rule)} == {Verdict.SKIP}
