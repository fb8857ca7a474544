"""``openenv init``: a complete environment package under a name of your own.

The folder that was made goes to stdout, what to do next to stderr. Exit code 0; 1 if it cannot be made, 2 for a name or
an option that cannot be used. Nothing that is there is ever overwritten.
"""

from __future__ import annotations

import keyword
import re
import shutil
import sys
import tempfile
from enum import StrEnum
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Annotated

import typer

from openenv.cli._says import failed, note, wrong
from openenv.cli._templates import TEMPLATES, Source, render, words_of
from openenv.cli._wheel import WHEEL, git_reference, write_wheel

__all__ = ["init"]

_TAKEN = frozenset(("env", "fastapi", "fastmcp", "gymnasium", "mcp", "openenv", "openenv_core")) | frozenset(
    ("pydantic", "pytest", "server", "tests", "uvicorn", "wheels")
)
_ABOUT = "; ".join(f"{name}: {template.about}" for name, template in TEMPLATES.items())


class Kind(StrEnum):
    """The templates."""

    TYPED = "typed"
    MCP = "mcp"
    GYMNASIUM = "gymnasium"


def init(
    env_name: Annotated[str, typer.Argument(help="Name of the package, in snake case, as my_game_env.")],
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", "-o", help="Folder to make it in; the present one by default.")
    ] = None,
    template: Annotated[Kind, typer.Option("--template", "-t", help=f"{_ABOUT}.")] = Kind.TYPED,
    openenv: Annotated[
        str | None,
        typer.Option(
            "--openenv",
            help="What its image installs as openenv: git+https://...@commit, the URL of a wheel, or a version as "
            "==0.11.0. By default the very openenv that runs.",
        ),
    ] = None,
) -> None:
    """Make a new environment package: models, client, server, tests, Dockerfile. It runs as it is."""
    name = _checked(env_name)
    parent = (output_dir or Path.cwd()).resolve()
    target = parent / name
    _require_free(parent, target)
    source = _source(openenv)
    words = words_of(name, TEMPLATES[template.value], source)
    files = render(template.value, words)
    try:
        _write(target, files, source)
    except OSError as error:
        raise failed("init", f"{target} cannot be written: {error.strerror or error}") from None
    except PackageNotFoundError:
        raise failed(
            "init", "openenv is not installed here, so no wheel of it can be made: name one with --openenv"
        ) from None
    typer.echo(str(target))
    inside = target.name if output_dir is None else str(target)
    steps = (f"cd {inside}", 'pip install -e ".[dev]"', "pytest", "openenv validate", "openenv serve")
    note("\n".join([f"Made {name} ({template.value}). Next:", *(f"    {step}" for step in steps)]))
    note(f"Your rules go into {name}/server/{words['base']}_environment.py.")


def _checked(name: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        hint = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_0123456789")
        text = "a name is lower case letters, digits and single underscores, and begins with a letter"
        raise wrong("init", f"{name!r} cannot be used: {text}{f'; perhaps {hint}' if hint else ''}")
    if keyword.iskeyword(name) or name in sys.stdlib_module_names or name in _TAKEN:
        raise wrong("init", f"{name!r} is the name of another module; perhaps {name}_env")
    return name


def _require_free(parent: Path, target: Path) -> None:
    if parent.exists() and not parent.is_dir():
        raise wrong("init", f"{parent} is a file, not a folder")
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise wrong("init", f"{target} exists: choose another name, or --output-dir")
    if target.is_dir() and any(target.iterdir()):
        raise wrong("init", f"{target} exists and is not empty: choose another name, or --output-dir")


def _source(given: str | None) -> Source:
    if given is None:
        reference = git_reference()
        return Source(wheel=WHEEL) if reference is None else Source(reference)
    if re.fullmatch(r"(==|>=|~=)[\w.,<>=~!*]+|https?://\S+\.whl|git\+https?://\S+@[\w./-]+", given) is None:
        text = "it takes git+https://host/repository@commit, the URL of a .whl file, or a version as ==0.11.0"
        raise wrong("init", f"--openenv {given}: {text}")
    return Source(given)


def _write(target: Path, files: dict[str, str], source: Source) -> None:
    """Write beside the target and move it there, so that it is whole or not there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".openenv-init-", dir=target.parent) as draft:
        made = Path(draft) / target.name
        for path, text in files.items():
            file = made / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="\n")
        if source.wheel:
            write_wheel(made / "wheels")
        if target.is_dir():
            target.rmdir()  # empty: checked before, and again by this
        shutil.move(made, target)
