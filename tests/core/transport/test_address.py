"""From what a user writes to what is dialled."""

from __future__ import annotations

import traceback

import pytest

from openenv.core.transport.address import Address


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://localhost:8000", "ws://localhost:8000/ws"),
        ("https://org-name.hf.space", "wss://org-name.hf.space/ws"),
        ("ws://h:1", "ws://h:1/ws"),
        ("wss://h:1", "wss://h:1/ws"),
        ("HTTP://Host:1", "ws://Host:1/ws"),
        ("HTTPS://h", "wss://h/ws"),
        ("h:8000", "ws://h:8000/ws"),
        ("localhost", "ws://localhost/ws"),
        ("http://h:1/", "ws://h:1/ws"),
        ("http://h:1/prefix", "ws://h:1/prefix/ws"),
        ("http://h:1/prefix//", "ws://h:1/prefix/ws"),
        ("http://h:1/ws", "ws://h:1/ws"),
        ("http://h:1/ws/", "ws://h:1/ws"),
        ("http://h:1/prefix/ws", "ws://h:1/prefix/ws"),
        ("http://h:1/my-ws", "ws://h:1/my-ws/ws"),
        ("http://h:1/news", "ws://h:1/news/ws"),
        ("http://h:1?token=a&b=c", "ws://h:1/ws?token=a&b=c"),
        ("http://h:1/p/?q=1#fragment", "ws://h:1/p/ws?q=1"),
        ("http://[::1]:8000", "ws://[::1]:8000/ws"),
        ("[::1]:8000", "ws://[::1]:8000/ws"),
        ("  http://h:1  ", "ws://h:1/ws"),
        ("http://user:secret@h:1", "ws://user:secret@h:1/ws"),
    ],
)
def test_an_address_is_read(given: str, url: str) -> None:
    assert Address.parse(given).url == url


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("ftp://h", "http, https, ws or wss"),
        ("http://", "names no host"),
        ("http://:8000", "names no host"),
        ("http://h:port", "is not a URL"),
        ("http://h:99999", "is not a URL"),
        ("http://[::1", "is not a URL"),
        ("file:///tmp/x", "http, https, ws or wss"),
    ],
)
def test_a_bad_address_says_what_is_wrong(given: str, part: str) -> None:
    with pytest.raises(ValueError, match=part) as caught:
        Address.parse(given)
    assert "server address" in str(caught.value)


@pytest.mark.parametrize("given", [5, b"http://h:1", ("h", 1)])
def test_an_address_that_is_no_text_is_a_type_error(given: object) -> None:
    with pytest.raises(TypeError, match="server address must be a text") as caught:
        Address.parse(given)  # type: ignore[arg-type]
    assert type(given).__name__ in str(caught.value)


def test_the_shown_address_has_no_secrets() -> None:
    address = Address.parse("https://user:secret@h:1/p?token=abc")
    assert address.shown == "wss://h:1/p/ws"
    assert "secret" not in address.shown


@pytest.mark.parametrize(
    "given",
    [
        *("http://u:hf_SECRET@[half", "http://u:hf_SECRET@h:99999", "ftp://u:hf_SECRET@h", "u:hf_SECRET@h:99999"),
        *("http://u:hf_SECRET@", "http://[half/?token=hf_SECRET", "http://u:hf_SECRET@h\u2100"),
    ],
)
def test_a_bad_address_is_shown_without_its_secrets(given: str) -> None:
    with pytest.raises(ValueError, match="The server address") as caught:
        Address.parse(given)
    assert "SECRET" not in "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("given", "loopback"),
    [
        ("localhost:1", True),
        ("LOCALHOST:1", True),
        ("a.localhost:1", True),
        ("127.0.0.1:1", True),
        ("127.8.9.1:1", True),
        ("[::1]:1", True),
        ("10.0.0.1:1", False),
        ("example.org", False),
        ("localhost.example.org", False),
    ],
)
def test_loopback_is_known(given: str, loopback: bool) -> None:
    assert Address.parse(given).loopback is loopback
