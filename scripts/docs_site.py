"""The documentation site: gathers its pages, checks them, and has them built.

``build`` makes build/docs from the Markdown of the repository, which stays as it is: each page is copied to its place
in the site (`place`), and its links follow. ``serve`` shows the site and follows changes. ``check`` only looks at the
pages. Whatever is wrong is told and stops the build: a page that is not in the navigation, a link or an anchor without
its goal, in the repository's own view or in the site. What the API pages hold is in docs_api.py.
"""

from __future__ import annotations

import argparse
import posixpath
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[1]
SOURCES = "build/docs-pages"
SITE = "build/docs"
WATCHED = (
    "*.md",
    "docs/**/*",
    "envs/*/README.md",
    "examples/**/*.md",
    ".claude/docs/*.md",
    "src/**/*.py",
    "zensical.toml",
)

CODE = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)[ \t]*$|(?P<tick>`+)(?!`).+?(?<!`)(?P=tick)(?!`)", re.M | re.S)
LINK = re.compile(r"(?<=\])\((?P<target>[^()\s]+)\)")
HEADING = re.compile(r"^#{1,6}[ \t]+(?P<text>.+?)[ \t]*#*$", re.M)
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.I)


def place(source: str) -> str:
    """Where a file of the repository stands in the site."""
    if source == "README.md":
        return "index.md"
    if source == "CHANGELOG.md":
        return "changelog.md"
    for pattern, place_ in (
        (r"docs/(.+)", r"\1"),
        (r"envs/([^/]+)/README\.md", r"environments/\1.md"),
        (r"examples/README\.md", r"examples/index.md"),
        (r"examples/([^/]+)/README\.md", r"examples/\1.md"),
        (r"\.claude/docs/(.+\.md)", r"contributing/\1"),
    ):
        if re.fullmatch(pattern, source):
            return re.sub(pattern, place_, source)
    return f"files/{source}"


def sources(root: Path) -> list[str]:
    """All Markdown files of the repository that become a page."""
    patterns = (
        "README.md",
        "CHANGELOG.md",
        "docs/**/*.md",
        "envs/*/README.md",
        "examples/**/README.md",
        ".claude/docs/*.md",
    )
    return sorted({path.relative_to(root).as_posix() for pattern in patterns for path in root.glob(pattern)})


def slug(heading: str) -> str:
    """The anchor of a heading, as repository hosts and the site's Markdown both make it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def without_code(text: str) -> str:
    """The text with its code blanked out: every character stays in its place."""
    return CODE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def anchors(text: str) -> set[str]:
    """The anchors of a page. A heading that comes twice has none: its two views number it differently."""
    blocks = re.sub(r"^(```+|~~~+).*?^\1[ \t]*$", "", text, flags=re.M | re.S)
    made = [slug(match["text"]) for match in HEADING.finditer(blocks)]
    return {one for one in made if made.count(one) == 1}


def indented(text: str) -> str:
    """The text with what belongs to a list item indented by four, as the site's Markdown wants it.

    Repository hosts ask for the width of the item's marker, two or three; with less than four, a list within a list, a
    second paragraph or a block of code falls out of its item in the site.
    """
    lines, shift, in_block = [], 0, False
    for line in text.splitlines(keepends=True):
        if re.match(r"```|~~~", line):
            in_block = not in_block
        marker = None if in_block else re.match(r"(?:[*+-]|\d+\.) +", line)
        if marker:
            shift = max(4 - len(marker.group()), 0)
        elif line.strip() and not line.startswith(" "):
            shift = 0
        lines.append(" " * shift + line if shift and line.startswith(" ") and line.strip() else line)
    return "".join(lines)


def navigated(entries: Sequence[Any]) -> Iterator[str]:
    """The pages of a navigation, in its order."""
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, dict):
            yield from navigated(list(entry.values()))
        else:
            yield from navigated(entry)


@dataclass
class Pages:
    """The pages of the site as they come from the repository, with everything that is wrong with them."""

    root: Path
    text: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @classmethod
    def gather(cls, root: Path, generated: Sequence[str] = ()) -> Pages:
        """Read and check all pages.

        Args:
            root: of the repository.
            generated: pages of the site that have no source, which the navigation has to have as well.

        Returns:
            The pages; nothing was written yet.
        """
        pages = cls(root)
        for source in sources(root):
            pages.text[place(source)] = pages._moved(source)
        for path in root.glob("docs/**/*"):
            if path.is_file() and path.suffix != ".md":
                source = path.relative_to(root).as_posix()
                pages.files[place(source)] = source
        pages._check_navigation([*pages.text, *generated])
        return pages

    def _moved(self, source: str) -> str:
        """The text of a page, its links turned to where their goals stand in the site."""
        text = (self.root / source).read_text()
        clear = without_code(text)
        moved, done = [], 0
        for link in LINK.finditer(clear):
            moved += [
                text[done : link.start("target")],
                self._goal(source, link["target"], clear.count("\n", 0, link.start())),
            ]
            done = link.end("target")
        front_matter = re.compile(r"\A---\n.*?\n---\n", re.S)  # that of a Space's README is for the Hub
        return indented(front_matter.sub("", "".join([*moved, text[done:]])))

    def _goal(self, source: str, target: str, line: int) -> str:
        if ELSEWHERE.match(target):
            return target
        path, _, anchor = target.partition("#")
        goal = posixpath.normpath(posixpath.join(posixpath.dirname(source), unquote(path))) if path else source
        here = f"{source}:{line + 1}"
        if not (self.root / goal).is_file():
            self.problems.append(f"{here}: {target} leads to no file")
            return target
        if anchor and anchor not in anchors((self.root / goal).read_text()):
            self.problems.append(f"{here}: {target} leads to no heading of {goal}")
        there = place(goal)
        if there.startswith("files/"):
            self.files[there] = goal
        if not path:
            return target
        relative = posixpath.relpath(there, posixpath.dirname(place(source)) or ".")
        return f"{relative}#{anchor}" if anchor else relative

    def _check_navigation(self, pages: Sequence[str]) -> None:
        entries = list(navigated(tomllib.loads((self.root / "zensical.toml").read_text())["project"]["nav"]))
        for page in sorted(set(pages) - set(entries)):
            self.problems.append(
                f'{page} is not in the navigation: add {{ "Its title" = "{page}" }}, to nav in zensical.toml'
            )
        for page in entries:
            if page not in pages:
                self.problems.append(f"zensical.toml: the navigation has {page}, which is no page")
            elif entries.count(page) > 1:
                self.problems.append(f"zensical.toml: the navigation has {page} more than once")

    def write(self, folder: Path, made: dict[str, str]) -> None:
        """Write them into a folder, and take out of it what is no page any more. What has not changed is not touched.

        Args:
            folder: for the pages.
            made: pages without a source, and their text.
        """
        contents = {name: text.encode() for name, text in {**self.text, **made}.items()}
        contents |= {name: (self.root / source).read_bytes() for name, source in self.files.items()}
        for old in folder.rglob("*"):
            if old.is_file() and old.relative_to(folder).as_posix() not in contents:
                old.unlink()
        for name, content in contents.items():
            path = folder / name
            if not path.is_file() or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)


class _Html(HTMLParser):
    """What a built page links to, loads, and can be linked to at."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        self.ids |= {given[name] for name in ("id", "name") if name in given and tag != "meta"}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and "href" in given and given.get("rel") != "canonical":
            self.loads.append(given["href"])
        elif "src" in given:
            self.loads.append(given["src"])


