"""What the fault proxy does to bytes, in this process and as a command."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from openenv.testing import FaultProxy, ProxyControls, ProxyProcess


class Echo:
    """Echoes bytes, each connection on a thread."""

    def __init__(self) -> None:
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
            self._threads.append(threading.Thread(target=self._echo, args=(connection,)))
            self._threads[-1].start()

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except OSError:
                pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def echo() -> Iterator[Echo]:
    with closing(Echo()) as echo:
        yield echo


@pytest.fixture(params=["thread", "process"])
def proxy(request: pytest.FixtureRequest, echo: Echo) -> Iterator[ProxyControls]:
    make = FaultProxy if request.param == "thread" else ProxyProcess
    with make("127.0.0.1", echo.port) as running:
        yield running


def dial(proxy: ProxyControls) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", proxy.port), timeout=30)
    connection.sendall(b"hello")
    assert connection.recv(5) == b"hello"
    return connection


def silent(connection: socket.socket) -> bool:
    """Nothing arrives for a while."""
    connection.settimeout(0.1)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(30)
    return False


def test_black_hole_lets_nothing_through_and_heals(proxy: ProxyControls) -> None:
    with dial(proxy) as connection:
        proxy.black_hole()
        connection.sendall(b"a")
        assert proxy.wait_for_held("request") == 1
        assert silent(connection)
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as newcomer:
            newcomer.sendall(b"n")
            assert silent(newcomer)
            proxy.heal()
            assert connection.recv(1) == b"a"
            assert newcomer.recv(1) == b"n"


def test_held_replies_are_delivered_at_the_release(proxy: ProxyControls) -> None:
    with dial(proxy) as one, dial(proxy) as other:
        proxy.hold("reply", 1)
        one.sendall(b"abc")
        assert proxy.wait_for_held("reply", 3) == 3
        other.sendall(b"x")
        assert other.recv(1) == b"x"
        assert silent(one)
        proxy.release("reply", 1)
        assert one.recv(3) == b"abc"


def test_a_held_end_is_an_end_later(proxy: ProxyControls) -> None:
    with dial(proxy) as connection:
        proxy.hold("request")
        connection.shutdown(socket.SHUT_WR)
        proxy.wait_for_held("request")
        assert silent(connection)
        proxy.heal()
        assert connection.recv(1) == b""


@pytest.mark.parametrize("count", [0, 1, 4])
@pytest.mark.parametrize("direction", ["request", "reply"])
def test_cut_after_some_bytes(proxy: ProxyControls, count: int, direction: str) -> None:
    with dial(proxy) as connection:
        before = proxy.passed(direction)
        proxy.cut_after(count, direction, "fin")
        connection.sendall(b"0123456789")
        assert proxy.wait_for_cuts(1) == 1
        assert proxy.wait_for_open(0) == 0
        received = b""
        while data := connection.recv(100):
            received += data
        assert proxy.passed(direction) == before + count
        assert received == b"0123456789"[: len(received)]
        if direction == "reply":
            assert len(received) == count
    with dial(proxy) as later:  # it happens once
        later.sendall(b"more")
        assert later.recv(4) == b"more"


def test_cut_one_connection_of_two(proxy: ProxyControls) -> None:
    with dial(proxy) as one, dial(proxy) as other:
        assert proxy.cut("rst", 1) == 1
        with pytest.raises(ConnectionResetError):
            one.recv(1)
        other.sendall(b"x")
        assert other.recv(1) == b"x"
        assert proxy.connections == 1


def test_refuses_and_heals(proxy: ProxyControls) -> None:
    proxy.refuse("closed")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), timeout=30)
    proxy.heal()
    dial(proxy).close()
    proxy.refuse("rst")
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as refused, pytest.raises(ConnectionError):
        refused.recv(1)
    proxy.heal()
    dial(proxy).close()
    assert proxy.accepted == 3
    assert proxy.wait_for_connections(2) == 3


def test_a_delay_is_one_for_later_connections_too(proxy: ProxyControls) -> None:
    proxy.delay(0.2, "reply")
    connection = socket.create_connection(("127.0.0.1", proxy.port), timeout=30)
    connection.sendall(b"x")
    assert silent(connection)
    assert connection.recv(1) == b"x"
    connection.close()


def test_waits_give_up_and_words_are_checked(proxy: ProxyControls) -> None:
    with pytest.raises(TimeoutError, match="wait_for_connections"):
        proxy.wait_for_connections(5, timeout_s=0.05)
    for wrong in (lambda: proxy.cut("slowly"), lambda: proxy.hold("up"), lambda: proxy.refuse("fin")):
        with pytest.raises(ValueError, match="must be"):
            wrong()


def test_the_command_prints_its_address_and_answers_line_by_line(echo: Echo) -> None:
    command = [sys.executable, "-m", "openenv.testing.proxy", "--target", f"127.0.0.1:{echo.port}", "--port", "0"]
    lines = "connections\nblackhole\nheal\ncut rst\ncut-on-reply fin\nhold reply -\nnonsense\ncut slowly\nheal 1 2\n\n"
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=60)
    address, *answers = done.stdout.splitlines()
    assert address.startswith("http://127.0.0.1:")
    assert [answer.split()[0] for answer in answers] == ["ok"] * 6 + ["error"] * 3
    assert "there are cut, hold" in answers[6]
    assert (done.returncode, done.stderr) == (0, "")
