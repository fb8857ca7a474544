"""The transport whose socket belongs to the calling thread, against servers that are scripted to the byte."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from websockets.frames import Close, Frame, Opcode
from websockets.sync.server import serve

from openenv.core.exceptions import ForkedClientError
from openenv.core.transport.base import DialError, TransportClosed
from openenv.policy import WebSocketEnvClientAgent, direct, keeper, socket_link
from openenv.policy.direct import DirectTransport
from openenv.policy.framing import LARGE_BYTES
from openenv.policy.server import PolicyServer
from openenv.policy.transport import IoThreadTransport, connector_for
from support.policy_link import EchoPolicy, expected, observation
from support.raw_websocket import RawServer, RawSocket

SOON = 20.0


def noise(size: int) -> bytes:
    return np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()


def apart(work: Callable[[], Any]) -> Future[Any]:
    """Do it in another thread."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done


@pytest.fixture
def server() -> Iterator[RawServer]:
    with RawServer() as raw:
        yield raw


class Pair:
    """Both ends of an open connection."""

    def __init__(self, server: RawServer, first: bytes = b"", **changes: Any) -> None:
        connector = connector_for(server.url)
        for name, value in changes.items():
            object.__setattr__(connector, name, value)
        self.here = DirectTransport(connector)
        dialled = apart(lambda: self.here.dial(SOON))
        self.there: RawSocket = server.accept(first)
        dialled.result(SOON)
        assert self.here._link is not None  # it is not the other transport that is tested

    def end(self) -> None:
        self.here.abort()
        self.there.close()

    def ended(self) -> TransportClosed:
        with pytest.raises(TransportClosed) as caught:
            self.here.receive(SOON)
        return caught.value


@pytest.fixture
def pair(server: RawServer) -> Iterator[Pair]:
    made = Pair(server)
    yield made
    made.end()


# ------------------------------------------------------------------ messages


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 65537, 1_000_001])
def test_messages_of_every_form_of_length(pair: Pair, size: int) -> None:
    message = noise(size)
    sent = apart(lambda: pair.here.send([message[:7], memoryview(message)[7:]], SOON))
    frame = pair.there.read()
    sent.result(SOON)
    assert frame is not None
    assert (frame.opcode, frame.fin, bytes(frame.data)) == (Opcode.BINARY, True, message)
    sent = apart(lambda: pair.there.frame(Opcode.BINARY, message))
    received = pair.here.receive(SOON)
    assert bytes(received) == message
    assert isinstance(received, bytearray) == (size >= LARGE_BYTES)
    sent.result(SOON)


def test_a_small_frame_cut_at_every_byte(pair: Pair) -> None:
    stream = Frame(Opcode.BINARY, noise(300)).serialize(mask=False)
    for cut in range(1, len(stream)):
        received = apart(lambda: pair.here.receive(SOON))
        pair.there.send(stream[:cut])
        pair.there.send(stream[cut:])
        assert received.result(SOON) == noise(300)


def test_bytes_that_come_with_the_response_are_not_lost(server: RawServer) -> None:
    small, large = noise(40), noise(LARGE_BYTES * 2)
    first = b"".join(Frame(Opcode.BINARY, message).serialize(mask=False) for message in (small, large))
    pair = Pair(server, first)
    assert [bytes(pair.here.receive(SOON)) for _ in range(2)] == [small, large]
    pair.end()


def test_a_message_in_fragments_with_control_frames_between_them(pair: Pair) -> None:
    parts = [noise(10), noise(LARGE_BYTES + 1), b"", noise(200)]
    received = apart(lambda: pair.here.receive(SOON))
    for number, part in enumerate(parts):
        opcode = Opcode.CONT if number else Opcode.BINARY
        pair.there.frame(opcode, part, fin=number == len(parts) - 1)
        pair.there.frame(Opcode.PONG, b"nobody asked")
        pair.there.frame(Opcode.PING, bytes([number]))
        answer = pair.there.read()
        assert answer is not None
        assert (answer.opcode, bytes(answer.data)) == (Opcode.PONG, bytes([number]))
    assert received.result(SOON) == b"".join(parts)


def test_a_text_frame_is_given_as_text(pair: Pair) -> None:
    pair.there.frame(Opcode.TEXT, "Fehler: \u00fc".encode())
    assert pair.here.receive(SOON) == "Fehler: \u00fc"


def test_several_messages_in_one_segment_come_one_by_one(pair: Pair) -> None:
    messages = [noise(size) for size in (3, LARGE_BYTES, 0, 500)]
    pair.there.send(b"".join(Frame(Opcode.BINARY, one).serialize(mask=False) for one in messages))
    assert [bytes(pair.here.receive(SOON)) for _ in messages] == messages


