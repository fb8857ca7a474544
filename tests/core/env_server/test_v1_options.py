"""What a server offers of ``openenv.v1``, as its environment variables and its starter say."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from openenv.core.env_server.v1_options import V1Options, worker_count
from openenv.core.session.features import Feature
from support.live import serve_process
from support.v1 import Raw


def test_defaults() -> None:
    options = V1Options.from_environ({})
    assert options == V1Options()
    assert options.features == set(Feature)
    assert (options.grace_s, options.first_frame_s, options.max_message_bytes) == (600.0, 10.0, 16 * 1024 * 1024)


def test_variables() -> None:
    options = V1Options.from_environ(
        {
            "OPENENV_FEATURES": "seq, resume",
            "OPENENV_LEASE_GRACE_S": "1.5",
            "OPENENV_EVICT_AFTER_S": "0",
            "OPENENV_MAX_MESSAGE_BYTES": "1000",
            "OPENENV_MAX_REPLY_BYTES": "2000",
        }
    )
    assert options.features == {Feature.SEQ, Feature.RESUME}
    assert (options.grace_s, options.evict_after_s) == (1.5, 0.0)
    assert (options.max_message_bytes, options.max_reply_bytes) == (1000, 2000)


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_a_variable_that_makes_no_sense_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="OPENENV_LEASE_GRACE_S"):
        V1Options.from_environ({"OPENENV_LEASE_GRACE_S": text})


@pytest.mark.parametrize(
    ("environ", "argv", "workers", "count"),
    [
        ({}, ["python"], None, 1),
        ({}, ["/usr/bin/uvicorn", "app:app"], 1, 1),
        ({}, ["/usr/bin/uvicorn", "app:app", "--workers", "4"], None, 4),
        ({}, ["/x/uvicorn/__main__.py", "--workers=3", "app:app"], None, 3),
        ({}, ["gunicorn", "-w", "2", "app:app"], None, 2),
        ({}, ["gunicorn", "-w2", "app:app"], None, 2),
        ({}, ["train.py", "--workers", "8"], None, 1),
        ({}, ["serve.py"], 5, 5),
        ({"WEB_CONCURRENCY": "2"}, ["python"], None, 2),
        ({"WEB_CONCURRENCY": "many"}, ["python"], None, 1),
        ({"OPENENV_WORKERS": "1", "WEB_CONCURRENCY": "4"}, ["gunicorn", "-w2"], 3, 1),
        ({"OPENENV_WORKERS": "2"}, ["python"], None, 2),
    ],
)
def test_workers(environ: dict[str, str], argv: list[str], workers: int | None, count: int) -> None:
    process = SimpleNamespace(_kwargs={"config": SimpleNamespace(workers=workers)} if workers else {})
    assert worker_count(environ, argv, process) == count


def test_several_workers_do_not_offer_resume() -> None:
    assert V1Options.from_environ({"OPENENV_WORKERS": "2"}).features == set(Feature) - {Feature.RESUME}


@pytest.mark.parametrize(("args", "resume"), [((), True), (("--workers", "2"), False)])
def test_workers_of_a_real_server_know_that_they_are_several(
    tmp_path: Path, args: tuple[str, ...], resume: bool
) -> None:
    with serve_process("support.count_app:app", args=args) as (live, process):
        with Raw(live.ws) as raw:
            assert ("resume" in raw.welcome["data"]["features"]) is resume
        process.terminate()
        process.communicate(timeout=30)
