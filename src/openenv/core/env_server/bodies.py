"""HTTP bodies in and out: requests to models, errors to answers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel, ValidationError

from openenv.core.env_server.calls import CallError, refusal, validation_error
from openenv.core.exceptions import OpenEnvError, SessionNotFoundError
from openenv.core.wire.json_codec import MalformedFrame, decode, encode
from openenv.core.wire.messages import WSErrorCode

__all__ = ["answered", "json_response", "parse"]

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


async def parse(request: Request, model: type[ModelT]) -> ModelT:
    """Read a request body as a model; an empty body is an empty object.

    Raises:
        CallError: it is not JSON, or does not fit.
    """
    body = await request.body() or b"{}"
    if len(body) > PARSE_HERE_BYTES:
        return await asyncio.to_thread(_parse, body, model)
    return _parse(body, model)


def _parse(body: bytes, model: type[ModelT]) -> ModelT:
    try:
        return model.model_validate(decode(body))
    except MalformedFrame as error:
        raise CallError(WSErrorCode.INVALID_JSON, f"Invalid JSON: {error}") from error
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
    status = _STATUS.get(error.code, 500)
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else None
    detail = error.extra.get("errors", error.message)
    return json_response(encode({"detail": detail, **error.data}), status, headers)
