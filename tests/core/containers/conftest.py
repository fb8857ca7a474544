"""A fake container engine on PATH, and nothing else on it that runs containers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from openenv.core.containers.runtime import engine as engine_module
from support.fake_engine import FakeEngine
from support.live import TESTS


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    """The fake, as ``docker``; PATH holds it and a shell."""
    folder = tmp_path / "engine"
    folder.mkdir()
    for tool in ("sh", "sleep"):
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    fake = FakeEngine(folder)
    fake.install("docker")
    monkeypatch.setenv("PATH", str(folder))
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setattr(engine_module, "_PAUSES_S", (0.0, 0.0))
    yield fake
    fake.kill_all()