# ------------------------------------------------------------------ the end


@pytest.mark.parametrize(
    ("frame", "code", "reason"),
    [
        (Close(1001, "plugrl-server-stop").serialize(), 1001, "plugrl-server-stop"),
        (Close(1011, "").serialize(), 1011, ""),
        (Close(4321, "\u00fc" * 61).serialize(), 4321, "\u00fc" * 61),
        (b"", 1005, ""),
    ],
)
@pytest.mark.parametrize("idle", [True, False])
def test_a_close_of_the_server_is_answered_and_told(
    pair: Pair, frame: bytes, code: int, reason: str, idle: bool
) -> None:
    if idle:  # the keeper answers; the user learns of it later
        pair.there.frame(Opcode.CLOSE, frame)
        assert pair.there.closed_with() == (code, reason)
        with pytest.raises(TransportClosed) as caught:
            pair.here.send([b"late"], SOON)
        drop = caught.value.drop
    else:
        told = apart(pair.ended)
        pair.there.frame(Opcode.CLOSE, frame)
        assert pair.there.closed_with() == (code, reason)
        drop = told.result(SOON).drop
    assert (drop.code, drop.reason, drop.by_us) == (code, reason, False)
    assert pair.there.read() is None


def test_what_came_before_a_close_is_received_before_it(pair: Pair) -> None:
    pair.there.frame(Opcode.BINARY, b"last")
    pair.there.frame(Opcode.CLOSE, Close(1001, "bye").serialize())
    assert pair.here.receive(SOON) == b"last"
    assert pair.ended().drop.code == 1001


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        (b"\xc2\x00", 1002),  # a reserved bit
        (b"\x83\x00", 1002),  # a reserved opcode
        (b"\x82\x81keysx", 1002),  # masked
        (b"\x80\x01x", 1002),  # nothing to continue
        (b"\x02\x01x\x82\x01y", 1002),  # a message within a message
        (b"\x02\x01x" + Frame(Opcode.BINARY, bytes(LARGE_BYTES)).serialize(mask=False), 1002),
        (b"\x09\x00", 1002),  # a ping in fragments
        (b"\x89\x7e\x00\x80" + bytes(128), 1002),  # a ping of 128 bytes
        (b"\x88\x01\x03", 1002),  # half a code
        (b"\x88\x02\x03\xed", 1002),  # 1005 may not be sent
    ],
)
def test_what_breaks_the_rules_ends_the_connection(pair: Pair, stream: bytes, code: int) -> None:
    told = apart(pair.ended)
    pair.there.send(stream)
    assert (pair.there.closed_with() or (None,))[0] == code
    drop = told.result(SOON).drop
    assert (drop.code, drop.by_us) == (code, True)


@pytest.mark.parametrize("sent", [b"", b"\x82", b"\x82\x7f" + (LARGE_BYTES * 4).to_bytes(8, "big") + b"half"])
def test_a_cut_is_told_as_one(pair: Pair, sent: bytes) -> None:
    pair.there.send(sent)
    pair.there.close()
    drop = pair.ended().drop
    assert (drop.code, drop.detail) == (None, "the connection was cut without a close frame")
    with pytest.raises(TransportClosed):
        pair.here.send([b"x"], SOON)


def test_a_server_that_closes_in_the_middle_of_a_large_frame_says_why(pair: Pair) -> None:
    sent = apart(lambda: pair.here.send([bytes(1 << 26)], SOON))
    assert pair.there.sock.recv(1 << 16)
    pair.there.frame(Opcode.CLOSE, Close(1009, "too big").serialize())
    with pytest.raises(TransportClosed) as caught:
        sent.result(SOON)
    assert (caught.value.drop.code, caught.value.drop.reason) == (1009, "too big")


def test_close_says_goodbye_and_waits_for_the_answer(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_link, "CLOSE_TIMEOUT_S", SOON)
    done = apart(pair.here.close)
    assert pair.there.closed_with() == (1000, "")
    pair.there.frame(Opcode.CLOSE, Close(1000, "").serialize())
    done.result(SOON / 2)
    assert pair.there.read() is None


def test_close_gives_up_on_a_server_that_does_not_answer(pair: Pair) -> None:
    done = apart(pair.here.close)
    assert pair.there.closed_with() == (1000, "")
    done.result(SOON)
    assert pair.there.read() is None


def test_close_from_another_thread_ends_a_call(pair: Pair) -> None:
    entered = threading.Event()
    link = pair.here._link
    assert link is not None
    wait = link._wait

    def waiting(*given: Any) -> None:
        entered.set()
        wait(*given)

    link._wait = waiting  # type: ignore[method-assign]
    told = apart(pair.ended)
    assert entered.wait(SOON)
    done = apart(pair.here.close)
    assert "let go" in told.result(SOON).drop.detail
    assert pair.there.closed_with() == (1000, "")
    done.result(SOON)


