"""``openenv doctor``: what it finds at good, full, private, sleeping and broken servers, and what it leaves behind."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import websockets.sync.server
from websockets.typing import Subprotocol

from openenv.cli._checkup import Checkup, Finding
from openenv.core.env_server.http_server import create_app
from openenv.core.transport.address import Address
from openenv.core.transport.credentials import Credentials
from openenv.testing import SpaceStub
from openenv.testing.processes import free_port
from support.clients import ScriptedServer, count_server
from support.commands import openenv
from support.envs import CountAction, CountObservation, fresh_env
from support.hostile import ENDLESS, hostile
from support.live import serve
from support.tool_envs import tool_server

TOKEN = "hf_the_token_of_the_test"


def examined(url: str, *options: str, env: dict[str, str] | None = None) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the findings by their names."""
    done = openenv("doctor", url, "--json", *options, env={"HF_TOKEN": "", "HF_HOME": "/nowhere", **(env or {})})
    assert TOKEN not in done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["usable"] is (done.returncode == 0)
    return done.returncode, {finding["check"]: finding for finding in report["findings"]}


def test_a_good_server_is_found_good_and_its_slot_is_given_back() -> None:
    with count_server(1, plain=False) as server:
        for _ in range(2):  # the second finds the only slot free again
            code, found = examined(server.url)
            assert (code, {one["verdict"] for one in found.values()}) == (0, {"ok"})
        assert set(found) == {"tcp", "http", "schema", "mode", "mcp", "websocket", "dialect", "latency", "slot"}
        assert found["schema"]["data"]["action_fields"] == ["arg", "metadata", "op"]
        assert found["mode"]["data"] == {"mode": "simulation"}
        assert set(found["dialect"]["data"]["features"]) >= {"seq", "cancel", "resume", "queue"}
        assert 0 < found["latency"]["data"]["median_ms"] <= found["latency"]["data"]["p95_ms"]
        assert found["slot"]["data"]["took_slot"]
        # Nothing was played, and each environment that was made is closed.
        server.env.log.wait_for("close", 2)
        assert {one["event"] for one in server.env.log.events} == {"init", "close"}


def test_without_a_session_no_environment_is_made() -> None:
    with count_server(1, plain=False) as server:
        code, found = examined(server.url, "--no-session")
        assert (code, "slot" in found, server.env.log.events) == (0, False, [])


def test_a_plain_server_costs_one_session_and_a_look_at_its_state() -> None:
    with count_server(1) as server:
        code, found = examined(server.url)
        assert code == 0
        assert (found["dialect"]["verdict"], found["dialect"]["data"]) == ("note", {"dialect": "plain"})
        assert "openenv fork --safe" in found["dialect"]["next"]
        server.env.log.wait_for("close", 1)
        assert [one["event"] for one in server.env.log.events] == ["init", "state", "close"]


@pytest.mark.parametrize("plain", [False, True])
def test_a_full_server_is_told_and_its_player_plays_on(plain: bool) -> None:
    with count_server(1, plain=plain) as server, server.client().sync() as player:
        player.reset()
        code, found = examined(server.url)
        assert (code, found["slot"]["verdict"]) == (1, "problem")
        assert found["slot"]["data"] == {"took_slot": False, "active": 1, "max": 1}
        assert "openenv wait" in found["slot"]["next"]
        assert player.step({"op": "inc"}).observation.count == 1  # type: ignore[arg-type]
        assert len(server.env.log.of("init")) == 1


def test_tools_and_production_are_seen() -> None:
    with tool_server(mode="production") as server:
        code, found = examined(server.url)
        assert code == 0
        assert found["mode"]["data"] == {"mode": "production"}
        assert found["mcp"]["data"] == {"there": True}


def test_a_private_space_with_and_without_its_token() -> None:
    with (
        count_server(plain=False) as server,
        SpaceStub(server.url, token=TOKEN, sleep_s=0.0) as space,
    ):
        code, found = examined(space.url)
        assert (code, list(found)[-1], found["http"]["data"]) == (1, "http", {"status": 404, "token_sent": False})
        assert "a private Space needs --token" in found["http"]["next"]
        code, found = examined(space.url, "--token", TOKEN)
        assert (code, found["auth"]["data"]) == (0, {"token_sent": True, "needed": True})
        assert found["websocket"]["verdict"] == "ok"
        # A token that lies about is for the Hub's hosts alone.
        assert examined(space.url, env={"HF_TOKEN": TOKEN})[1]["http"]["data"]["token_sent"] is False


