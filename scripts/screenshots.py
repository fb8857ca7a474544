"""Take the pictures of the web page that the docs show: a game of Sudoku, light, dark, and on a phone.

    python scripts/screenshots.py [FOLDER]

Needs Playwright and Pillow (in the extra ``dev``) and Chromium; ``OPENENV_BROWSER`` names one.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from openenv.core.env_server import create_app
from openenv.core.env_server.visitors import WebOptions
from sudoku_env import SudokuAction, SudokuObservation
from sudoku_env.engine import make_puzzle
from sudoku_env.server.sudoku_environment import SudokuEnvironment

SEED = 11
FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
SHOTS: dict[str, dict[str, Any]] = {
    "web-light": {"viewport": {"width": 1240, "height": 1060}, "color_scheme": "light"},
    "web-dark": {"viewport": {"width": 1240, "height": 1060}, "color_scheme": "dark"},
    "web-phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "device_scale_factor": 2},
}


@contextmanager
def served() -> Iterator[str]:
    """Serve Sudoku with its page; yields the address."""
    app = create_app(SudokuEnvironment, SudokuAction, SudokuObservation, env_name="sudoku_env", web=WebOptions())
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def play(page: Page, size: int, holes: int, moves: int) -> None:
    """Begin a game and make some of its moves, one of them wrong."""
    page.locator("#reset-more summary").click()
    for name, number in (("seed", SEED), ("size", size), ("holes", holes)):
        page.locator(f"#reset-in-{name}").fill(str(number))
    page.locator("#reset").click()
    page.locator("body[data-phase=playing]").wait_for()
    puzzle = make_puzzle(size, SEED, holes)
    empty = [(row, col) for row in range(size) for col in range(size) if not puzzle.givens[row][col]]
    for number, (row, col) in enumerate(empty[:moves]):
        value = puzzle.solution[row][col]
        value = value % size + 1 if number == moves // 2 else value
        for name, text in (("row", row + 1), ("col", col + 1), ("value", value)):
            page.locator(f"#action-in-{name}").fill(str(text))
        page.locator("#step").click()
        page.locator(f"#step-count:text-is('{number + 1}')").wait_for()


def main(folder: Path) -> None:
    """Take them all."""
    folder.mkdir(parents=True, exist_ok=True)
    browser_path = os.environ.get("OPENENV_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    with served() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for name, settings in SHOTS.items():
            page = browser.new_page(**settings)
            page.goto(f"{url}/web/")
            page.locator("body[data-ready]").wait_for()
            small = settings["viewport"]["width"] < 500
            play(page, *(4, 9, 4) if small else (9, 30, 9))
            if small:
                page.locator("#action-in-row").blur()
                page.evaluate("scrollTo(0, 0)")
            page.locator("#emoji").evaluate("one => one.remove()")  # not every machine has a font for it
            path = folder / f"{name}.png"
            page.screenshot(path=path)
            Image.open(path).convert("RGB").quantize(64).save(path, optimize=True)  # a third of the size
            page.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