def test_abort_from_another_thread_ends_a_call_without_a_word(pair: Pair) -> None:
    told = apart(pair.ended)
    pair.here.abort()
    told.result(SOON)
    assert pair.there.closed_with() is None


# ------------------------------------------------------------------ time


def test_a_receive_in_time(pair: Pair) -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        pair.here.receive(0.05)
    assert time.monotonic() - began >= 0.05
    pair.there.frame(Opcode.BINARY, b"in time")
    assert pair.here.receive(SOON) == b"in time"


def test_a_frame_that_is_not_taken_in_time_costs_the_connection(pair: Pair) -> None:
    with pytest.raises(TimeoutError):
        pair.here.send([bytes(1 << 26)], 0.1)
    with pytest.raises(TransportClosed):
        pair.here.send([b"the rest of nothing"], SOON)


def test_pings_are_answered_while_nobody_uses_the_connection(pair: Pair) -> None:
    for number in range(5):
        pair.there.frame(Opcode.PING, bytes([number]))
        answer = pair.there.read()
        assert answer is not None
        assert (answer.opcode, bytes(answer.data)) == (Opcode.PONG, bytes([number]))
    pair.there.frame(Opcode.BINARY, b"still here")
    assert pair.here.receive(SOON) == b"still here"


@pytest.mark.parametrize("idle", [True, False])
def test_a_server_that_answers_no_ping_is_given_up(
    server: RawServer, monkeypatch: pytest.MonkeyPatch, idle: bool
) -> None:
    monkeypatch.setattr(keeper, "ROUND_S", 0.05)
    pair = Pair(server, ping_interval_s=0.05, ping_timeout_s=0.1)
    told = None if idle else apart(pair.ended)
    frame = pair.there.read()
    assert frame is not None
    assert frame.opcode is Opcode.PING
    assert pair.there.closed_with() == (1011, "keepalive ping timeout")
    drop = pair.ended().drop if told is None else told.result(SOON).drop
    assert (drop.detail, drop.by_us) == ("the server stopped answering pings", True)
    pair.end()


def test_a_server_that_answers_pings_is_kept(server: RawServer) -> None:
    pair = Pair(server, ping_interval_s=0.02, ping_timeout_s=5.0)
    received = apart(lambda: pair.here.receive(SOON))
    for _ in range(5):
        frame = pair.there.read()
        assert frame is not None
        assert frame.opcode is Opcode.PING
        pair.there.frame(Opcode.PONG, bytes(frame.data))
    pair.there.frame(Opcode.BINARY, b"late")
    assert received.result(SOON) == b"late"
    pair.end()


def test_an_idle_agent_outlives_many_pings_of_a_real_server() -> None:
    with PolicyServer(EchoPolicy(), "127.0.0.1", 0, ping_interval_s=0.05) as served:
        with WebSocketEnvClientAgent(served.url) as agent:
            for value in (1.0, 2.0):
                answer = agent.infer(observation(value), [0], [0])
                assert isinstance(agent._transport, DirectTransport)
                assert answer.action.tolist() == expected(value)
                agent.feedback(observation(value), [0], [0], [1.0], [False], [False])
                time.sleep(0.4)  # the caller computes; a ping that is late by 0.05 s ends the connection
        assert served.metrics.connections == 1


