"""A stand-in for the Hugging Face Hub: the routes of its API that make, fill, configure, read and copy Spaces.

A real HTTP server. What arrives is kept as it arrived: the files of each commit, the settings, every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_StubStubStubStubStubStubStubStub"


@dataclass
class StubSpace:
    """A Space: its files, settings and commits."""

    files: dict[str, bytes] = field(default_factory=dict)
    private: bool = False
    sdk: str = "docker"
    hardware: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    commits: list[dict[str, Any]] = field(default_factory=list)
    pulls: list[dict[str, Any]] = field(default_factory=list)

    @property
    def sha(self) -> str:
        seen = repr((sorted(self.files.items()), len(self.commits)))
        return hashlib.sha1(seen.encode()).hexdigest()


Refuse = Callable[[str, str], tuple[int, str] | None]


class HubStub:
    """The Hub at ``url``, for the account ``me`` with `TOKEN`; ``refuse`` may answer a request with an error."""

    def __init__(self, refuse: Refuse = lambda method, path: None) -> None:
        self.spaces: dict[str, StubSpace] = {}
        self.requests: list[tuple[str, str]] = []
        self.tokens: set[str | None] = set()
        self.refuse = refuse
        stub = self

        class Handler(_Handler):
            hub = stub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def asked(self, method: str, ending: str) -> int:
        """How many requests there were of a method whose path ends so."""
        return sum(one == method and path.endswith(ending) for one, path in self.requests)

    def __enter__(self) -> HubStub:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(20)


class _Handler(BaseHTTPRequestHandler):
    hub: HubStub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._handle()

    def do_HEAD(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def _handle(self) -> None:
        body = self._body()
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        bearer = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        self.hub.tokens.add(bearer)
        refused = self.hub.refuse(self.command, path)
        if refused is not None:
            self._json(refused[0], {"error": refused[1]})
            return
        if (self.command == "POST" or path == "/api/whoami-v2") and bearer != TOKEN:
            self._json(401, {"error": "Invalid user token."})
            return
        for pattern, method in _ROUTES:
            match = re.fullmatch(pattern, path)
            if match is not None:
                getattr(self, method)(body, *match.groups())
                return
        self._json(404, {"error": "Not Found"})

    def _body(self) -> bytes:
        if "chunked" in (self.headers.get("Transfer-Encoding") or ""):
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _json(self, status: int, answer: Any, **headers: str) -> None:
        self._send(status, json.dumps(answer).encode(), **{"Content-Type": "application/json"}, **headers)

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    # ---------------------------------------------------------------- routes

    def whoami(self, body: bytes) -> None:
        self._json(200, {"name": "me", "type": "user", "orgs": []})

    def create(self, body: bytes) -> None:
        wanted = json.loads(body)
        name = f"{wanted.get('organization') or 'me'}/{wanted['name']}"
        if name in self.hub.spaces:
            self._json(409, {"error": "You already created this space repo"})
            return
        assert wanted["type"] == "space"
        private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
        self.hub.spaces[name] = StubSpace({}, private, wanted["sdk"], wanted.get("hardware"))
        self._json(200, {"url": f"{self.hub.url}/spaces/{name}"})

    def info(self, body: bytes, name: str, *_: str) -> None:
        space = self.hub.spaces.get(name)
        if space is None:
            self._json(404, {"error": "Repository not found"}, **{"X-Error-Code": "RepoNotFound"})
            return
        siblings = [{"rfilename": path} for path in space.files]
        answer = {"id": name, "sha": space.sha, "private": space.private, "sdk": space.sdk, "siblings": siblings}
        self._json(200, answer)

    def yaml(self, body: bytes) -> None:
        self._json(200, {"errors": [], "warnings": []})

    def preupload(self, body: bytes, name: str) -> None:
        files = [
            {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in json.loads(body)["files"]
        ]
        self._json(200, {"files": files})

    def commit(self, body: bytes, name: str) -> None:
        space = self.hub.spaces[name]
        made: dict[str, Any] = {"files": {}, "deleted": []}
        for entry in map(json.loads, body.splitlines()):
            value = entry["value"]
            match entry["key"]:
                case "header":
                    made |= value
                case "file":
                    made["files"][value["path"]] = base64.b64decode(value["content"])
                case "deletedFile":
                    made["deleted"].append(value["path"])
        if made.get("parentCommit") not in (None, space.sha):
            self._json(412, {"error": "A commit has happened since"})
            return
        answer = {"commitUrl": f"{self.hub.url}/spaces/{name}/commit/1", "commitOid": space.sha}
        if "create_pr=1" in urlsplit(self.path).query:
            space.pulls.append(made)
            answer["pullRequestUrl"] = f"{self.hub.url}/spaces/{name}/discussions/{len(space.pulls)}"
        else:
            for path in made["deleted"]:
                del space.files[path]
            space.files |= made["files"]
            space.commits.append(made)
            answer["commitOid"] = space.sha
        self._json(200, answer)

    def setting(self, body: bytes, name: str, kind: str) -> None:
        told = json.loads(body)
        space = self.hub.spaces[name]
        if kind == "hardware":
            space.hardware = told["flavor"]
        else:
            getattr(space, kind)[told["key"]] = told["value"]
        if kind == "variables":
            self._json(200, {key: {"value": value} for key, value in space.variables.items()})
            return
        self._json(200, {"stage": "RUNNING", "hardware": {"current": None, "requested": space.hardware}})

    def duplicate(self, body: bytes, name: str) -> None:
        wanted = json.loads(body)
        target = wanted["repository"]
        if target in self.hub.spaces:
            self._json(409, {"error": "You already created this space repo"})
            return
        given = {kind: {one["key"]: one["value"] for one in wanted.get(kind, [])} for kind in ("variables", "secrets")}
        private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
        source = self.hub.spaces[name]
        copied = StubSpace(dict(source.files), private, source.sdk, wanted.get("hardware"), **given)
        copied.commits = list(source.commits)
        self.hub.spaces[target] = copied
        self._json(200, {"url": f"{self.hub.url}/spaces/{target}"})

    def resolve(self, body: bytes, name: str, revision: str, path: str) -> None:
        space = self.hub.spaces.get(name)
        if space is None or path not in space.files:
            self._json(404, {"error": "Entry not found"}, **{"X-Error-Code": "EntryNotFound"})
            return
        data = space.files[path]
        etag = hashlib.sha1(data).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": space.sha, "Content-Type": "application/octet-stream"}
        self._send(200, data, **headers)


_NAME = r"([\w.-]+/[\w.-]+)"
_ROUTES = [
    (r"/api/whoami-v2", "whoami"),
    (r"/api/repos/create", "create"),
    (r"/api/validate-yaml", "yaml"),
    (rf"/api/spaces/{_NAME}/preupload/main", "preupload"),
    (rf"/api/spaces/{_NAME}/commit/main", "commit"),
    (rf"/api/spaces/{_NAME}/(secrets|variables|hardware)", "setting"),
    (rf"/api/spaces/{_NAME}/duplicate", "duplicate"),
    (rf"/api/spaces/{_NAME}(?:/revision/(\w+))?", "info"),
    (rf"/spaces/{_NAME}/resolve/(\w+)/(.+)", "resolve"),
]
