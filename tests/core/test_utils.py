"""The small functions of `openenv.core.utils`."""

from __future__ import annotations

import asyncio
import threading

import pytest

from openenv.core.utils import convert_to_ws_url, hf_space_subdomain, run_async_safely


async def where() -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


async def fail() -> None:
    raise KeyError("x")


def test_a_coroutine_is_run_from_synchronous_code() -> None:
    assert run_async_safely(where()) == threading.current_thread().name
    with pytest.raises(KeyError):
        run_async_safely(fail())


async def test_a_coroutine_is_run_under_a_running_loop() -> None:
    assert run_async_safely(where()) == "openenv-run-async"
    with pytest.raises(KeyError):
        run_async_safely(fail())


@pytest.mark.parametrize(
    ("url", "ws"),
    [
        ("http://localhost:8000", "ws://localhost:8000"),
        ("https://a.hf.space/x/", "wss://a.hf.space/x"),
        ("ws://h", "ws://h"),
        ("wss://h/", "wss://h"),
        ("localhost:8000", "ws://localhost:8000"),
    ],
)
def test_addresses(url: str, ws: str) -> None:
    assert convert_to_ws_url(url) == ws


def test_names_of_spaces() -> None:
    assert hf_space_subdomain("OpenEnv/echo_env.v2") == "openenv-echo-env-v2"
