"""Who gets the token, and where it is found."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from openenv.core.transport import credentials
from openenv.core.transport.address import Address
from openenv.core.transport.credentials import Credentials, found_token, is_hub_host

SPACE = Address.parse("https://org-name.hf.space")
ELSEWHERE = Address.parse("https://example.com")


@pytest.fixture(autouse=True)
def nobody_logged_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr(credentials, "find_spec", lambda name: None)


@pytest.mark.parametrize("host", ["org-name.hf.space", "ORG.HF.SPACE", "huggingface.co", "a.huggingface.co", "hf.co"])
def test_hosts_of_the_hub(host: str) -> None:
    assert is_hub_host(host)


@pytest.mark.parametrize("host", ["hf.space.example.com", "evilhf.space", "example.com", "localhost", "127.0.0.1", ""])
def test_other_hosts(host: str) -> None:
    assert not is_hub_host(host)


def test_a_found_token_is_for_the_hub_over_tls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", " hf_env \n")
    sought = Credentials()
    assert sought.headers(SPACE, {"X": "1"}) == {"X": "1", "Authorization": "Bearer hf_env"}
    assert sought.headers(ELSEWHERE, {}) == {}
    assert sought.headers(Address.parse("http://org-name.hf.space"), {}) == {}
    assert sought.headers(Address.parse("https://user:pass@org-name.hf.space"), {}) == {}
    assert sought.headers(SPACE, {"authorization": "Basic x"}) == {"authorization": "Basic x"}
    assert Credentials(False).headers(SPACE, {}) == {}


@pytest.mark.parametrize("address", [SPACE, ELSEWHERE, Address.parse("http://localhost:8000")])
def test_a_given_token_is_for_the_server_that_it_was_given_for(address: Address) -> None:
    assert Credentials("hf_x").headers(address, {"authorization": "Basic y"}) == {"Authorization": "Bearer hf_x"}


def test_the_file_of_the_hub_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found_token() is None
    (tmp_path / "token").write_text("hf_file\n")
    assert found_token() == "hf_file"
    (tmp_path / "other").write_text("hf_other")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "other"))
    assert found_token() == "hf_other"
    monkeypatch.setenv("HF_TOKEN", "hf_env")
    assert found_token() == "hf_env"
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    assert found_token() is None


def test_the_cache_folder_without_hf_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "huggingface").mkdir()
    (tmp_path / "huggingface" / "token").write_text("hf_xdg")
    assert found_token() == "hf_xdg"


def test_the_hub_library_is_asked_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    library = ModuleType("huggingface_hub")
    library.get_token = lambda: "hf_library"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", library)
    monkeypatch.setattr(credentials, "find_spec", lambda name: SimpleNamespace())
    assert found_token() == "hf_library"
    library.get_token = lambda: None  # type: ignore[attr-defined]
    assert found_token() is None


@pytest.mark.parametrize("token", ["", "a b", "a\r\nX: y", "é", True, 3])
def test_what_is_no_token_is_refused_and_not_shown(token: object) -> None:
    with pytest.raises(ValueError, match="token") as refused:
        Credentials(token)  # type: ignore[arg-type]
    assert "X: y" not in str(refused.value)
