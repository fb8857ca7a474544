"""Clients of language models, over HTTP: OpenAI's chat completions and what speaks like it, and Anthropic's messages.

No package of a vendor is needed. Each request has a connection of its own, so that a client may be used from any event
loop and has nothing to close. What is sent and read is put together in `llm_messages`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from openenv.core.exceptions import LLMError
from openenv.core.llm_http import AsyncAnthropic, AsyncOpenAI
from openenv.core.llm_messages import (
    LLMResponse,
    ToolCall,
    _clean_mcp_schema,
    _mcp_tools_to_anthropic,
    _mcp_tools_to_openai,
    _openai_msgs_to_anthropic,
)

__all__ = [
    "AnthropicClient",
    "LLMClient",
    "LLMResponse",
    "OpenAIClient",
    "ToolCall",
    "_clean_mcp_schema",
    "_mcp_tools_to_anthropic",
    "_mcp_tools_to_openai",
    "_openai_msgs_to_anthropic",
    "create_llm_client",
]


class LLMClient(ABC):
    """A language model behind an address. Subclass it and write `complete`.

    Args:
        endpoint: the service's address, as ``http://localhost``; may hold a port and a path.
        port: its port, if the address holds none.
    """

    def __init__(self, endpoint: str, port: int | None) -> None:
        self.endpoint = endpoint
        self.port = port

    @abstractmethod
    async def complete(self, prompt: str, **kwargs: Any) -> str:
        """Answer a prompt.

        Args:
            prompt: the user's message.
            **kwargs: settings of this request, as ``temperature`` and ``max_tokens``.

        Raises:
            LLMError: the service failed.
        """

    async def complete_with_tools(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], **kwargs: Any
    ) -> LLMResponse:
        """Go on with a conversation, perhaps by calling tools.

        Args:
            messages: the conversation, in the form of OpenAI's chat completions.
            tools: MCP tool definitions.
            **kwargs: settings of this request, as ``temperature`` and ``max_tokens``.

        Raises:
            NotImplementedError: this client does not know tools.
            LLMError: the service failed.
        """
        raise NotImplementedError(f"{type(self).__name__} does not support tool calling")

    @property
    def base_url(self) -> str:
        """The service's address with its port.

        Raises:
            ValueError: it is not usable; says why.
        """
        return _address(self.endpoint, self.port)


class _ModelClient(LLMClient):
    """What the clients of both dialects have in common."""

    def __init__(
        self,
        endpoint: str,
        port: int | None,
        model: str,
        system_prompt: str | None,
        temperature: float,
        max_tokens: int,
    ) -> None:
        super().__init__(endpoint, port)
        self.model = model
        self.system_prompt = system_prompt
        self.temperature = temperature
        self.max_tokens = max_tokens

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.model} at {self.base_url}>"

    def _settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"temperature": self.temperature, "max_tokens": self.max_tokens, **given}


class OpenAIClient(_ModelClient):
    """A model behind OpenAI's chat completions: OpenAI, vLLM, TGI, Ollama, the Hub's inference providers.

    Args:
        endpoint: address of the service; ``/v1`` is appended if it has no path.
        port: its port, if the address holds none.
        model: name of the model.
        api_key: key of the service; a local one needs none.
        system_prompt: put before each conversation that has no system message.
        temperature: sampling temperature.
        max_tokens: longest answer, in tokens.
        use_max_completion_tokens: send ``max_completion_tokens`` and no temperature, as newer OpenAI models want it.

    Raises:
        ValueError: the address is not usable.
    """

    def __init__(
        self,
        endpoint: str,
        port: int | None,
        model: str,
        api_key: str | None = None,
        system_prompt: str | None = None,
        temperature: float = 0.0,
        max_tokens: int = 256,
        use_max_completion_tokens: bool = False,
    ) -> None:
        super().__init__(endpoint, port, model, system_prompt, temperature, max_tokens)
        self._newer = use_max_completion_tokens
        self._client = AsyncOpenAI(
            base_url=_with_prefix(self.base_url), api_key="not-needed" if api_key is None else api_key
        )

    async def complete(self, prompt: str, **kwargs: Any) -> str:
        """See `LLMClient.complete`."""
        message = await self._create([{"role": "user", "content": prompt}], kwargs)
        return message.content or ""

    async def complete_with_tools(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], **kwargs: Any
    ) -> LLMResponse:
        """See `LLMClient.complete_with_tools`."""
        offered = {"tools": _mcp_tools_to_openai(tools)} if tools else {}
        message = await self._create(messages, {**kwargs, **offered})
        calls = [
            ToolCall(id=call.id, name=call.function.name, args=self._arguments(call.function))
            for call in message.tool_calls or ()
        ]
        return LLMResponse(content=message.content or "", tool_calls=calls)

    async def _create(self, messages: Sequence[Mapping[str, Any]], given: Mapping[str, Any]) -> Any:
        if self.system_prompt and not any(message["role"] == "system" for message in messages):
            messages = [{"role": "system", "content": self.system_prompt}, *messages]
        settings = self._settings(given)
        if self._newer:
            settings["max_completion_tokens"] = settings.pop("max_tokens")
            settings.pop("temperature")
        answer = await self._client.chat.completions.create(model=self.model, messages=messages, **settings)
        if not answer.choices:
            raise LLMError(f"{self.model} gave no choice in its answer", url=self.base_url)
        return answer.choices[0].message

    def _arguments(self, function: Any) -> dict[str, Any]:
        try:
            arguments = json.loads(function.arguments or "{}")
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            raise LLMError(
                f"{self.model} called {function.name} with arguments that are no JSON object", url=self.base_url
            )
        return arguments


class AnthropicClient(_ModelClient):
    """A model behind Anthropic's messages.

    Args:
        endpoint: address of the service.
        port: its port, if the address holds none.
        model: name of the model.
        api_key: key of the service.
        system_prompt: used for each conversation that has no system message.
        temperature: sampling temperature.
        max_tokens: longest answer, in tokens.

    Raises:
        ValueError: the address is not usable.
    """

    def __init__(
        self,
        endpoint: str,
        port: int | None,
        model: str,
        api_key: str | None = None,
        system_prompt: str | None = None,
        temperature: float = 0.0,
        max_tokens: int = 256,
    ) -> None:
        super().__init__(endpoint, port, model, system_prompt, temperature, max_tokens)
        self._client = AsyncAnthropic(base_url=self.base_url, api_key="not-needed" if api_key is None else api_key)

    async def complete(self, prompt: str, **kwargs: Any) -> str:
        """See `LLMClient.complete`."""
        return (await self.complete_with_tools([{"role": "user", "content": prompt}], [], **kwargs)).content

    async def complete_with_tools(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], **kwargs: Any
    ) -> LLMResponse:
        """See `LLMClient.complete_with_tools`."""
        system, turns = _openai_msgs_to_anthropic(messages)
        settings = self._settings(kwargs)
        if system or self.system_prompt:
            settings["system"] = system or self.system_prompt
        if tools:
            settings["tools"] = _mcp_tools_to_anthropic(tools)
        answer = await self._client.messages.create(model=self.model, messages=turns, **settings)
        blocks = answer.content or ()
        return LLMResponse(
            content="".join(block.text for block in blocks if block.type == "text"),
            tool_calls=[
                ToolCall(id=block.id, name=block.name, args=dict(block.input))
                for block in blocks
                if block.type == "tool_use"
            ],
        )


_NEWER = ("gpt-5", "o1", "o3", "o4")
"""OpenAI models, by the beginning of their names, that want ``max_completion_tokens`` and no temperature."""


def create_llm_client(
    provider: str,
    model: str,
    api_key: str,
    *,
    system_prompt: str | None = None,
    temperature: float = 0.0,
    max_tokens: int = 4096,
) -> LLMClient:
    """Make a client of a hosted model.

    Args:
        provider: ``openai`` or ``anthropic``.
        model: name of the model.
        api_key: key of the service.
        system_prompt: used for each conversation that has no system message.
        temperature: sampling temperature.
        max_tokens: longest answer, in tokens.

    Raises:
        ValueError: another provider.
    """
    settings: dict[str, Any] = {"system_prompt": system_prompt, "temperature": temperature, "max_tokens": max_tokens}
    match provider.lower():
        case "openai":
            newer = model.startswith(_NEWER)
            return OpenAIClient(
                "https://api.openai.com", 443, model, api_key, use_max_completion_tokens=newer, **settings
            )
        case "anthropic":
            return AnthropicClient("https://api.anthropic.com", 443, model, api_key, **settings)
    raise ValueError(f"no provider {provider!r}; there are 'openai' and 'anthropic', and OpenAIClient for any address")


def _address(endpoint: str, port: int | None) -> str:
    """An address and a port in one; refuses what would end up in a log or be dropped on the way."""
    try:
        parts = urlsplit(endpoint)
        own = parts.port
    except ValueError as error:
        raise ValueError(f"Invalid endpoint URL: {error}") from None  # its text may hold credentials
    host = parts.netloc.rpartition("@")[2]
    shown = urlunsplit((parts.scheme, host, parts.path, "", ""))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"Invalid endpoint URL {shown!r}: it must begin with http:// or https:// and have a host")
    if "@" in parts.netloc:
        raise ValueError(f"endpoint {shown!r} has credentials in it; give them as api_key")
    if parts.query or parts.fragment:
        raise ValueError(f"endpoint {shown!r} has a query or fragment, which cannot be kept")
    if host.endswith(":"):
        raise ValueError(f"Invalid endpoint URL {shown!r}: it has an empty port")
    if own is not None and port is not None and own != port:
        raise ValueError(f"endpoint {shown!r} names port {own}, which conflicts with port={port}")
    chosen = port if own is None else own
    if chosen is not None and not 1 <= chosen <= 65535:
        raise ValueError(f"port {chosen} of endpoint {shown!r} is out of range")
    place = host if own is not None or port is None else f"{host}:{port}"
    return urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", ""))


def _with_prefix(base_url: str) -> str:
    parts = urlsplit(base_url)
    return base_url if parts.path.strip("/") else urlunsplit(parts._replace(path="/v1"))
