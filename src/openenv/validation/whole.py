"""All rules about one package, or about one server."""

from __future__ import annotations

import functools
from pathlib import Path

from openenv._package import MANIFEST, NoApp, find_app
from openenv.validation.files import FILE_RULES, check_files
from openenv.validation.look import Options
from openenv.validation.report import NotValidated, Report, Verdict
from openenv.validation.running import EPISODE_RULES, check_running
from openenv.validation.subject import DidNotStart, Probe, Server

__all__ = ["validate_package", "validate_server"]


def validate_package(target: str | Path = ".", options: Options | None = None, *, running: bool = True) -> Report:
    """Validate a package: its files, then the application that they name, in processes that are started for it.

    Args:
        target: its folder, or its ``openenv.yaml``.
        options: how thoroughly to look.
        running: whether to run it.

    Raises:
        NotValidated: there is no such folder, or it holds no environment package.
    """
    options = options or Options()
    path = Path(target)
    folder = path.parent if path.name == MANIFEST else path
    if not folder.is_dir():
        raise NotValidated(f"{target} is neither a folder nor a URL")
    if not (folder / MANIFEST).is_file() and not (folder / "pyproject.toml").is_file():
        raise NotValidated(
            f"{folder.resolve()} is no environment package: it has neither {MANIFEST} nor pyproject.toml"
        )
    report = Report(str(target))
    check_files(folder, report)
    if not running:
        report.skipped("only the files were looked at", "starts", *EPISODE_RULES)
        return report
    try:
        source = find_app(str(folder))
    except NoApp:
        report.skipped("openenv.yaml names no application", "starts", *EPISODE_RULES)
        return report
    again = functools.partial(Probe, source, options.timeout_s, options.start_s)
    try:
        with again() as server:
            check_running(server, report, options, again)
    except (DidNotStart, NotValidated) as error:
        missing = "ModuleNotFoundError" in str(error)
        move = f"pip install -e {target} installs what it needs" if missing else "openenv serve shows the whole error"
        report.add("starts", Verdict.FAIL, str(error), move)
        report.skipped("it does not start", *EPISODE_RULES)
    return report


def validate_server(url: str, options: Options | None = None, *, token: str | None = None) -> Report:
    """Validate an environment on a server that runs.

    Args:
        url: its base URL.
        options: how thoroughly to look.
        token: what the server asks for.

    Raises:
        NotValidated: it cannot be reached, or is none of environments.
    """
    options = options or Options()
    report = Report(url)
    check_running(Server(url, options.timeout_s, token), report, options)
    report.skipped("there are no files to look at: give its folder", *FILE_RULES)
    return report