def test_a_signal_handler_that_raises_ends_a_call_and_its_connection(pair: Pair) -> None:
    def interrupt(*given: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(KeyboardInterrupt):
            pair.here.send([bytes(1 << 26)], SOON)
    finally:
        signal.signal(signal.SIGUSR1, before)
    with pytest.raises(TransportClosed):
        pair.here.receive(SOON)


# ------------------------------------------------------------------ opening, and who does it


def test_a_refused_handshake_is_told_with_its_status(server: RawServer) -> None:
    transport = DirectTransport(connector_for(server.url))
    dialled = apart(lambda: transport.dial(SOON))
    sock, _ = server.listener.accept()
    sock.recv(65536)
    sock.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 4\r\n\r\nno!\n")
    with pytest.raises(DialError) as caught:
        dialled.result(SOON)
    assert caught.value.failure.error.status == 403  # type: ignore[attr-defined]
    assert not caught.value.failure.retryable
    sock.close()


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 101 Switching Protocols\r\n\r\n"])
def test_what_is_no_websocket_server_may_be_one_later(server: RawServer, answer: bytes) -> None:
    transport = DirectTransport(connector_for(server.url))
    dialled = apart(lambda: transport.dial(SOON))
    sock, _ = server.listener.accept()
    sock.recv(65536)
    sock.sendall(answer)
    sock.close()
    with pytest.raises(DialError) as caught:
        dialled.result(SOON)
    assert caught.value.failure.retryable


def test_nobody_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(DialError, match="connection refused") as caught:
        DirectTransport(connector_for(f"ws://127.0.0.1:{port}")).dial(SOON)
    assert caught.value.failure.retryable


def test_a_handshake_that_is_not_answered_in_time(server: RawServer) -> None:
    with pytest.raises(TimeoutError):
        DirectTransport(connector_for(server.url)).dial(0.05)


def test_the_headers_of_the_handshake(server: RawServer) -> None:
    transport = DirectTransport(connector_for(server.url, "secret", {"X-Run": "7"}))
    dialled = apart(lambda: transport.dial(SOON))
    sock, _ = server.listener.accept()
    request = sock.recv(65536).decode().lower()
    sock.close()
    assert dialled.exception(SOON) is not None
    assert "authorization: api-key secret\r\n" in request
    assert "x-run: 7\r\n" in request
    assert "user-agent: openenv/" in request
    assert "sec-websocket-extensions" not in request


def test_a_redirect_is_left_to_websockets() -> None:
    def echo(connection: Any) -> None:
        for message in connection:
            connection.send(message)

    with serve(echo, "127.0.0.1", 0) as real, RawServer() as first:
        threading.Thread(target=real.serve_forever, daemon=True).start()
        transport = DirectTransport(connector_for(first.url))
        dialled = apart(lambda: transport.dial(SOON))
        for _ in range(2):  # it asks itself, then `websockets` does
            sock, _ = first.listener.accept()
            sock.recv(65536)
            place = f"ws://127.0.0.1:{real.socket.getsockname()[1]}/".encode()
            sock.sendall(b"HTTP/1.1 307 Temporary Redirect\r\nContent-Length: 0\r\nLocation: " + place + b"\r\n\r\n")
            sock.close()
        dialled.result(SOON)
        transport.send([b"a", b"b"], SOON)
        assert transport.receive(SOON) == b"ab"
        assert transport._link is None
        transport.close()
        real.shutdown()


@pytest.mark.parametrize(("url", "proxy"), [("wss://127.0.0.1:1", None), ("ws://elsewhere.test", "http://127.0.0.1:1")])
def test_tls_and_proxies_are_left_to_websockets(monkeypatch: pytest.MonkeyPatch, url: str, proxy: str | None) -> None:
    asked: list[float | None] = []
    monkeypatch.setattr(IoThreadTransport, "dial", lambda self, timeout_s: asked.append(timeout_s))
    monkeypatch.setattr(direct, "get_proxy", lambda uri: proxy)
    transport = DirectTransport(connector_for(url))
    transport.dial(3.0)
    assert asked == [3.0]


@pytest.mark.parametrize(
    ("argument", "variable", "expected"),
    [(None, None, True), (None, "0", False), (None, "1", True), (False, "1", False), (True, "0", True)],
)
def test_the_switch(
    monkeypatch: pytest.MonkeyPatch, argument: bool | None, variable: str | None, expected: bool
) -> None:
    monkeypatch.delenv(direct.DIRECT_SWITCH, raising=False)
    if variable is not None:
        monkeypatch.setenv(direct.DIRECT_SWITCH, variable)
    agent = WebSocketEnvClientAgent("ws://127.0.0.1:1", direct_socket=argument)
    assert isinstance(agent._transport, DirectTransport) == expected


def test_other_systems_have_no_such_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(direct.select, "epoll")
    assert isinstance(WebSocketEnvClientAgent("ws://127.0.0.1:1")._transport, IoThreadTransport)


def test_a_forked_child_neither_uses_nor_ends_the_connection(pair: Pair) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            pair.here.check()
        except ForkedClientError:
            pair.here.abort()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    pair.there.frame(Opcode.PING, b"after the fork")
    answer = pair.there.read()
    assert answer is not None
    assert answer.opcode is Opcode.PONG
    pair.here.send([b"still ours"], SOON)
    assert bytes(pair.there.read().data) == b"still ours"  # type: ignore[union-attr]


def test_a_connection_that_is_let_go_leaves_nothing_behind(server: RawServer) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        pair = Pair(server)
        pair.here.abort()
        pair.there.close()
    pair = Pair(server)
    pair.there.frame(Opcode.CLOSE, Close(1001, "").serialize())
    assert pair.ended().drop.code == 1001
    pair.there.close()
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 4  # the I/O thread's and the keeper's, once
    assert keeper.Keeper.shared()._kept == {}
