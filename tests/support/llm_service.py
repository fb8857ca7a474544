"""A language model's service for tests: a real HTTP server that gives prepared answers and keeps what it was asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from support.live import serve


@dataclass
class Asked:
    """One request."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class LLMService:
    """The running service: put answers into `answers`, find requests in `asked`."""

    url: str = ""
    answers: list[Response] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)

    @staticmethod
    def says(content: str | None, *calls: tuple[str, str, str]) -> Response:
        """An answer in OpenAI's form; each call is an id, a name, and the arguments as text."""
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if calls:
            message["tool_calls"] = [
                {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}
                for number, name, arguments in calls
            ]
        return JSONResponse({"id": "x", "choices": [{"index": 0, "message": message}], "usage": {"total_tokens": 1}})

    @staticmethod
    def blocks(*content: dict[str, Any]) -> Response:
        """An answer in Anthropic's form."""
        return JSONResponse({"id": "x", "type": "message", "role": "assistant", "content": list(content)})

    @staticmethod
    def fails(status: int, message: str, **headers: str) -> Response:
        """A refusal, in the form that both use."""
        return JSONResponse({"error": {"message": message}}, status, headers)


@contextmanager
def llm_service() -> Iterator[LLMService]:
    """Run a service."""
    service = LLMService()
    app = FastAPI()

    @app.post("/{path:path}")
    async def answer(path: str, request: Request) -> Response:
        service.asked.append(Asked(f"/{path}", dict(request.headers), await request.json()))
        return service.answers.pop(0)

    with serve(app) as url:
        service.url = str(url)
        yield service
