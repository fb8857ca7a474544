"""G11 with a real browser: what a web page can do to a server on the machine of its reader.

Needs Chromium. Without it these tests are skipped, unless ``OPENENV_BROWSER_REQUIRED`` is set: then they fail.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from openenv.core.env_server import create_app
from support.browser import find_browser
from support.envs import CountAction, CountEnv, CountObservation, CountState
from support.live import LiveServer, serve

ATTACK = """<!doctype html><title>attack</title><body><script>
const server = "SERVER", told = {};
const within = (promise) => Promise.race([promise, new Promise((_, no) => setTimeout(() => no("silence"), 10000))]);
const attempt = async (name, act) => {
  try { told[name] = await within(act()); } catch (error) { told[name] = "refused: " + error; }
};
const socket = (protocols) => new Promise((yes, no) => {
  const ws = new WebSocket(server.replace("http", "ws") + "/ws", protocols);
  ws.onerror = () => no("error");
  ws.onopen = () => ws.send(JSON.stringify(protocols.length
    ? {type: "open", data: {}} : {type: "reset", data: {}}));
  ws.onmessage = (message) => { const type = JSON.parse(message.data).type; if (type != "welcome") yes(type); };
});
const post = async (path, body, type) => {
  const options = {method: "POST", mode: "no-cors", body: type === null ? new Blob([body]) : body};
  if (type) options.headers = {"Content-Type": type};
  await fetch(server + path, options);
  return "sent";
};
const load = (tag, path) => new Promise((yes) => {
  const one = document.createElement(tag);
  one.onload = one.onerror = () => yes("sent");
  one.src = server + path;
  document.body.append(one);
});
const form = (path) => new Promise((yes) => {
  const frame = document.createElement("iframe");
  frame.name = "sink";
  document.body.append(frame);
  const one = document.createElement("form");
  Object.assign(one, {method: "POST", action: server + path, target: "sink", enctype: "text/plain"});
  const field = document.createElement("input");
  Object.assign(field, {name: '{"action":{"op":"inc","arg":"', value: '"}}'});
  one.append(field);
  document.body.append(one);
  frame.onload = () => yes("sent");
  one.submit();
});
const step = JSON.stringify({action: {op: "inc"}});
(async () => {
  await attempt("plain socket", () => socket([]));
  await attempt("v1 socket", () => socket(["openenv.v1"]));
  await attempt("text post", () => post("/step", step, "text/plain"));
  await attempt("untyped post", () => post("/step", step, null));
  await attempt("empty post", () => post("/reset", "", null));
  await attempt("form", () => form("/step"));
  await attempt("json post", async () => (await fetch(server + "/reset",
    {method: "POST", body: "{}", headers: {"Content-Type": "application/json"}})).status);
  await attempt("read", async () => (await fetch(server + "/state")).text());
  await attempt("image", () => load("img", "/state"));
  await attempt("frame", () => load("iframe", "/metadata"));
  await fetch("/told", {method: "POST", body: JSON.stringify(told)});
})();
</script>"""

Told = dict[str, Any]


@pytest.fixture(scope="module")
def browser() -> str:
    return find_browser()


@pytest.fixture
def visit(browser: str, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Open a page in a browser with a profile of its own."""
    with ExitStack() as processes:

        def open_page(url: str, *options: str) -> None:
            command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
            command += ["--disable-dev-shm-usage", "--remote-debugging-port=0", f"--user-data-dir={tmp_path}"]
            process = subprocess.Popen(
                [*command, *options, url],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "HOME": str(tmp_path)},
                start_new_session=True,  # Debian's command is a script, and the browser a child of it
            )
            processes.callback(process.wait, 30)
            processes.callback(os.killpg, process.pid, signal.SIGKILL)

        yield open_page


@contextmanager
def page_server(server: str) -> Iterator[tuple[str, Queue[Told]]]:
    """Serve the attacking page; yields its origin, and what the page tells."""
    told: Queue[Told] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(ATTACK.replace("SERVER", server).encode() if self.path == "/" else b"")

        def do_POST(self) -> None:
            told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self._answer(b"")

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{web.server_port}", told
        web.shutdown()


def served(env: type[CountEnv], **arguments: Any) -> Any:
    return serve(
        create_app(env, CountAction, CountObservation, state_cls=CountState, max_concurrent_envs=8, **arguments)
    )


def test_a_page_of_another_origin_reaches_no_environment(visit: Callable[..., None], env: type[CountEnv]) -> None:
    with served(env) as live, page_server(live) as (page, told):
        visit(page)
        seen = told.get(timeout=100)
        events = env.log.events
    assert seen["plain socket"] == seen["v1 socket"] == "refused: error"
    assert "refused" in seen["json post"]
    assert "refused" in seen["read"]
    for name in ("text post", "untyped post", "empty post", "image"):  # they get there; nobody acts on them
        assert seen[name] == "sent", seen
    assert events == []


def test_a_page_whose_origin_is_allowed_plays(visit: Callable[..., None], env: type[CountEnv]) -> None:
    """The same page, so what the other test does not see is really kept from it."""
    with served(env, allowed_origins=["*"]) as live, page_server(live) as (page, told):
        visit(page)
        seen = told.get(timeout=100)
        kinds = {event["event"] for event in env.log.events}
        steps = env.log.of("step")
    assert (seen["plain socket"], seen["v1 socket"]) == ("observation", "opened")
    assert kinds >= {"init", "reset", "state"}
    assert steps == []  # the bodies of the posts are not JSON by their type, whoever sent them


class Heard(logging.Handler):
    """Hands over what a logger says."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: Queue[str] = Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.put(record.getMessage())


def test_a_name_that_was_pointed_at_loopback_reaches_no_environment(
    visit: Callable[..., None], env: type[CountEnv]
) -> None:
    heard, logger = Heard(), logging.getLogger("openenv.server")
    logger.addHandler(heard)
    try:
        with served(env) as live:
            assert isinstance(live, LiveServer)
            visit(f"http://evil.example:{live.port}/state", "--host-resolver-rules=MAP evil.example 127.0.0.1")
            assert "Host 'evil.example' is not a name of this server" in heard.texts.get(timeout=100)
            assert env.log.events == []
    finally:
        logger.removeHandler(heard)
