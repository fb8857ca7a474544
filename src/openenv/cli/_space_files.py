"""What a Space's Dockerfile and README must say. The environment's own files stay as they are on the disk.

Edits are lines that are put in or changed; each is told. A file that is not understood is refused with the reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from openenv.cli._parcel import Parcel

__all__ = ["Refusal", "SpaceFiles"]

WEB_VARIABLE = "ENABLE_WEB_INTERFACE"

_FROM = re.compile(r"^(\s*FROM\s+(?:--\S+\s+)*)(\S+)(.*)$", re.I)
_ARG = re.compile(r"^(\s*ARG\s+)(\w+)=(\S+)(.*)$", re.I)
_STARTS = re.compile(r"^\s*(CMD|ENTRYPOINT)\b", re.I)
_FRONT = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.M | re.S)
_PORTS = (re.compile(r"^\s*EXPOSE\s+(\d+)", re.I | re.M), re.compile(r"--port[ =](\d+)"))


class Refusal(Exception):
    """A file of the environment cannot be made fit for a Space. Says why, and the next move."""


@dataclass
class SpaceFiles:
    """Makes a parcel one of a Space.

    Attributes:
        parcel: the files; changed in place.
        name: the environment's name.
        port: the port that the manifest names; None if it names none.
        interface: whether the Space opens on the environment's page.
        base_image: the image to build on, in place of the Dockerfile's; None for that.
    """

    parcel: Parcel
    name: str
    port: int | None
    interface: bool
    base_image: str | None = None

    def prepare(self) -> list[str]:
        """Edit what must be edited.

        Returns:
            What was changed, in words.

        Raises:
            Refusal: it is not understood.
        """
        try:
            return [*self._dockerfile(), *self._readme()]
        except ValueError as error:
            raise Refusal(str(error)) from None

    def _dockerfile(self) -> list[str]:
        notes = []
        if "Dockerfile" not in self.parcel.files:
            if "server/Dockerfile" not in self.parcel.files:
                raise Refusal("there is no Dockerfile, here or in server/; `openenv init` writes one that works")
            self.parcel.files["Dockerfile"] = self.parcel.files.pop("server/Dockerfile")
            notes.append("server/Dockerfile goes to the root, where a Space looks for it")
        before = self.parcel.text("Dockerfile") or ""
        text = before
        if self.base_image is not None:
            text = on_base_image(text, self.base_image)
            notes.append(f"Dockerfile: builds on {self.base_image}")
        if self.interface and WEB_VARIABLE not in text:
            text = with_variable(text, WEB_VARIABLE, "true")
            notes.append(f"Dockerfile: {WEB_VARIABLE}=true")
        if not self.interface and re.search(rf"{WEB_VARIABLE}[= ]+[\"']?(true|1|yes)", text, re.I):
            notes.append(f"the Dockerfile itself switches the web page on ({WEB_VARIABLE}), which stays so")
        if text != before:
            self.parcel.files["Dockerfile"] = text.encode()
        return notes

    def _readme(self) -> list[str]:
        text = self.parcel.text("README.md")
        found = None if text is None else _FRONT.match(text)
        port = self.port or self._port_of_dockerfile() or 8000
        if text is None or found is None:
            self.parcel.files["README.md"] = f"{self._front_matter(port)}{text or ''}".encode()
            return [f"README.md: front matter for a Space{'' if text else ', in a new file'}"]
        front = found[1]
        sdk = _value(front, "sdk")
        if sdk not in (None, "docker"):
            raise Refusal(f"README.md says sdk: {sdk}; an environment needs a Space with sdk: docker")
        lines = [] if sdk else ["sdk: docker"]
        said = _value(front, "app_port")
        if said is None:
            lines.append(f"app_port: {port}")
        elif self.port is not None and said != str(self.port):
            raise Refusal(f"README.md says app_port: {said}, and openenv.yaml port: {self.port}; make them the same")
        if self.interface and _value(front, "base_path") is None:
            lines.append("base_path: /web")
        if _value(front, "tags") is None:
            lines += ["tags:", "  - openenv"]  # by which the Hub finds environments
        if not lines:
            return []
        end = found.end(1)
        newline = "\r\n" if "\r\n" in front else "\n"
        added = "".join(f"{line}{newline}" for line in lines)
        self.parcel.files["README.md"] = (text[:end] + added + text[end:]).encode()
        told = ", ".join(line for line in lines if line not in ("tags:", "  - openenv"))
        return [f"README.md: {told or 'the tag openenv'}"]

    def _front_matter(self, port: int) -> str:
        title = self.name.removesuffix("_env").replace("_", " ").replace("-", " ").title()
        lines = ["---", f"title: {title} Environment", "emoji: 🎲", "colorFrom: blue", "colorTo: green", "sdk: docker"]
        lines += [f"app_port: {port}", *(["base_path: /web"] if self.interface else []), "tags:", "  - openenv", "---"]
        return "\n".join([*lines, "", ""])

    def _port_of_dockerfile(self) -> int | None:
        text = self.parcel.text("Dockerfile") or ""
        return next((int(match[1]) for pattern in _PORTS if (match := pattern.search(text))), None)


def on_base_image(text: str, image: str) -> str:
    """A Dockerfile that builds on another image, in every stage that was built on the first stage's.

    Raises:
        Refusal: it has no ``FROM``.
    """
    lines = text.splitlines(keepends=True)
    stages = [match for line in lines if (match := _FROM.match(line))]
    if not stages:
        raise Refusal("the Dockerfile has no FROM, so it is not known where --base-image belongs")
    first = stages[0][2]
    variable = re.fullmatch(r"\$\{?(\w+)(?::-[^}]*)?\}?", first)
    for number, line in enumerate(lines):
        end = line[len(line.rstrip("\r\n")) :]
        argument, stage = _ARG.match(line), _FROM.match(line)
        if variable is not None and argument and argument[2] == variable[1]:
            lines[number] = f"{argument[1]}{argument[2]}={image}{argument[4].rstrip()}{end}"
            return "".join(lines)
        if variable is None and stage and stage[2] == first:
            lines[number] = f"{stage[1]}{image}{stage[3].rstrip()}{end}"
    if variable is not None:
        raise Refusal(f"the Dockerfile builds on {first}, which it gives no default; add ARG {variable[1]}={image}")
    return "".join(lines)


def with_variable(text: str, name: str, value: str) -> str:
    """A Dockerfile that sets a variable in its last stage, before the server is started."""
    lines = text.splitlines(keepends=True)
    last = max((number for number, line in enumerate(lines) if _FROM.match(line)), default=-1)
    place, continued = len(lines), False
    for number in range(last + 1, len(lines)):
        line = lines[number]
        if not continued and _STARTS.match(line):  # that of a HEALTHCHECK stands on its line, or continues it
            place = number
            break
        continued = line.rstrip().endswith("\\") or (continued and line.lstrip().startswith("#"))
    if place == len(lines) and lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    lines.insert(place, f"ENV {name}={value}\n")
    return "".join(lines)


def _value(front: str, key: str) -> str | None:
    match = re.search(rf"^{key}:[ \t]*(.*?)[ \t]*(?:#.*)?\r?$", front, re.M)
    return None if match is None else match[1].strip("\"'")
