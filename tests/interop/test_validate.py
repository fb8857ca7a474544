"""``openenv validate`` looks at the real upstream's server as it does at ours."""

from __future__ import annotations

import pytest

from interop.sides import OURS, UPSTREAM, Side, mirror_server
from openenv.validation import Verdict, validate_server


@pytest.mark.parametrize("side", [OURS, UPSTREAM], ids=str)
def test_an_environment_on_either_server_is_found_the_same(
    side: Side, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with mirror_server(side, tmp_path_factory.mktemp("validate"), "letters_env.server.app:app") as server:
        report = validate_server(server.url)
    found = {one.rule: one.verdict for one in report.findings}
    passed = ("starts", "reset", "step", "schema", "seed", "leftover", "done", "sessions")
    assert {rule: found[rule] for rule in passed} == dict.fromkeys(passed, Verdict.PASS), report.findings
    assert report.exit_code(strict=True) == 0
