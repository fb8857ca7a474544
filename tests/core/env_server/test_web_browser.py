"""The web page in a real browser: played to the end, cut, resumed, lost, and never without a session of its own.

Needs Chromium. Without it these tests are skipped, unless ``OPENENV_BROWSER_REQUIRED`` is set: then they fail.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from fastapi import FastAPI
from playwright.sync_api import Browser, Page, expect, sync_playwright
from pydantic import Field

from openenv.core import GenericEnvClient
from openenv.core.env_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State
from openenv.core.env_server.v1_options import V1Options
from openenv.core.env_server.visitors import WebOptions
from openenv.core.session.features import Feature
from openenv.testing import FaultProxy, SpaceStub
from sudoku_env import SudokuAction, SudokuObservation
from sudoku_env.engine import make_puzzle
from sudoku_env.server.sudoku_environment import SudokuEnvironment
from support.browser import find_browser
from support.envs import CountAction, CountEnv, CountObservation, CountState, read_log
from support.live import LiveServer, serve
from support.tool_envs import fresh_tools

WAIT_MS = 60_000
"""Longest wait for the page to show what it must: ends by the event, not by the clock."""

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = find_browser()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    """Open the page as a visitor of one's own. What a page complains of, to anybody, fails the test."""
    complaints: list[str] = []
    contexts = []

    def open_page(url: str, path: str = "/web", **settings: Any) -> Page:
        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        page.goto(f"{url}{path}")
        page.locator("body[data-ready]").wait_for()
        return page

    expect.set_options(timeout=WAIT_MS)
    yield open_page
    for context in contexts:
        context.close()
    # a socket that a test has cut is told of by the browser itself
    assert [one for one in complaints if "WebSocket connection to" not in one] == []


def served(env: Any = CountEnv, action: Any = CountAction, observation: Any = CountObservation, **more: Any) -> Any:
    more = {"web": WebOptions(), "max_concurrent_envs": 1, **more}
    return serve(create_app(env, action, observation, **more))


def phase(page: Page, name: str) -> None:
    expect(page.locator("body")).to_have_attribute("data-phase", name)


def badge(page: Page, state: str) -> None:
    expect(page.locator("#badge")).to_have_attribute("data-state", state)


def begin(page: Page) -> None:
    page.locator("#reset").click()
    expect(page.locator("#reset")).to_be_enabled()  # it is not while the call runs
    phase(page, "playing")


# ---------------------------------------------------------------- Sudoku


@pytest.fixture
def sudoku_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SUDOKU_EVENT_LOG", str(tmp_path / "sudoku.jsonl"))
    return tmp_path / "sudoku.jsonl"


def sudoku(**more: Any) -> AbstractContextManager[LiveServer]:
    app: AbstractContextManager[LiveServer] = served(
        SudokuEnvironment, SudokuAction, SudokuObservation, env_name="sudoku_env", **more
    )
    return app


def parameters(page: Page, **values: int) -> None:
    page.locator("#reset-more > summary").click()
    for name, value in values.items():
        page.locator(f"#reset-in-{name}").fill(str(value))


def enter(page: Page, move: tuple[int, int, int]) -> None:
    for name, value in zip(("row", "col", "value"), move, strict=True):
        page.locator(f"#action-in-{name}").fill(str(value))
    page.locator("#step").click()


def solution(seed: int, size: int, holes: int) -> list[tuple[int, int, int]]:
    puzzle = make_puzzle(size, seed, holes)
    return [
        (row + 1, col + 1, puzzle.solution[row][col])
        for row in range(size)
        for col in range(size)
        if not puzzle.givens[row][col]
    ]


