"""An HTTP server that answers each route with whatever bytes a test gives it, or without end."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

ENDLESS = object()
"""Instead of an answer: spaces, for as long as somebody reads them."""

_GOOD: Mapping[str, Any] = {
    "/health": {"status": "healthy"},
    "/schema": {"action": {"properties": {"op": {"type": "string"}}}},
    "/openapi.json": {"paths": {"/reset": {}}},
    "/mcp": {"jsonrpc": "2.0", "id": 1, "error": {}},
}


@contextmanager
def hostile(answers: Mapping[str, Any], location: str = "") -> Iterator[str]:
    """Serve; yields the address.

    Args:
        answers: by route, beside good ones: bytes, `ENDLESS`, or what is sent as JSON.
        location: sends every request there.
    """
    told = {**_GOOD, **answers}

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answer = told.get(self.path)
            self.send_response(302 if location else 404 if answer is None else 200)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            try:
                while answer is ENDLESS:
                    self.wfile.write(b" " * 1_000_000)
                self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())
            except OSError:
                pass  # the other end has had enough

        do_POST = do_GET  # noqa: N815

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