def test_a_server_that_wants_its_own_token() -> None:
    with serve(create_app(fresh_env(), CountAction, CountObservation, token=TOKEN)) as url:
        code, found = examined(url)
        assert (code, list(found)) == (1, ["tcp", "http", "auth"])  # /health is for everybody
        assert found["auth"]["data"] == {"status": 401, "token_sent": False}
        assert "--token" in found["auth"]["next"]
        assert examined(url, "--token", TOKEN)[0] == 0


def test_a_sleeping_space_is_waited_for() -> None:
    with count_server() as server, SpaceStub(server.url, token="", sleep_s=1000.0) as space:
        code, found = examined(space.url)
    assert (code, found["http"]["data"]["status"]) == (1, 503)
    assert "wait_ready" in found["http"]["next"]


def test_a_proxy_that_passes_no_websocket_is_named() -> None:
    async def nothing(connection: Any) -> None:
        raise AssertionError("no handshake is let through")

    with count_server() as server, ScriptedServer(nothing, HTTPStatus.BAD_REQUEST) as refusing:
        port = refusing.port
        with _split(server.url.port, port) as front:
            code, found = examined(f"http://127.0.0.1:{front}")
    assert (code, found["http"]["verdict"], found["websocket"]["verdict"]) == (1, "ok", "problem")
    assert "Upgrade" in found["websocket"]["next"]