def test_a_game_to_its_end_with_connections_that_break(visit: Open, sudoku_log: Path) -> None:
    moves = solution(seed=7, size=4, holes=6)
    with sudoku() as live, FaultProxy("127.0.0.1", live.port) as proxy:
        page = visit(proxy.url)
        badge(page, "none")
        parameters(page, seed=7, size=4, holes=6)
        begin(page)
        badge(page, "connected")
        enter(page, moves[0])
        expect(page.locator("#step-count")).to_have_text("1")

        proxy.refuse()  # so that it can be seen how it comes back
        proxy.cut()
        badge(page, "resuming")
        enter(page, moves[1])  # goes off as soon as there is a connection
        proxy.heal()
        expect(page.locator("#step-count")).to_have_text("2")
        badge(page, "connected")

        proxy.cut_on_reply()  # the move is made, and nobody hears of it
        enter(page, moves[2])
        expect(page.locator("#step-count")).to_have_text("3")

        proxy.refuse()
        proxy.cut()
        badge(page, "resuming")
        proxy.heal()
        badge(page, "resumed")  # until the next call
        for number, move in enumerate(moves[3:], 4):
            enter(page, move)
            expect(page.locator("#step-count")).to_have_text(str(number))
        phase(page, "done")
        expect(page.locator("#alert")).to_contain_text("6 steps, total reward 1")
        expect(page.locator("#observation")).to_contain_text("Solved.")
        expect(page.locator("#history li")).to_have_count(7)
        expect(page.locator("#chart rect")).to_have_count(6)
        page.locator("#history button").last.click()
        expect(page.locator("#observation")).to_contain_text("A new board with 6 empty cells.")
        page.get_by_text("back to the latest").click()
        expect(page.locator("#observation")).to_contain_text("Solved.")

        page.locator("#alert-reset").click()
        phase(page, "playing")
        expect(page.locator("#history li")).to_have_count(1)
        events = read_log(sudoku_log)
        assert [one["move"] for one in events if one["event"] == "step"] == [list(move) for move in moves]
        (board,) = {one["board_id"] for one in events if one["event"] in ("reset", "step")}
        page.close()
    told = [one["event"] for one in read_log(sudoku_log) if one["board_id"] == board]
    assert told == ["constructor", "reset", *["step"] * 6, "reset", "close"]


def test_a_loss_that_cannot_be_resumed_wants_a_reset(visit: Open, sudoku_log: Path) -> None:
    moves = solution(seed=7, size=4, holes=6)
    plain = V1Options(features=frozenset({Feature.SEQ, Feature.CANCEL}))
    with sudoku(v1=plain) as live, FaultProxy("127.0.0.1", live.port) as proxy:
        page = visit(proxy.url)
        parameters(page, seed=7, size=4, holes=6)
        begin(page)
        enter(page, moves[0])
        expect(page.locator("#step-count")).to_have_text("1")
        proxy.cut()
        badge(page, "lost")
        phase(page, "lost")
        expect(page.locator("#alert")).to_contain_text("Session lost")
        expect(page.locator("#step")).to_be_disabled()
        expect(page.locator("#state-refresh")).to_be_disabled()
        expect(page.locator("#history li")).to_have_count(2)  # nothing of another session came in

        page.locator("#alert-reset").click()
        phase(page, "playing")
        badge(page, "connected")
        expect(page.locator("#history li")).to_have_count(1)
        expect(page.locator("#alert")).to_be_hidden()
        events = read_log(sudoku_log)
    boards = [one["board_id"] for one in events if one["event"] == "reset"]
    assert len(set(boards)) == 2
    assert [one["event"] for one in events].count("step") == 1


def test_a_call_whose_fate_is_unknown_is_told_and_not_repeated(visit: Open, sudoku_log: Path) -> None:
    plain = V1Options(features=frozenset({Feature.SEQ}))
    with sudoku(v1=plain) as live, FaultProxy("127.0.0.1", live.port) as proxy:
        page = visit(proxy.url)
        parameters(page, seed=7, size=4, holes=6)
        begin(page)
        proxy.cut_on_reply()
        enter(page, (1, 1, 1))
        phase(page, "lost")
        expect(page.locator("#alert")).to_contain_text("Whether your last call was applied is unknown")
    assert [one["event"] for one in read_log(sudoku_log)].count("step") == 1


def test_a_session_that_is_gone_when_the_page_comes_back(visit: Open, env: type[CountEnv]) -> None:
    with served(env, v1=V1Options(grace_s=0.05)) as live, FaultProxy("127.0.0.1", live.port) as proxy:
        page = visit(proxy.url)
        begin(page)
        proxy.refuse()
        proxy.cut()
        badge(page, "resuming")
        env.log.wait_for("close")
        proxy.heal()
        badge(page, "lost")
        expect(page.locator("#alert")).to_contain_text("The connection was away for too long")
        begin(page)
        assert len(env.log.of("init")) == 2


