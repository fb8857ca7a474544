"""Clients of language models against a real HTTP server, and the two dialects they speak."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from openenv.core import llm_http
from openenv.core.exceptions import LLMError
from openenv.core.llm_client import (
    AnthropicClient,
    LLMClient,
    LLMResponse,
    OpenAIClient,
    ToolCall,
    _clean_mcp_schema,
    _mcp_tools_to_anthropic,
    _mcp_tools_to_openai,
    _openai_msgs_to_anthropic,
    create_llm_client,
)
from openenv.testing.processes import free_port
from support.llm_service import LLMService, llm_service

KEY = "sk-very-secret-42"
WEATHER = {"name": "weather", "description": "Tell it.", "inputSchema": {"properties": {"city": {"type": "string"}}}}


@pytest.fixture
def service() -> Iterator[LLMService]:
    with llm_service() as service:
        yield service


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm_http, "LONGEST_PAUSE_S", 0.01)


# -------------------------------------------------------------------- OpenAI's dialect


async def test_a_prompt_is_one_user_message(service: LLMService) -> None:
    service.answers.append(service.says("4"))
    client = OpenAIClient(service.url, None, "m", api_key=KEY)
    assert await client.complete("2+2?") == "4"
    (asked,) = service.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.body == {
        "model": "m",
        "messages": [{"role": "user", "content": "2+2?"}],
        "temperature": 0.0,
        "max_tokens": 256,
    }


async def test_settings_of_the_client_and_of_one_request(service: LLMService) -> None:
    service.answers += [service.says("a"), service.says(None)]
    client = OpenAIClient(service.url + "/api/", None, "m", system_prompt="S", temperature=0.5, max_tokens=9)
    await client.complete("p")
    assert await client.complete("p", temperature=0.9, stop=["x"]) == ""
    first, second = service.asked
    assert first.path == "/api/chat/completions"  # an address with a path is taken as it is
    assert first.body["messages"][0] == {"role": "system", "content": "S"}
    assert (first.body["temperature"], first.body["max_tokens"]) == (0.5, 9)
    assert (second.body["temperature"], second.body["max_tokens"], second.body["stop"]) == (0.9, 9, ["x"])


async def test_tools_are_offered_and_their_calls_read(service: LLMService) -> None:
    service.answers.append(service.says(None, ("c1", "weather", '{"city": "SF"}'), ("c2", "weather", "")))
    history = [{"role": "user", "content": "weather?"}]
    answer = await OpenAIClient(service.url, None, "m", system_prompt="S").complete_with_tools(history, [WEATHER])
    assert answer == LLMResponse("", [ToolCall("c1", "weather", {"city": "SF"}), ToolCall("c2", "weather", {})])
    body = service.asked[0].body
    assert body["tools"] == _mcp_tools_to_openai([WEATHER])
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    service.answers.append(service.says("sunny"))
    history = [{"role": "system", "content": "own"}, *history, answer.to_message_dict()]
    assert (await OpenAIClient(service.url, None, "m", system_prompt="S").complete_with_tools(history, [])).content
    assert "tools" not in service.asked[1].body
    assert service.asked[1].body["messages"] == history


async def test_newer_models_are_asked_in_their_way(service: LLMService) -> None:
    service.answers.append(service.says("x"))
    client = OpenAIClient(service.url, None, "o3", max_tokens=7, use_max_completion_tokens=True)
    await client.complete("p")
    assert service.asked[0].body == {
        "model": "o3",
        "messages": [{"role": "user", "content": "p"}],
        "max_completion_tokens": 7,
    }


@pytest.mark.parametrize("arguments", ["{", "[1]", '"x"'])
async def test_arguments_that_are_no_object_are_an_error(service: LLMService, arguments: str) -> None:
    service.answers.append(service.says(None, ("c", "weather", arguments)))
    with pytest.raises(LLMError, match="weather"):
        await OpenAIClient(service.url, None, "m").complete_with_tools([{"role": "user", "content": "p"}], [WEATHER])


# ----------------------------------------------------------------- Anthropic's dialect


async def test_anthropic(service: LLMService) -> None:
    service.answers += [
        service.blocks({"type": "text", "text": "Hm. "}, {"type": "text", "text": "4"}),
        service.blocks(
            {"type": "text", "text": "Let me see"},
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "SF"}},
        ),
    ]
    client = AnthropicClient(service.url, None, "claude", api_key=KEY, system_prompt="S", max_tokens=9)
    assert await client.complete("2+2?") == "Hm. 4"
    answer = await client.complete_with_tools(
        [{"role": "system", "content": "own"}, {"role": "user", "content": "weather?"}], [WEATHER], temperature=0.5
    )
    assert answer == LLMResponse("Let me see", [ToolCall("t1", "weather", {"city": "SF"})])
    first, second = service.asked
    assert first.path == second.path == "/v1/messages"
    assert (first.headers["x-api-key"], first.headers["anthropic-version"]) == (KEY, "2023-06-01")
    assert first.body == {
        "model": "claude",
        "messages": [{"role": "user", "content": "2+2?"}],
        "system": "S",
        "temperature": 0.0,
        "max_tokens": 9,
    }
    assert (second.body["system"], second.body["temperature"]) == ("own", 0.5)
    assert second.body["tools"] == _mcp_tools_to_anthropic([WEATHER])


# -------------------------------------------------------------------------- failures


async def test_a_busy_service_is_asked_again(service: LLMService) -> None:
    service.answers += [
        service.fails(429, "slow down", **{"retry-after": "0"}),
        service.fails(503, "later"),
        service.says("ok"),
    ]
    assert await OpenAIClient(service.url, None, "m").complete("p") == "ok"
    assert len(service.asked) == 3


async def test_a_service_that_stays_busy_is_given_up(service: LLMService) -> None:
    service.answers += [service.fails(500, "oops")] * 5
    with pytest.raises(LLMError, match="500: oops") as caught:
        await OpenAIClient(service.url, None, "m").complete("p")
    assert caught.value.status == 500
    assert len(service.asked) == llm_http.ATTEMPTS


async def test_a_refusal_is_told_without_the_key(service: LLMService) -> None:
    service.answers.append(service.fails(401, f"Incorrect API key: {KEY}"))
    with pytest.raises(LLMError, match=r"401: Incorrect API key: \*\*\*.*Check the API key") as caught:
        await OpenAIClient(service.url, None, "m", api_key=KEY).complete("p")
    assert len(service.asked) == 1
    assert KEY not in "".join(traceback.format_exception(caught.value))


async def test_an_answer_that_makes_no_sense(service: LLMService) -> None:
    from fastapi import Response

    service.answers += [Response("<html>"), service.fails(200, "no choices here")]
    client = OpenAIClient(service.url, None, "m")
    with pytest.raises(LLMError, match="JSON"):
        await client.complete("p")
    with pytest.raises(LLMError, match="no choice"):
        await client.complete("p")


async def test_nobody_there() -> None:
    port = free_port()
    with pytest.raises(LLMError, match="could not be asked") as caught:
        await OpenAIClient("http://127.0.0.1", port, "m").complete("p")
    assert caught.value.status is None
    assert caught.value.url == f"http://127.0.0.1:{port}/v1/chat/completions"


def test_a_client_works_on_one_loop_after_another(service: LLMService) -> None:
    client = OpenAIClient(service.url, None, "m")
    for _ in range(2):
        service.answers.append(service.says("x"))
        assert asyncio.run(client.complete("p")) == "x"
    gc.collect()  # a connection left open would warn, which is an error here


@pytest.mark.parametrize("kind", [OpenAIClient, AnthropicClient])
async def test_the_key_is_in_no_repr_and_no_log(
    service: LLMService, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = kind(service.url, None, "m", api_key=KEY)
    service.answers += [service.fails(429, "again", **{"retry-after": "0"}), service.fails(400, f"not {KEY}")]
    with caplog.at_level(logging.DEBUG), pytest.raises(LLMError) as caught:
        await client.complete("p")
    shown = [repr(client), repr(vars(client)), str(caught.value), repr(caught.value), repr(vars(caught.value))]
    shown += [record.getMessage() for record in caplog.records] + [repr(vars(client._client))]
    assert len(caplog.records) > 2  # httpx has told of its requests
    assert not [text for text in shown if KEY in text]
    assert repr(client) == f"<{kind.__name__} m at {service.url}>"


# --------------------------------------------------------------------------- addresses


class Stub(LLMClient):
    async def complete(self, prompt: str, **kwargs: Any) -> str:
        return "stub"


@pytest.mark.parametrize(
    ("endpoint", "port", "url"),
    [
        ("http://localhost", 8000, "http://localhost:8000"),
        ("https://api.example.com", 443, "https://api.example.com:443"),
        ("http://localhost:8000/v1/", None, "http://localhost:8000/v1"),
        ("http://localhost:8000", 8000, "http://localhost:8000"),
        ("http://[::1]", 9, "http://[::1]:9"),
        ("https://host/a", 9, "https://host:9/a"),
    ],
)
def test_addresses(endpoint: str, port: int | None, url: str) -> None:
    assert Stub(endpoint, port).base_url == url


@pytest.mark.parametrize(
    ("endpoint", "port", "why"),
    [
        ("localhost:8000", None, "http://"),
        ("ftp://host", None, "http://"),
        ("http://", None, "host"),
        ("http://me:hunter2@host", None, "api_key"),
        ("http://host?key=1", None, "query"),
        ("http://host#x", None, "fragment"),
        ("http://host:", None, "empty port"),
        ("http://host:8000", 9000, "8000.*9000"),
        ("http://host", 0, "out of range"),
        ("http://host", 70000, "out of range"),
        ("http://host:70000", None, "URL"),
    ],
)
def test_addresses_that_are_refused(endpoint: str, port: int | None, why: str) -> None:
    client = Stub(endpoint, port)
    with pytest.raises(ValueError, match=why) as caught:
        client.base_url
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ValueError, match=why):
        OpenAIClient(endpoint, port, "m")


async def test_what_a_client_of_ones_own_needs() -> None:
    with pytest.raises(TypeError, match="abstract"):
        LLMClient("http://h", 1)  # type: ignore[abstract]
    with pytest.raises(NotImplementedError, match="Stub"):
        await Stub("http://h", 1).complete_with_tools([], [])


def test_hosted_models() -> None:
    client = create_llm_client("OpenAI", "gpt-4", KEY, temperature=0.5, max_tokens=7, system_prompt="S")
    assert isinstance(client, OpenAIClient)
    assert (client.base_url, client.model, client.temperature) == ("https://api.openai.com:443", "gpt-4", 0.5)
    assert (client.max_tokens, client.system_prompt) == (7, "S")
    claude = create_llm_client("anthropic", "claude", KEY)
    assert isinstance(claude, AnthropicClient)
    assert (claude.base_url, claude.max_tokens) == ("https://api.anthropic.com:443", 4096)
    assert create_llm_client("openai", "o3-mini", KEY)._newer  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="google"):
        create_llm_client("google", "gemini", KEY)


# ------------------------------------------------------------------------- conversions


@pytest.mark.parametrize(
    ("schema", "clean"),
    [
        ("no schema", {"type": "object", "properties": {}, "required": []}),
        ({}, {"type": "object", "properties": {}}),
        ({"type": "string"}, {"type": "string"}),
        ({"properties": {"a": {}}}, {"type": "object", "properties": {"a": {}}}),
        ({"oneOf": [{"type": "null"}, {"type": "object", "x": 1}]}, {"type": "object", "x": 1, "properties": {}}),
        ({"anyOf": ["y", {"type": "object"}]}, {"type": "object", "properties": {}}),
        ({"anyOf": [{"type": "null"}]}, {"type": "object", "properties": {}, "required": []}),
        ({"oneOf": []}, {"type": "object", "properties": {}, "required": []}),
        (
            {"allOf": [{"properties": {"a": 1}, "required": ["a"]}, {"properties": {"b": 2}}, 3]},
            {"type": "object", "properties": {"a": 1, "b": 2}, "required": ["a"]},
        ),
    ],
)
def test_schemas_are_cleaned_and_left_as_they_were(schema: Any, clean: dict[str, Any]) -> None:
    before = json.dumps(schema)
    assert _clean_mcp_schema(schema) == clean
    assert json.dumps(schema) == before


def test_tools_in_both_dialects() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    bare = {"name": "bare"}
    none = {"type": "object", "properties": {}, "required": []}
    assert _mcp_tools_to_openai([WEATHER, bare]) == [
        {"type": "function", "function": {"name": "weather", "description": "Tell it.", "parameters": schema}},
        {"type": "function", "function": {"name": "bare", "description": "", "parameters": none}},
    ]
    assert _mcp_tools_to_anthropic([WEATHER, bare]) == [
        {"name": "weather", "description": "Tell it.", "input_schema": schema},
        {"name": "bare", "description": "", "input_schema": none},
    ]


def test_a_conversation_in_anthropics_form() -> None:
    calls = LLMResponse("Let me see", [ToolCall("c1", "f", {"x": 1}), ToolCall("c2", "g", {})]).to_message_dict()
    system, turns = _openai_msgs_to_anthropic(
        [
            {"role": "system", "content": "One."},
            {"role": "system", "content": "Two."},
            {"role": "user", "content": "hi"},
            calls,
            {"role": "tool", "tool_call_id": "c1", "content": "1"},
            {"role": "tool", "tool_call_id": "c2", "content": "2"},
            {"role": "assistant", "content": None},
        ]
    )
    assert system == "One.\n\nTwo."
    assert turns == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me see"},
                {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1}},
                {"type": "tool_use", "id": "c2", "name": "g", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "1"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "2"},
            ],
        },
        {"role": "assistant", "content": ""},
    ]
    assert LLMResponse("x").to_message_dict() == {"role": "assistant", "content": "x"}
