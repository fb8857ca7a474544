"""The two requests that clients of language models make, over httpx: with patience, and without telling the key."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import ssl
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import httpx

from openenv.core.exceptions import LLMError

__all__ = ["AsyncAnthropic", "AsyncOpenAI"]

REQUEST_TIMEOUT_S = 600.0
CONNECT_TIMEOUT_S = 10.0
ATTEMPTS = 3
LONGEST_PAUSE_S = 8.0

_BUSY = {408, 409, 429, 500, 502, 503, 504, 529}
"""HTTP statuses after which a request is made again: the service is full, or tripped over itself."""


class AsyncOpenAI:
    """The part of OpenAI's interface that is used: ``chat.completions.create``.

    Args:
        base_url: address of the service, with its path, as ``http://localhost:8000/v1``.
        api_key: key of the service.
    """

    def __init__(self, *, base_url: str, api_key: str) -> None:
        service = _Service(base_url, {"Authorization": f"Bearer {api_key}"}, api_key)
        self.chat = SimpleNamespace(
            completions=SimpleNamespace(create=functools.partial(service.post, "chat/completions"))
        )


class AsyncAnthropic:
    """The part of Anthropic's interface that is used: ``messages.create``.

    Args:
        base_url: address of the service.
        api_key: key of the service.
    """

    def __init__(self, *, base_url: str, api_key: str) -> None:
        service = _Service(base_url, {"x-api-key": api_key, "anthropic-version": "2023-06-01"}, api_key)
        self.messages = SimpleNamespace(create=functools.partial(service.post, "v1/messages"))


class Record(dict[str, Any]):
    """A JSON object whose members are attributes; one that is missing is None."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)


class _Service:
    def __init__(self, base_url: str, headers: Mapping[str, str], secret: str) -> None:
        self._base_url = base_url.rstrip("/")
        self._headers = headers
        self._secret = secret

    def __repr__(self) -> str:
        return f"<service at {self._base_url}>"

    async def post(self, path: str, **body: Any) -> Any:
        """Make a request; again, if the service could not be reached or is busy.

        Raises:
            LLMError: it failed for good.
        """
        url = httpx.URL(f"{self._base_url}/{path}")
        loopback = url.host == "localhost" or url.host.startswith("127.") or url.host == "::1"
        async with httpx.AsyncClient(
            headers=dict(self._headers),
            timeout=httpx.Timeout(REQUEST_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=not loopback,  # no proxy for this machine
            verify=_tls() if url.scheme == "https" else False,
        ) as client:
            attempt = 0
            while True:
                attempt += 1
                try:
                    answer = await client.post(url, json=body)
                except httpx.HTTPError as error:
                    failure = LLMError(f"{url} could not be asked: {type(error).__name__} {error}", url=str(url))
                    failure.__cause__ = error
                    again, asked = _may_go_better(error), None
                else:
                    if answer.is_success:
                        return self._read(answer)
                    failure = self._refusal(answer)
                    again, asked = answer.status_code in _BUSY, answer.headers.get("retry-after")
                if not again or attempt == ATTEMPTS:
                    raise failure
                await asyncio.sleep(_pause(attempt, asked))

    def _read(self, answer: httpx.Response) -> Any:
        try:
            return answer.json(object_hook=Record)
        except ValueError as error:
            raise LLMError(
                f"{answer.url} did not answer with JSON", status=answer.status_code, url=str(answer.url)
            ) from error

    def _refusal(self, answer: httpx.Response) -> LLMError:
        text = answer.text.strip()
        with contextlib.suppress(ValueError, TypeError, KeyError):
            text = str(answer.json()["error"]["message"])
        if self._secret:
            text = text.replace(self._secret, "***")
        advice = " Check the API key." if answer.status_code in (401, 403) else ""
        return LLMError(
            f"{answer.url} answered {answer.status_code}: {text[:500]}{advice}",
            status=answer.status_code,
            url=str(answer.url),
        )


def _may_go_better(error: httpx.HTTPError) -> bool:
    return isinstance(error, httpx.TransportError) and not isinstance(
        error, httpx.ReadTimeout | httpx.UnsupportedProtocol
    )


def _pause(attempt: int, asked: str | None) -> float:
    """Seconds to wait before the next attempt: what the service asked for, within bounds, else backoff with jitter."""
    with contextlib.suppress(TypeError, ValueError):
        return min(max(float(asked or ""), 0.0), LONGEST_PAUSE_S)
    return min(0.5 * 2.0 ** (attempt - 1), LONGEST_PAUSE_S) * random.SystemRandom().uniform(0.5, 1.0)


@functools.cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()
