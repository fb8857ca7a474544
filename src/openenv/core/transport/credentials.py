"""Which secret goes to which server: the token of a Space, where it is found and who gets it.

A token that was found is for the Hub's own hosts, and only over TLS. A token that was given is for the server that it
was given for. Neither follows a redirect to another host: that is for whoever sends requests, who knows the redirect.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from openenv.core.transport.address import Address

__all__ = ["Credentials", "found_token", "is_hub_host"]

_HUB = ("hf.space", "huggingface.co", "hf.co")
_YES = {"1", "on", "true", "yes"}


class Credentials:
    """The token of one client. Shows itself nowhere: not in a repr, and not in an error.

    Args:
        token: the token; False for none; None to look for one when a Hub host is asked.

    Raises:
        ValueError: it is none that a header can carry.
    """

    __slots__ = ("_given",)

    def __init__(self, token: str | bool | None = None) -> None:
        if token is True or not isinstance(token, str | bool | None):
            raise ValueError("token must be the token's text, None to look for one, or False for none.")
        self._given = _checked(token, "token") if isinstance(token, str) else token

    def headers(self, address: Address, others: Mapping[str, str]) -> dict[str, str]:
        """The headers of a request: ``others``, and the token if it is for this server.

        An ``Authorization`` header among the others stands in place of a token that would be looked for.

        Args:
            address: the server that the client is for.
            others: headers that the caller gave.
        """
        mine = dict(others)
        taken = any(name.lower() == "authorization" for name in mine)
        parts = urlsplit(address.url)
        if isinstance(self._given, str):
            mine = {name: value for name, value in mine.items() if name.lower() != "authorization"}
            mine["Authorization"] = f"Bearer {self._given}"
        elif self._given is None and not taken and not parts.username and parts.scheme == "wss":
            token = found_token() if is_hub_host(parts.hostname or "") else None
            if token is not None:
                mine["Authorization"] = f"Bearer {token}"
        return mine

    def __repr__(self) -> str:
        return "<Credentials>"


def is_hub_host(host: str) -> bool:
    """Whether a host name is one of the Hugging Face Hub's, or of a Space there."""
    name = host.lower().rstrip(".")
    return any(name == hub or name.endswith(f".{hub}") for hub in _HUB)


def found_token() -> str | None:
    """The user's Hub token: from ``HF_TOKEN``, else from the Hub library or, where it is not installed, its file.

    ``HF_HUB_DISABLE_IMPLICIT_TOKEN`` in the environment switches the search off.

    Raises:
        ValueError: what was found is no token.
    """
    if os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").lower() in _YES:
        return None
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        token = os.environ.get(name, "").strip()
        if token:
            return _checked(token, name)
    token = _from_library() if find_spec("huggingface_hub") is not None else _from_file()
    return _checked(token, "the Hub's stored token") if token else None


def _from_library() -> str:
    from huggingface_hub import get_token  # type: ignore[import-not-found,unused-ignore]

    return str(get_token() or "").strip()


def _from_file() -> str:
    path = os.environ.get("HF_TOKEN_PATH")
    if not path:
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        path = os.path.join(os.environ.get("HF_HOME") or os.path.join(cache, "huggingface"), "token")
    try:
        return Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError, RuntimeError):
        return ""  # nobody has logged in


def _checked(token: str, source: str) -> str:
    text = token.strip()
    if not text or not all("!" <= character <= "~" for character in text):
        raise ValueError(f"{source} is not a token: it must be printable ASCII without blanks. (It is not shown here.)")
    return text