@contextmanager
def _split(http: int, websocket: int) -> Iterator[int]:
    """A front that sends handshakes of WebSockets to one port and other requests to another; yields its own."""
    loop = asyncio.new_event_loop()
    stop, ready = asyncio.Event(), threading.Event()
    ports: list[int] = []

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b""
        target = websocket if b"upgrade: websocket" in head.lower() else http
        back_reader, back = await asyncio.open_connection("127.0.0.1", target)
        back.write(head)
        await asyncio.gather(_pump(reader, back), _pump(back_reader, writer))

    async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
        sink.close()

    async def quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await meet(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            writer.close()  # a connection that was only tried

    async def main() -> None:
        front = await asyncio.start_server(quiet, "127.0.0.1", 0)
        ports.append(front.sockets[0].getsockname()[1])
        ready.set()
        await stop.wait()
        front.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        assert not thread.is_alive()
        loop.close()


def test_what_is_no_server_is_told_layer_by_layer(tmp_path: Path) -> None:
    code, found = examined(f"http://127.0.0.1:{free_port()}")
    assert (code, list(found)) == (1, ["tcp"])
    assert "nothing listens there" in found["tcp"]["text"]
    code, found = examined("http://no-such-host.invalid")
    assert (code, list(found), found["dns"]["verdict"]) == (1, ["dns"], "problem")
    with count_server() as server:
        code, found = examined(server.url.replace("http", "https"))
    assert (code, list(found)[-1], found["tls"]["verdict"]) == (1, "tls", "problem")
    assert "http://" in found["tls"]["next"]
    with _self_signed(tmp_path) as port:
        code, found = examined(f"https://localhost:{port}")
    assert (code, found["tls"]["verdict"]) == (1, "problem")
    assert "certificate is not trusted" in found["tls"]["text"]


@contextmanager
def _self_signed(folder: Path) -> Iterator[int]:
    """A TLS server with a certificate that nobody trusts; yields its port."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with socket.create_server(("localhost", 0)) as listener:

        def meet() -> None:
            while True:
                try:
                    plain, _ = listener.accept()
                except OSError:
                    return
                try:
                    context.wrap_socket(plain, server_side=True).close()
                except OSError:
                    plain.close()

        threading.Thread(target=meet, daemon=True).start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)


def test_a_server_that_says_nothing_is_waited_for_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        code, found = examined(f"http://127.0.0.1:{mute.getsockname()[1]}", "--timeout", "5")
    assert (code, list(found), found["http"]["verdict"]) == (1, ["tcp", "http"], "problem")
    assert "no answer in time" in found["http"]["text"]


def test_behind_a_proxy_the_way_is_the_proxys() -> None:
    env = {"http_proxy": f"http://name:the-password@127.0.0.1:{free_port()}", "no_proxy": ""}
    code, found = examined("http://server.invalid", env=env)
    assert (code, list(found), found["proxy"]["verdict"]) == (1, ["proxy", "http"], "note")
    assert "127.0.0.1" in found["proxy"]["text"]
    assert "the-password" not in json.dumps(found)


def test_a_server_of_another_kind_is_not_taken_for_one() -> None:
    async def babble(connection: Any) -> None:
        await connection.recv()
        await connection.send('"hello"')
        await connection.wait_closed()

    with ScriptedServer(babble) as other:
        code, found = examined(other.url)
    assert (code, found["dialect"]["verdict"]) == (1, "problem")


DEEP = b"[" * 100_000
LONG = b'{"status": ' + b"9" * 6_000 + b"}"


@pytest.mark.parametrize(
    ("answers", "check", "verdict"),
    [
        ({"/health": DEEP}, "http", "problem"),
        ({"/health": LONG}, "http", "problem"),
        ({"/health": b"<html>"}, "http", "problem"),
        ({"/health": ENDLESS}, "http", "problem"),
        ({"/health": {"status": "x" * 100_000}}, "http", "ok"),
        ({"/schema": {"action": []}}, "schema", "ok"),
        ({"/schema": {"action": {"properties": 5}}}, "schema", "ok"),
        ({"/schema": ENDLESS}, "schema", "note"),
        ({"/openapi.json": {"paths": None}}, "mode", "note"),
        ({"/mcp": DEEP}, "mcp", "note"),
        ({"/mcp": ENDLESS}, "mcp", "note"),
    ],
)
def test_whatever_a_server_answers_is_a_finding(answers: dict[str, Any], check: str, verdict: str) -> None:
    with hostile(answers) as url:
        found = looked_at(url)
    assert found[check].verdict == verdict
    assert max(len(one.text) for one in found.values()) < 1_100


def looked_at(url: str, token: str | None = None) -> dict[str, Finding]:
    """The findings by their names; in this process, which is what an unexpected error would reach."""
    checkup = Checkup(Address.parse(url), Credentials(token or False), 60)
    asyncio.run(checkup.run())
    assert not checkup.is_usable  # there is no WebSocket
    assert json.dumps([one.as_json() for one in checkup.findings], allow_nan=False)
    return {one.check: one for one in checkup.findings}


@pytest.mark.parametrize("location", ["http://[bad", "http://x.invalid:99999999/", "http://evil.invalid/"])
def test_a_server_that_sends_elsewhere_is_not_followed(location: str) -> None:
    with hostile({}, location) as url:
        found = looked_at(url, TOKEN)
    assert "HTTP 302, it sends to" in found["http"].text
    assert found["websocket"].verdict == "problem"


@pytest.mark.parametrize(
    "welcome",
    [
        {"type": "welcome", "data": 5},
        {"type": "welcome", "data": {"protocol": 1, "features": 7, "epoch": "e"}},
        {"type": ["welcome"], "data": {"protocol": 1, "features": ["seq"], "epoch": "e", "grace_s": float("inf")}},
    ],
)
def test_whatever_a_server_says_on_the_socket_is_a_finding(welcome: dict[str, Any]) -> None:
    def greet(connection: Any) -> None:
        connection.send(json.dumps(welcome))
        connection.send(json.dumps({"type": "error", "data": {"code": "CAPACITY_REACHED", "max_sessions": "1"}}))
        for _ in connection:
            pass

    with websockets.sync.server.serve(greet, "127.0.0.1", 0, subprotocols=[Subprotocol("openenv.v1")]) as other:
        thread = threading.Thread(target=other.serve_forever, daemon=True)
        thread.start()
        found = looked_at(f"http://127.0.0.1:{other.socket.getsockname()[1]}")
        other.shutdown()
        thread.join()
    assert (found["websocket"].verdict, list(found.values())[-1].verdict) == ("ok", "problem")


def test_words_of_a_server_do_not_move_a_terminal() -> None:
    with hostile({"/health": {"status": "\x1b]0;mine\x07\x1b[2J\ud800"}}) as url:
        done = openenv("doctor", url)
    assert r"/health: \x1b]0;mine\x07\x1b[2J\ud800" in done.stdout


def test_it_reads_well_for_people() -> None:
    with count_server(1) as server:
        done = openenv("doctor", server.url)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("ok      tcp        port ")
    assert any(line.startswith("note    dialect    plain:") for line in lines)
    assert any(line.lstrip().startswith("-> with openenv.v1") for line in lines)
    assert done.stderr == "A client can use this server now.\n"
    assert openenv("doctor", "ftp://x").returncode == 2
