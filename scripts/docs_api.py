"""The API pages of the documentation site: which public names stand on which page.

The names are those of ``__all__``, read from the source without importing it; their text is that of the docstrings when
the site is built. A public name without a docstring, or without a page, is a problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import griffe

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Page:
    """A page: the names that these modules export.

    Args:
        path: of the page, in the site.
        title: its heading.
        modules: where a reader imports the names from.
        homes: if given, only the names that are defined in these modules, or in those inside them.
        names: if given, only these.
    """

    path: str
    title: str
    modules: tuple[str, ...]
    homes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def holds(self, name: str, home: str) -> bool:
        """Whether a name that is defined in module ``home`` belongs here."""
        at_home = not self.homes or any(f"{home}.".startswith(f"{one}.") for one in self.homes)
        return at_home and (not self.names or name in self.names)


CORE = "openenv.core"
SERVER = f"{CORE}.env_server"
BESIDE = {CORE: ("MCPEnvironment",)}
"""Public names that are in no ``__all__``, as they need an extra."""

PAGES = (  # a name stands on the first page that holds it
    Page(
        "api/clients.md",
        "Clients",
        (CORE,),
        tuple(
            f"{CORE}.{name}" for name in ("client_types", "env_client", "generic_client", "mcp_client", "sync_client")
        ),
    ),
    Page("api/errors.md", "Errors", (CORE,), (f"{CORE}.exceptions",)),
    Page(
        "api/messages.md",
        "Models and messages",
        (CORE,),
        tuple(
            f"{CORE}.{name}"
            for name in ("env_server.mcp_types", "env_server.serialization", "env_server.types", "wire")
        ),
    ),
    Page("api/servers.md", "Environments and servers", (CORE,), (SERVER,)),  # what is no message
    Page("api/arrays.md", "Arrays", (f"{CORE}.arrays",)),
    Page("api/llm.md", "Language models", (CORE,), (f"{CORE}.llm_client", f"{CORE}.llm_messages")),
    Page("api/rubrics.md", "Rubrics", (f"{CORE}.rubrics",)),
    Page("api/harness.md", "Harness", (f"{CORE}.harness",)),
    Page("api/providers.md", "Providers", (f"{CORE}.containers.runtime",)),
    Page("api/auto.md", "Clients by name", ("openenv.auto",)),
    Page("api/gymnasium.md", "Gymnasium", ("openenv.gymnasium",)),
    Page("api/trl.md", "Training with TRL", ("openenv.trl",)),
    Page("api/policy.md", "Policy link", ("openenv.policy", "openenv.policy.rollout")),
    Page("api/testing.md", "Testing", ("openenv.testing",)),
    Page("api/validation.md", "Validation", ("openenv.validation",)),
    Page(
        "api/conformance.md",
        "Conformance",
        tuple(
            f"openenv.conformance.{name}"
            for name in (
                "server.run",
                "server.target",
                "client.run",
                "policy.server.run",
                "policy.client.run",
                "report",
                "clauses",
            )
        ),
        names=(
            "grade_server",
            "Target",
            "grade_client",
            "grade_policy_server",
            "grade_policy_client",
            "Report",
            "Result",
            "Verdict",
            "Finding",
            "NotGraded",
            "CLAUSES",
            "Clause",
            "Dialect",
            "select",
        ),
    ),
)


def existing(source: Path = ROOT / "src") -> list[Page]:
    """The pages whose modules are there."""

    def there(module: str) -> bool:
        path = source.joinpath(*module.split("."))
        return path.is_dir() or path.with_suffix(".py").is_file()

    return [page for page in PAGES if all(there(module) for module in page.modules)]


def pages(source: Path = ROOT / "src") -> tuple[dict[str, str], list[str]]:
    """Make the API pages.

    Args:
        source: the folder of the package.

    Returns:
        The text of each page, by its path; and what is wrong: names without a docstring, and names of the core that
        stand on no page.
    """
    import griffe

    package = griffe.load("openenv", search_paths=[source], resolve_aliases=True)
    made, problems, shown = {}, [], set()
    public = {_target(package[f"core.{name}"]).path for name, _ in _exported(package, CORE)}
    for page in existing(source):
        parts = [f"# {page.title}\n"]
        for module in page.modules:
            names = [name for name, home in _exported(package, module) if page.holds(name, home)]
            names = [name for name in names if f"{module}.{name}" not in shown]
            shown |= {f"{module}.{name}" for name in names}
            undocumented = [name for name in names if not _documented(package, f"{module}.{name}")]
            problems += [f"{module}.{name} has no docstring" for name in undocumented]
            if names:
                parts.append(_introduction(package, module, whole=not page.homes and not page.names))
            parts += [_directive(package, module, name, public) for name in names]
        made[page.path] = "\n".join(parts)
    homeless = [name for name, _ in _exported(package, CORE) if f"{CORE}.{name}" not in shown]
    return made, problems + [f"{CORE}.{name} is on no page of the API: see scripts/docs_api.py" for name in homeless]


def _exported(package: griffe.Module, module: str) -> Iterator[tuple[str, str]]:
    """The public names of a module, each with the module that defines it."""
    there = package[module.removeprefix("openenv.")]
    for name in (*(there.exports or ()), *BESIDE.get(module, ())):
        found = _target(there[name])
        yield str(name), found.module.path


def _introduction(package: griffe.Module, module: str, whole: bool) -> str:
    """What stands before the names of a module: what it says of itself, if the page is for the whole of it."""
    said = package[module.removeprefix("openenv.")].docstring if whole else None
    return f"{said.value}\n\nFrom `{module}`:\n" if said else f"From `{module}`:\n"


def _target(found: griffe.Object | griffe.Alias) -> griffe.Object:
    return found.final_target if found.is_alias else found


def _documented(package: griffe.Module, name: str) -> bool:
    return _target(package[name.removeprefix("openenv.")]).docstring is not None


def _directive(package: griffe.Module, module: str, name: str, public: set[str]) -> str:
    """What the site is told to show of a name. What a class has from another one that is shown is not shown again."""
    found = _target(package[f"{module}.{name}".removeprefix("openenv.")])
    inherits = found.is_class and any(base.path in public for base in found.mro())
    return f"::: {module}.{name}\n" + ("    options:\n      inherited_members: false\n" if inherits else "")
