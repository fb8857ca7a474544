"""A TCP proxy with a given rate and delay: ``python -m bench.slow_link PORT RATE DELAY``.

It prints its port. For each line that it reads it prints the bytes that have passed to the server and back.
"""

from __future__ import annotations

import queue
import socket
import sys
import threading
import time

CHUNK = 8 * 1024
"""Bytes that move at a time: well below a millisecond of a slow link."""


class SlowLink:
    """The proxy.

    Args:
        target: port of the server on this machine.
        rate: bytes a second, each way.
        delay_s: from one end to the other.
    """

    def __init__(self, target: int, rate: float, delay_s: float) -> None:
        self._target = target
        self._rate = rate
        self._delay_s = delay_s
        self.passed = [0, 0]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]

    def serve(self) -> None:
        """Serve for ever."""
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", self._target))
            for way, (source, sink) in enumerate([(client, server), (server, client)]):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
                threading.Thread(target=self._take, args=(source, waiting, way), daemon=True).start()
                threading.Thread(target=self._give, args=(sink, waiting), daemon=True).start()

    def _take(self, source: socket.socket, waiting: queue.SimpleQueue[tuple[float, bytes]], way: int) -> None:
        free = 0.0
        while True:
            try:
                data = source.recv(CHUNK)
            except OSError:
                data = b""
            free = max(free, time.monotonic()) + len(data) / self._rate
            waiting.put((free + self._delay_s, data))
            self.passed[way] += len(data)
            if not data:
                return

    def _give(self, sink: socket.socket, waiting: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        while True:
            due, data = waiting.get()
            left = due - time.monotonic()
            if left > 0:
                time.sleep(left)
            try:
                if data:
                    sink.sendall(data)
                else:
                    sink.shutdown(socket.SHUT_WR)
                    return
            except OSError:
                return


def main() -> None:
    target, rate, delay_s = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    link = SlowLink(target, rate, delay_s)
    threading.Thread(target=link.serve, daemon=True).start()
    print(link.port, flush=True)
    for _ in sys.stdin:
        print(*link.passed, flush=True)


if __name__ == "__main__":
    main()
