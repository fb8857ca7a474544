"""HTTP bodies in and out: requests to models, errors to answers.

A body must say that it is JSON: what a page may send to a foreign server without asking it first is never JSON (the
Fetch standard's CORS-safelisted request headers).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel, ValidationError

from openenv.core.env_server.calls import CallError, refusal, validation_error
from openenv.core.exceptions import OpenEnvError, SessionNotFoundError
from openenv.core.wire.json_codec import MalformedFrame, encode, parse_json
from openenv.core.wire.messages import WSErrorCode

__all__ = ["BodyRefused", "answered", "json_response", "parse", "read_body"]

RETRY_AFTER_S = 5
PARSE_HERE_BYTES = 16 * 1024

_STATUS: Mapping[str, int] = {
    WSErrorCode.INVALID_JSON: 422,
    WSErrorCode.VALIDATION_ERROR: 422,
    WSErrorCode.EXECUTION_ERROR: 500,
    WSErrorCode.FACTORY_ERROR: 500,
    WSErrorCode.CAPACITY_REACHED: 503,
    WSErrorCode.SESSION_ERROR: 503,
}
ModelT = TypeVar("ModelT", bound=BaseModel)


class BodyRefused(CallError):
    """A body was not even parsed; it has an HTTP status of its own."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(WSErrorCode.VALIDATION_ERROR, message)


async def parse(request: Request, model: type[ModelT]) -> ModelT:
    """Read a request body as a model; an empty body is an empty object, where no field is needed.

    Raises:
        CallError: it is not JSON, too large, or does not fit.
    """
    body = await read_body(request, request.app.state.openenv_server.v1.options.max_message_bytes)
    if len(body) > PARSE_HERE_BYTES:
        return await asyncio.to_thread(_parse, body, model)
    return _parse(body, model)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Read a body that must be JSON, up to a size.

    Raises:
        BodyRefused: it does not say that it is JSON (415), or is too large (413).
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise BodyRefused(413, f"The body is larger than the {max_bytes} bytes that this server reads")
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if body and not (kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))):
        raise BodyRefused(415, "The body must be JSON: send the header 'Content-Type: application/json'")
    return bytes(body)


def _parse(body: bytes, model: type[ModelT]) -> ModelT:
    if not body and any(field.is_required() for field in model.model_fields.values()):
        missing = {"type": "missing", "loc": ["body"], "msg": "Field required", "input": None}
        raise CallError(WSErrorCode.VALIDATION_ERROR, "Invalid message", errors=[missing])
    try:
        value = parse_json(body or b"{}")
    except MalformedFrame as error:
        cause = error.__cause__
        position = cause.pos if isinstance(cause, json.JSONDecodeError) else 0
        why = cause.msg if isinstance(cause, json.JSONDecodeError) else str(error)
        entry = {"loc": ["body", position], "msg": "JSON decode error", "input": {}, "ctx": {"error": why}}
        raise CallError(
            WSErrorCode.INVALID_JSON, f"Invalid JSON: {error}", errors=[{"type": "json_invalid", **entry}]
        ) from error
    try:
        return model.model_validate(value, from_attributes=True)  # as FastAPI does, for its error types
    except ValidationError as error:
        raise validation_error(error, ("body",)) from error


def json_response(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A response with a JSON body that is encoded already."""
    return Response(body, status_code=status, headers=headers, media_type="application/json")


async def answered(answer: Coroutine[Any, Any, Response]) -> Response:
    """The answer, or the HTTP form of the error that was raised in its place."""
    try:
        return await answer
    except SessionNotFoundError as error:
        hint = f"{error}. The session has ended or was never opened here: POST /reset opens a new one."
        return json_response(encode({"detail": hint, "message": hint, "code": "SESSION_ERROR"}), status=404)
    except OpenEnvError as error:
        return _error_response(refusal(error))
    except CallError as error:
        return _error_response(error)


def _error_response(error: CallError) -> Response:
    status = error.status if isinstance(error, BodyRefused) else _STATUS.get(error.code, 500)
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else None
    detail = error.extra.get("errors", error.message)
    return json_response(encode({"detail": detail, **error.data}), status, headers)
