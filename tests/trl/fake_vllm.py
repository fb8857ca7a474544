"""Answers ``POST /v1/completions`` as vLLM does, with the moves of a script instead of a model's."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


class FakeVLLM:
    """A server on a thread of its own. A context manager.

    Args:
        tokenizer: of the prompts.
        next_move: from the text of a prompt to what is said.
    """

    def __init__(self, tokenizer: Any, next_move: Callable[[str], str]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                said = next_move(tokenizer.decode(asked["prompt"])) + "<|im_end|>"
                ids = tokenizer(said, add_special_tokens=False)["input_ids"]
                choice = {"token_ids": ids, "logprobs": {"token_logprobs": [-1.0] * len(ids)}}
                body = json.dumps({"choices": [choice]}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