def faults_of_site(site: Path) -> list[str]:
    """What is wrong with the built site: links without a goal, and what is loaded from elsewhere.

    Args:
        site: the folder of the site.

    Returns:
        One line for each fault.
    """
    parsed: dict[Path, _Html] = {}
    for path in site.rglob("*.html"):
        parsed[path] = _Html()
        parsed[path].feed(path.read_text())
    faults = set()
    for path, page in parsed.items():
        name = path.relative_to(site).as_posix()
        faults |= {f"{name} loads {url}" for url in page.loads if url.startswith(("http:", "https:", "//"))}
        if name == "404.html":  # its links are those of the site's root, wherever it is shown
            continue
        for url in [*page.links, *page.loads]:
            if ELSEWHERE.match(url) or url.startswith("//"):
                continue
            before, _, anchor = unquote(url).partition("#")
            goal = (path.parent / before.partition("?")[0]).resolve() if before else path
            goal = goal / "index.html" if goal.is_dir() else goal
            if not goal.is_file():
                faults.add(f"{name} links to {url}, which is not there")
            elif anchor and goal in parsed and anchor not in parsed[goal].ids | {"__top"}:
                faults.add(f"{name} links to {url}, a page without this anchor")
    return sorted(faults)


def _tell(problems: Sequence[str]) -> int:
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    return 1 if problems else 0


def _prepare() -> list[str]:
    """Bring the pages of the site up to date; returns what is wrong with them."""
    import docs_api

    made, undocumented = docs_api.pages()
    pages = Pages.gather(ROOT, list(made))
    pages.write(ROOT / SOURCES, made)
    return pages.problems + undocumented


def _build() -> int:
    if _tell(_prepare()):
        return 1
    shutil.rmtree(ROOT / SITE, ignore_errors=True)
    done = subprocess.run([_zensical(), "build", "--strict", "--clean"], cwd=ROOT, check=False)
    return done.returncode or _tell(faults_of_site(ROOT / SITE))


def _serve(address: str) -> int:
    _tell(_prepare())
    server = subprocess.Popen([_zensical(), "serve", "--dev-addr", address], cwd=ROOT)
    seen = _changed()
    try:
        while server.poll() is None:
            time.sleep(1)
            if (now := _changed()) != seen:
                seen = now
                _tell(_prepare())
    except KeyboardInterrupt:
        pass
    finally:
        server.terminate()
    return 0


def _changed() -> float:
    return max(path.stat().st_mtime for pattern in WATCHED for path in ROOT.glob(pattern) if path.is_file())


def _zensical() -> str:
    return str(Path(sys.executable).with_name("zensical"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["build", "serve", "check"])
    parser.add_argument("--address", default="localhost:8001", help="where serve shows the site")
    told = parser.parse_args(arguments)
    if told.what == "check":
        import docs_api

        return _tell(Pages.gather(ROOT, [page.path for page in docs_api.existing()]).problems)
    return _build() if told.what == "build" else _serve(told.address)


if __name__ == "__main__":
    sys.exit(main())