def test_keyboard_alone(visit: Open, sudoku_log: Path) -> None:
    moves = solution(seed=7, size=4, holes=6)
    with sudoku() as live:
        page = visit(live)
        parameters(page, seed=7, size=4, holes=6)
        page.keyboard.press("Enter")
        phase(page, "playing")
        for number, move in enumerate(moves, 1):
            expect(page.locator("#action-in-row")).to_be_focused()
            for value in move:
                page.keyboard.type(str(value))
                page.keyboard.press("Tab")
            page.keyboard.press("Shift+Tab")
            page.keyboard.press("Enter")
            expect(page.locator("#step-count")).to_have_text(str(number))
        phase(page, "done")
        expect(page.locator("#alert-reset")).to_be_focused()
        page.keyboard.press("n")
        phase(page, "playing")
        page.locator("#tab-play").focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator("#panel-readme")).to_be_visible()
        expect(page.locator("#panel-readme table")).to_have_count(2)
        expect(page.locator("#panel-readme h2").first).to_have_text("Sudoku environment")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone(visit: Open, sudoku_log: Path, scheme: Literal["light", "dark"]) -> None:
    with sudoku() as live:
        page = visit(live, viewport={"width": 390, "height": 844}, has_touch=True, color_scheme=scheme)
        begin(page)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        red, *_ = map(
            int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
        )
        assert (red < 60) is (scheme == "dark")


# ---------------------------------------------------------------- places


def test_a_trainer_is_admitted_beside_an_open_page(visit: Open, env: type[CountEnv]) -> None:
    with served(env, max_concurrent_envs=1) as live:
        page = visit(live)
        begin(page)
        with GenericEnvClient(base_url=live).sync() as trainer:
            trainer.reset()
            for _ in range(3):
                seen = trainer.step({"op": "inc"}).observation
            page.locator("#step").click()
            expect(page.locator("#step-count")).to_have_text("1")
            badge(page, "connected")
            assert (seen["env_no"], seen["count"]) == (env.log.of("init")[1]["env_no"], 3)
    assert [len(env.log.of("step", one["env_no"])) for one in env.log.of("init")] == [1, 3]


def test_where_only_one_may_live_the_page_makes_way(visit: Open, env: type[CountEnv]) -> None:
    env.SUPPORTS_CONCURRENT_SESSIONS = False
    with served(env) as live:
        page = visit(live)
        begin(page)
        with GenericEnvClient(base_url=live).sync() as trainer:
            trainer.reset()
            badge(page, "lost")
            expect(page.locator("#alert")).to_contain_text("A training client needed this environment")
            assert env.log.of("close", env.log.of("init")[0]["env_no"])  # before the other was made
            page.locator("#alert-reset").click()
            badge(page, "refused")
            expect(page.locator("#alert")).to_contain_text("No place is free")
            trainer.step({"op": "inc"})
        live.wait_for_sessions(0)
        begin(page)
    live_now = 0
    for one in env.log.events:
        live_now += {"init": 1, "close": -1}.get(one["event"], 0)
        assert live_now <= 1


def test_a_visitor_in_the_middle_of_a_call_makes_way(visit: Open, env: type[CountEnv]) -> None:
    class Patient(env):  # type: ignore[valid-type, misc]
        SUPPORTS_CONCURRENT_SESSIONS = False

        def cancel(self) -> None:
            self.release.set()

    with served(Patient) as live:
        page = visit(live)
        begin(page)
        page.locator("#action-in-op").fill("sleep")
        page.locator("#action-in-arg").fill("600")
        page.locator("#step").click()
        env.log.wait_for("step")
        with GenericEnvClient(base_url=live, wait_for_slot=60).sync() as trainer:
            assert trainer.reset().observation["count"] == 0
            phase(page, "lost")
            expect(page.locator("#alert")).to_contain_text("Whether your last call was applied is unknown")


