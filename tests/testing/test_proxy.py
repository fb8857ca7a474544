"""The fault proxy, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from openenv.testing import FaultProxy


class EchoServer:
    """Echoes bytes in a thread, and notes how each connection ended."""

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.changed = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._echo, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
                end = "fin"
            except ConnectionError:
                end = "rst"
        with self.changed:
            self.ends.append(end)
            self.changed.notify_all()

    def wait_for_ends(self, count: int) -> list[str]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.ends) >= count, timeout=30)
            return list(self.ends)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def server() -> Iterator[EchoServer]:
    with closing(EchoServer()) as echo:
        yield echo


@pytest.fixture
def proxy(server: EchoServer) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", server.port) as running:
        yield running


def dial(proxy: FaultProxy) -> socket.socket:
    """Connect, and return once the proxy forwards."""
    connection = socket.create_connection(("127.0.0.1", proxy.port), timeout=30)
    assert round_trip(connection, b"hello") == b"hello"
    return connection


def round_trip(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    received = bytearray()
    while len(received) < len(data):
        chunk = connection.recv(len(data))
        assert chunk, "the connection ended"
        received += chunk
    return bytes(received)


def test_forwards_bytes_both_ways_and_counts_connections(proxy: FaultProxy) -> None:
    assert proxy.connections == 0
    with dial(proxy) as first, dial(proxy) as second:
        assert round_trip(first, b"a" * 1_000) == b"a" * 1_000
        assert round_trip(second, b"b") == b"b"
        assert proxy.connections == 2
        assert proxy.url == f"http://127.0.0.1:{proxy.port}"


def test_forwards_more_than_the_sockets_can_buffer(proxy: FaultProxy) -> None:
    data = bytes(range(256)) * 4 * 16_384  # 16 MiB
    with dial(proxy) as connection:
        received = bytearray()

        def read() -> None:
            while len(received) < len(data):
                received.extend(connection.recv(1 << 20))

        reader = threading.Thread(target=read)
        reader.start()
        connection.sendall(data)
        reader.join()
    assert bytes(received) == data


def test_rst_resets_both_sides(proxy: FaultProxy, server: EchoServer) -> None:
    with dial(proxy) as connection:
        assert proxy.cut("rst") == 1
        assert proxy.connections == 0
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
        assert server.wait_for_ends(1) == ["rst"]


def test_fin_ends_both_sides_in_order(proxy: FaultProxy, server: EchoServer) -> None:
    with dial(proxy) as connection:
        assert proxy.cut("fin") == 1
        assert proxy.connections == 0
        assert connection.recv(1) == b""
        assert server.wait_for_ends(1) == ["fin"]


@pytest.mark.parametrize("mode", ["rst", "fin"])
def test_cut_cuts_every_connection_and_spares_later_ones(proxy: FaultProxy, mode: str) -> None:
    connections = [dial(proxy) for _ in range(20)]
    assert proxy.cut(mode) == 20
    assert proxy.cut(mode) == 0
    with dial(proxy) as later:
        assert round_trip(later, b"still here") == b"still here"
    for connection in connections:
        connection.close()


def test_fin_does_not_wait_for_a_peer_that_never_reads(proxy: FaultProxy) -> None:
    with dial(proxy) as connection:
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:  # nobody reads the echo, so every buffer on the way fills
                connection.send(b"x" * 65536)
        assert proxy.cut("fin") == 1
        assert proxy.connections == 0


def test_passes_on_how_the_peers_end(proxy: FaultProxy, server: EchoServer) -> None:
    with dial(proxy) as connection:
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    assert server.wait_for_ends(1) == ["fin"]


def test_dead_target_resets_the_client() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with FaultProxy("127.0.0.1", port) as proxy, socket.create_connection(("127.0.0.1", proxy.port)) as connection:
        connection.settimeout(30)
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
        assert proxy.connections == 0


def test_close_resets_connections_and_frees_the_port(server: EchoServer) -> None:
    proxy = FaultProxy("127.0.0.1", server.port).start()
    with dial(proxy) as connection:
        proxy.close()
        proxy.close()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port))
    with pytest.raises(RuntimeError, match="not running"):
        proxy.cut()
    with proxy.start(), dial(proxy):  # the same port again
        assert proxy.connections == 1


def test_taken_port_and_second_start_are_refused(proxy: FaultProxy, server: EchoServer) -> None:
    with pytest.raises(RuntimeError, match="running already"):
        proxy.start()
    with pytest.raises(OSError, match=r"[Aa]ddress already in use"):
        FaultProxy("127.0.0.1", server.port, port=proxy.port).start()
    with pytest.raises(ValueError, match="'rst' or 'fin'"):
        proxy.cut("bang")


async def test_serves_the_loop_of_the_caller(proxy: FaultProxy) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    assert proxy.cut("fin") == 1
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
