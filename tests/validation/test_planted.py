"""A fault of each kind is planted in a good environment, and found, as that kind and no other. None of them hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from openenv.validation import Options, Verdict, validate_package
from support.dice import GOOD, broken, package, with_fault


def test_a_good_environment_is_clean(tmp_path: Path) -> None:
    report = validate_package(package(tmp_path))
    assert {one.rule for one in report.findings if one.verdict is Verdict.SKIP} == {"tools"}
    assert broken(report) == {}
    assert report.exit_code(strict=True) == 0


RAISE_SECOND = """
if shared["db"] is None:
    shared["db"] = sqlite3.connect(":memory:")
self.db = shared["db"]
"""

FAULTS: dict[str, tuple[str, list[tuple[str, str]], str]] = {
    # name: the rule, the changes, words of the finding
    "seed ignored": ("seed", [("random.Random(seed)", "random.Random()")], "observation.face"),
    "drawn in the constructor": (
        "seed",
        [("random.Random(1)", "random.Random()"), ("self.draw = random.Random(seed)", "pass")],
        "observation.face",
    ),
    "a clock in the observation": (
        "seed",
        [("Die()", "Die(metadata={'at': time.time_ns()})")],
        "metadata",
    ),
    "a word that stays for an episode": (
        "seed",
        [
            ("# reset", "self.word = ''.join(random.choices('abcdefghijkl', k=9))"),
            ("Die(face=face,", "Die(face=face, metadata={'word': self.word},"),
            ("return Die()", "return Die(metadata={'word': self.word})"),
        ],
        "metadata.word",
    ),
    "a reset that takes no seed": (
        "seed",
        [
            ("def reset(self, seed=None, episode_id=None, **kwargs)", "def reset(self)"),
            ("self.draw = random.Random(seed)", "self.draw = random.Random(3)"),
        ],
        "does not take seed",
    ),
    "the order of a set": (
        "seed",
        [
            (
                "return Die()",
                "return Die(metadata={'order': list(set('abcdefghijkl'))})",
            )
        ],
        "metadata.order",
    ),
    "a counter that is never reset": (
        "leftover",
        [("self.wins = self.rolls = 0\n        # reset", "self.rolls = 0")],
        "observation.wins",
    ),
    "a state that is never reset": (
        "leftover",
        [
            ("# step", "self.total = self.__dict__.get('total', 0) + 1"),
            ("wins=self.wins)\n", "wins=self.__dict__.get('total', 0))\n\n"),
        ],
        "state.wins",
    ),
    "the first reset only": (
        "leftover",
        [("# reset", "self.resets = self.__dict__.get('resets', 0) + 1\nassert self.resets < 2, 'again'")],
        "again",
    ),
    "state in the module": (
        "sessions",
        [("# step", "shared['rolls'] += 1; face = shared['rolls'] % 6")],
        "class or the module",
    ),
    "the module's random numbers": (
        "sessions",
        [("self.draw = random.Random(seed)", "random.seed(seed)"), ("self.draw.randint(1, 6)", "random.randint(1, 6)")],
        "another session changes what this one sees",
    ),
    "one session at a time": (
        "sessions",
        [("max_concurrent_envs=4", "max_concurrent_envs=1")],
        "max_concurrent_envs=N",
    ),
    "no flag": (
        "sessions",
        [
            ("max_concurrent_envs=4", "max_concurrent_envs=1"),
            ("CONCURRENT_SESSIONS = True", "CONCURRENT_SESSIONS = False"),
        ],
        "SUPPORTS_CONCURRENT_SESSIONS = True",
    ),
    "bound to a thread": (
        "thread",
        [("# constructor", RAISE_SECOND), ("# step", "self.db.execute('select 1')")],
        "REQUIRES_SINGLE_THREAD_EXECUTOR = True",
    ),
    "only on the main thread": (
        "thread",
        [("# constructor", "signal.signal(signal.SIGALRM, lambda *_: None)")],
        "works on the main thread",
    ),
    "an event loop that is held up": (
        "thread",
        [
            (
                "@property",
                """
         async def step_async(self, action, timeout_s=None, **kwargs):
             if self.rolls == 3:
                 time.sleep(1.2)
             return self.step(action)

         @property
         """,
            )
        ],
        "blocked the event loop",
    ),
    "never done": ("done", [("self.rolls >= 10", "False")], "no done in 1000 steps"),
    "another class than it says": ("schema", [("Die(face=face", "Other(face=face")], "extra is not in the schema"),
    "a value of another type": (
        "schema",
        [("return Die()", "return Die.model_construct(face='six', reward=None, done=False)")],
        "face is str 'six'",
    ),
    "a constructor that raises": ("reset", [("# constructor", "raise LookupError('no dice')")], "LookupError: no dice"),
    "a reset that raises": ("reset", [("# reset", "raise LookupError('no dice')")], "LookupError: no dice"),
    "a step that raises": (
        "step",
        [("# step", "if self.rolls == 3: raise LookupError('no dice')")],
        "step 3: LookupError",
    ),
    "a process that ends": ("step", [("# step", "if self.rolls == 3: os._exit(3)")], "lost"),
    "a state that raises": ("reset", [("return Table(", "raise LookupError('no table')\nreturn Table(")], "no table"),
    "only refusals": ("step", [("# step", "raise InvalidActionError('not today')")], "not today"),
    "closed by itself": ("close", [("# step", "if self.rolls == 10: self.close()")], "times for one environment"),
    "a close that raises": ("close", [("pass\n", "raise LookupError('no lid')\n\n")], "LookupError: no lid"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_as_what_it_is(fault: str, tmp_path: Path) -> None:
    rule, changes, words = FAULTS[fault]
    report = validate_package(package(tmp_path, with_fault(*changes)))
    found = broken(report)
    if fault == "only refusals":
        del found["done"]  # that, too
    assert set(found) == {rule}, [one for one in report.findings if one.rule in found]
    told = [one for one in report.of(rule) if one.verdict in (Verdict.FAIL, Verdict.WARN)]
    assert any(words in one.text + one.move for one in told), told
    assert all(one.move for one in told)


HANGS = {
    "reset": ("reset", "# reset"),
    "step": ("step", "# step"),
    "constructor": ("reset", "# constructor"),
    "close": ("close", "    def close(self):\n        pass"),
}


@pytest.mark.parametrize("where", HANGS)
def test_what_never_returns_is_found_and_hangs_nothing(where: str, tmp_path: Path) -> None:
    rule, place = HANGS[where]
    fault = "    def close(self):\n        threading.Event().wait()" if where == "close" else "threading.Event().wait()"
    code = GOOD.replace(place, fault)
    report = validate_package(package(tmp_path, code), Options(timeout_s=5))
    assert broken(report) == {rule: Verdict.FAIL}
    assert "5 s" in report.of(rule)[0].text
    assert {one.rule for one in report.findings} >= {"seed", "leftover", "sessions"}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import threading\nthreading.Event().wait()\n", "its import does not end"),
        ("import no_dice\n", "No module named 'no_dice'"),
        ("raise LookupError('no dice')\n", "cannot be imported: LookupError: no dice"),
        ("import os\nos._exit(3)\n", "ended with code 3"),
        ("x = 1\n", "has no app"),
        ("async def app(scope, receive, send):\n    pass\n", "does not answer as an environment server"),
        ("from fastapi import FastAPI\napp = FastAPI()\n@app.get('/health')\ndef health(): return {}\n", "/schema"),
    ],
)
def test_an_application_that_does_not_start_is_told(code: str, words: str, tmp_path: Path) -> None:
    wait = 4.0 if "wait()" in code else 60.0
    report = validate_package(package(tmp_path, code), Options(start_s=wait))
    assert broken(report) == {"starts": Verdict.FAIL}
    assert words in report.of("starts")[0].text
    assert ("pip install -e" in report.of("starts")[0].move) is ("no_dice" in code)


def test_nothing_runs_past_the_time_for_the_whole(tmp_path: Path) -> None:
    slow = with_fault(("# step", "time.sleep(0.05)"), ("self.rolls >= 10", "False"))
    report = validate_package(package(tmp_path, slow), Options(max_time_s=2, steps=10**6))
    assert "no done in" in report.of("done")[0].text
    assert report.exit_code() == 0


# ---------------------------------------------------------------- tools

TOOLS = """
from typing import Any
from fastmcp import FastMCP
from openenv.core.env_server import MCPEnvironment, Observation, State, create_app
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation

class Shop(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        self.sold = 0
        tools = FastMCP("shop")

        # tool

        super().__init__(tools)

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.sold = 0
        return Observation()

    def _step_impl(self, action, timeout_s=None, **kwargs):
        return Observation()

    @property
    def state(self):
        return State(step_count=self.sold)

app = create_app(Shop, CallToolAction, CallToolObservation, max_concurrent_envs=4)
"""

DESCRIBED = '"""Sell.\\n\\nArgs:\\n    many: how many.\\n"""'


@pytest.mark.parametrize(
    ("tool", "verdict", "words"),
    [
        (
            f"@tools.tool\ndef sell(many: int) -> int:\n    {DESCRIBED}\n    self.sold += many\n    return self.sold",
            None,
            "",
        ),
        (
            "@tools.tool\ndef sell(many: int) -> int:\n    self.sold += many\n    return self.sold",
            "fail",
            "sell has no description",
        ),
        ('@tools.tool\ndef sell(many: int) -> int:\n    """Sell."""\n    return many', "warn", "takes as many"),
        ("pass", "fail", "there is no tool"),
    ],
)
def test_tools_that_say_too_little_are_found(tool: str, verdict: str | None, words: str, tmp_path: Path) -> None:
    code = TOOLS.replace("# tool", tool.replace("\n", "\n        "))
    report = validate_package(package(tmp_path, code))
    assert broken(report) == ({} if verdict is None else {"tools": Verdict(verdict)})
    assert words in report.of("tools")[0].text
    assert report.of("tools")[0].move or verdict is None