def test_visitors_have_sessions_of_their_own_up_to_a_number(visit: Open, env: type[CountEnv]) -> None:
    with served(env, web=WebOptions(sessions=2)) as live:
        pages = [visit(live) for _ in range(3)]
        for page in pages[:2]:
            begin(page)
        pages[0].locator("#step").click()
        expect(pages[0].locator("#step-count")).to_have_text("1")
        pages[2].locator("#reset").click()
        badge(pages[2], "refused")
        pages[1].locator("#step").click()
        expect(pages[1].locator("#observation .facts")).to_contain_text("count1")
        pages[0].close()
        live.wait_for_sessions(0, visitors=1)
        begin(pages[2])
    assert len(env.log.of("init")) == 3


def test_a_silent_visitor_is_sent_away(visit: Open, env: type[CountEnv]) -> None:
    with served(env, web=WebOptions(idle_s=0.2)) as live:
        page = visit(live)
        page.locator("#reset").click()
        badge(page, "lost")
        expect(page.locator("#alert")).to_contain_text("Nothing was played for a while")
        env.log.wait_for("close")


def test_a_call_that_takes_too_long_is_cancelled(visit: Open, env: type[CountEnv]) -> None:
    class Patient(env):  # type: ignore[valid-type, misc]
        def cancel(self) -> None:
            self.release.set()

    with served(Patient) as live:
        page = visit(live)
        begin(page)
        page.locator("#action-in-op").fill("sleep")
        page.locator("#action-in-arg").fill("600")
        page.locator("#step").click()
        page.locator("#cancel").click()
        env.log.wait_for("slept")
        expect(page.locator("#step")).to_be_enabled()


def test_a_connection_on_which_nothing_comes_back_is_given_up(visit: Open, env: type[CountEnv]) -> None:
    with served(env) as live, FaultProxy("127.0.0.1", live.port) as proxy:
        page = visit(proxy.url)
        begin(page)
        for number in range(1, proxy.accepted + 1):  # all that there are; those to come are spared
            proxy.black_hole(number)
        page.locator("#step").click()
        page.locator("#cancel").click()
        badge(page, "resumed")
        expect(page.locator("#step")).to_be_enabled()  # cancelled before the server ever had it
        expect(page.locator("#alert")).to_contain_text("The call was not applied")
        page.locator("#step").click()
        expect(page.locator("#step-count")).to_have_text("1")
    assert len(env.log.of("step")) == 1


def test_a_server_that_stays_away_does_not_hold_the_page(visit: Open, env: type[CountEnv]) -> None:
    with served(env) as live, FaultProxy("127.0.0.1", live.port) as proxy:
        page = visit(proxy.url)
        begin(page)
        proxy.refuse()
        proxy.cut()
        badge(page, "resuming")
        page.locator("#step").click()
        page.locator("#cancel").click()
        phase(page, "lost")
        expect(page.locator("#alert")).to_contain_text("The server cannot be reached")
        proxy.heal()
        begin(page)
        assert env.log.of("step") == []
        env.log.wait_for("close")  # the session that was given up is released


# ---------------------------------------------------------------- what is shown and asked

EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'


class ManyAction(Action):
    """Everything a form can ask for."""

    name: str = Field(min_length=2, description=EVIL)
    many: Literal["up", "down", "left", "right", "stay", "elsewhere"]
    few: Literal["a", "b"] = "a"
    flag: bool = False
    level: float = Field(ge=0, lt=1, default=0.5)
    maybe: int | None = None
    side: Literal["x", "y"] | None = None
    must: int | None
    points: list[list[int]] = Field(default_factory=list)
    options: dict[str, Any]


class ManyObservation(Observation):
    value: Any = None
    extra: Any = None


class ManyEnv(Environment[ManyAction, ManyObservation, State]):
    """Answers with what it was asked."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    seen: list[dict[str, Any]]
    shown: Any = None

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> ManyObservation:
        self.seen.append({"reset": kwargs, "seed": seed})
        return ManyObservation(value=self.shown)

    def step(self, action: ManyAction, timeout_s: float | None = None, **kwargs: Any) -> ManyObservation:
        self.seen.append(action.model_dump(exclude={"metadata"}))
        if action.name == "nan":
            return ManyObservation(value=float("nan"), reward=float("-inf"))
        return ManyObservation(value=action.options, reward=-0.5)

    @property
    def state(self) -> State:
        return State(step_count=len(self.seen))

    def get_metadata(self) -> EnvironmentMetadata:
        text = f"# {EVIL}\n\n{EVIL}\n\n[click](javascript:window.hacked=1) ![x](https://evil.example/x.png)\n"
        return EnvironmentMetadata(name=EVIL, description=EVIL, readme_content=text)


@pytest.fixture
def many() -> type[ManyEnv]:
    return type("ManyEnv", (ManyEnv,), {"seen": []})


def test_every_kind_of_field(visit: Open, many: type[ManyEnv]) -> None:
    with served(many, ManyAction, ManyObservation) as live:
        page = visit(live)
        parameters(page, seed=3, more='{"hard": true}')  # type: ignore[arg-type]
        begin(page)
        assert many.seen == [{"reset": {"hard": True}, "seed": 3}]

        page.locator("#action-in-level").fill("1")
        page.locator("#action-in-points").fill("[1")
        page.locator("#step").click()
        problems = page.locator(".problem:visible")
        expect(problems).to_have_count(5)  # name, many, level, points, options
        expect(page.locator("#action-in-name")).to_be_focused()

        page.locator("#action-in-name").fill("it")
        page.locator("#action-in-many").select_option(label="elsewhere")
        page.get_by_text("b", exact=True).click()
        page.get_by_text("yes", exact=True).click()
        page.locator("label[for=action-in-side-1]").click()
        page.locator("label[for=action-in-side-0]").click()  # none of them after all
        page.locator("#action-in-level").fill("0.25")
        page.locator("#action-in-points").fill("[[1, 2], [3, 4]]")
        page.locator("#action-in-options").fill('{"x": [1, 2]}')
        page.locator("#step").click()
        expect(page.locator("#step-count")).to_have_text("1")
        expect(page.locator("#reward-total")).to_have_text("-0.5")
        assert many.seen[1:] == [
            {
                "name": "it",
                "many": "elsewhere",
                "few": "b",
                "flag": True,
                "level": 0.25,
                "maybe": None,
                "side": None,
                "must": None,
                "points": [[1, 2], [3, 4]],
                "options": {"x": [1, 2]},
            }
        ]
        page.locator("#action-in-points").fill('["a"]')  # what only the server knows to be wrong
        page.locator("#step").click()
        expect(page.locator("#action-in-points-problem")).to_be_visible()
        assert len(many.seen) == 2

        page.locator("#action-in-points").fill("")
        page.locator("#action-in-name").fill("nan")
        page.locator("#action-in-options").press("Control+Enter")
        expect(page.locator("#reward-last")).to_have_text("-∞")
        page.locator("#state-refresh").click()
        expect(page.locator("#state")).to_contain_text('"step_count": 3')


def test_no_number_is_changed_on_the_way(visit: Open, many: type[ManyEnv]) -> None:
    large, negative = 2**63 - 1, -(2**64) - 1
    many.shown = {"ids": [large, negative], "lone": large, "table": [[large, 1], [2, 3]]}
    with served(many, ManyAction, ManyObservation) as live:
        page = visit(live)
        parameters(page, seed=large)
        begin(page)
        assert many.seen == [{"reset": {}, "seed": large}]
        for shown in ("View", "JSON"):
            page.get_by_text(shown, exact=True).click()
            for number in (large, negative):
                expect(page.locator("#observation")).to_contain_text(str(number))
        page.locator("#action-in-name").fill("it")
        page.locator("#action-in-many").select_option(label="up")
        page.locator("#action-in-must").fill(str(large))
        page.locator("#action-in-options").fill(f'{{"a": [{negative}, NaN, -Infinity, 1.5]}}')
        page.locator("#step").click()
        expect(page.locator("#step-count")).to_have_text("1")
        assert many.seen[1]["must"] == large
        assert repr(many.seen[1]["options"]) == f"{{'a': [{negative}, nan, -inf, 1.5]}}"


def test_text_of_an_environment_is_never_html(visit: Open, many: type[ManyEnv]) -> None:
    many.shown = {
        EVIL: EVIL,
        "board": f"{EVIL}\n{EVIL}",
        "rows": [{EVIL: EVIL, "b": 1}],
        "chat": [{"role": EVIL, "content": EVIL}],
    }
    with served(many, ManyAction, ManyObservation) as live:
        page = visit(live)
        begin(page)
        for shape in (many.shown, EVIL, [EVIL], [[EVIL, EVIL], [EVIL, EVIL]]):
            many.shown = shape
            begin(page)
            page.get_by_text("JSON", exact=True).click()
            expect(page.locator("#observation .json")).to_contain_text("onerror")
            page.get_by_text("View", exact=True).click()
            expect(page.locator("#observation")).to_contain_text("onerror")
        page.locator("#tab-readme").click()
        expect(page.locator("#panel-readme")).to_contain_text("onerror")
        assert page.locator("main img, main script, header img").count() == 0
        assert page.locator("a[href^=javascript]").count() == 0
        assert page.evaluate("window.hacked") is None


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="


@pytest.mark.parametrize(
    ("value", "selector"),
    [
        ("a board\n- - -\n", "pre.board"),
        ([[0, 1], [2, 3]], "table.grid"),
        ([{"name": "a", "size": 1}, {"name": "b", "size": 2}], "table.records"),
        ([{"role": "user", "content": "hello"}], ".messages"),
        ([[[0, 0, 255]] * 8] * 8, "canvas.image"),
        (PIXEL, "img.image"),
        ({"deep": [{"er": [1, {"est": "x" * 80}]}]}, "pre.json"),
        ("one line", ".facts"),
        (None, ".facts"),
    ],
)
def test_what_an_observation_looks_like(visit: Open, many: type[ManyEnv], value: Any, selector: str) -> None:
    many.shown = value
    with served(many, ManyAction, ManyObservation) as live:
        page = visit(live)
        begin(page)
        expect(page.locator(f"#observation {selector}").first).to_be_visible()


def test_tools_are_listed_and_called(visit: Open) -> None:
    made = fresh_tools()
    with served(made, Action, Observation) as live:
        page = visit(live)
        begin(page)
        expect(page.locator("#tool option").first).to_be_attached()
        page.locator("#tool").select_option("inc")
        page.locator("#tool-in-by").fill("42")
        page.locator("#step").click()
        expect(page.locator("#observation .facts")).to_contain_text("count42")
        expect(page.locator("#history li").first).to_contain_text("inc by 42")
        page.locator("#tool").select_option("refuse")
        page.locator("#step").click()
        expect(page.locator("#observation .lead.bad")).to_contain_text("unknown tool, timed out")
    assert [one["count"] for one in made.log.of("tool")] == [42]


def test_below_a_prefix(visit: Open, env: type[CountEnv]) -> None:
    inner = create_app(env, CountAction, CountObservation, state_cls=CountState, web=WebOptions())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> Any:
        async with inner.router.lifespan_context(inner):
            yield

    outer = FastAPI(lifespan=lifespan)
    outer.mount("/spaces/count", inner)
    with serve(outer) as live:
        page = visit(live, "/spaces/count/web?__theme=dark")
        assert page.url.endswith("/spaces/count/web/?__theme=dark")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        begin(page)
        page.locator("#step").click()
        expect(page.locator("#observation")).to_contain_text("env no")
        assert json.loads(page.evaluate("fetch('metadata').then((one) => one.text())"))["name"] == "CountEnv"


def test_in_a_space_whose_proxy_cuts(visit: Open, env: type[CountEnv]) -> None:
    with served(env) as live, SpaceStub(live, token="", sleep_s=0) as space:
        page = visit(space.url)
        assert page.url.endswith("/spaces/org/name/web/")  # the server itself knows nothing of this prefix
        begin(page)
        for number in (1, 2, 3):
            page.locator("#step").click()
            expect(page.locator("#step-count")).to_have_text(str(number))
            space.cut()
        badge(page, "resumed")
    assert [one["env_no"] for one in env.log.of("step")] == [env.log.of("init")[0]["env_no"]] * 3
