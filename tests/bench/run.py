"""``make bench-policy``: the policy link against the usual way, in one run. Writes a report and a plot.

Not part of ``make test``, which has a small version of it. Needs matplotlib for the plot.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np

from bench.payloads import LADDER, observation, size_of
from bench.policy_speed import (
    DELAY_S,
    RATE,
    Fit,
    Timing,
    bytes_per_exchange,
    clients,
    compare,
    encoding,
    fit,
    ladder,
    pinned,
)

KINDS = ("openpi", "ours", "ours with reuse")
COUNTS = {1: 20, 8: 10, 64: 3}
"""Envs, and exchanges in a turn."""

Ladder = dict[str, dict[str, Timing]]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--report", type=Path, default=Path("build/bench-policy"))
    arguments.add_argument("--rounds", type=int, default=8)
    options = arguments.parse_args()
    rounds: int = options.rounds
    say(f"encoding, {rounds} rounds")
    encoded = {count: encoding(count, 2 * rounds) for count in COUNTS}
    counts: dict[int, dict[str, Timing]] = {}
    with pinned(), clients() as between:
        for count, exchanges in COUNTS.items():
            say(f"{count} envs of 2 x 224 x 224 x 3 on loopback")
            counts[count] = compare(between, observation(count), rounds=rounds, exchanges=exchanges)
    say("the ladder on loopback")
    with pinned():
        near = ladder(None, rounds=rounds, exchanges=20)
    say("the ladder behind the slow link")
    far = ladder((RATE, DELAY_S), rounds=max(2, rounds // 2), exchanges=10)
    fits = {kind: fit([far[name][kind].median for name in LADDER], RATE) for kind in KINDS}
    say("bytes of an exchange")
    sent = bytes_per_exchange(LADDER["184 KiB"], exchanges=10)
    options.report.parent.mkdir(parents=True, exist_ok=True)
    text = report(encoded, counts, near, far, fits, sent)
    options.report.with_suffix(".md").write_text(text)
    options.report.with_suffix(".json").write_text(
        json.dumps(as_json(encoded, counts, near, far, fits, sent), indent=1)
    )
    plot(options.report.with_suffix(".png"), near, far, fits)
    print(text)
    say(f"written: {options.report}.md, .json and .png")


def say(what: str) -> None:
    print(f"# {what}", flush=True)


def report(
    encoded: dict[int, dict[str, float]],
    counts: dict[int, dict[str, Timing]],
    near: Ladder,
    far: Ladder,
    fits: dict[str, Fit],
    sent: dict[str, float],
) -> str:
    """The numbers as Markdown. An exchange is an infer, its action and a feedback; both observations are sent."""
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    lines = ["# Speed of the policy link", "", machine, "", "## Encoding: best, microseconds", ""]
    lines += ["| envs | packb | joined | parts | packb / parts |", "|---|---|---|---|---|"]
    for count, ways in encoded.items():
        times = " | ".join(f"{1e6 * ways[way]:.0f}" for way in ("packb", "joined", "parts"))
        lines.append(f"| {count} | {times} | {ways['packb'] / ways['parts']:.0f} |")
    lines += [
        "",
        "## Exchanges on loopback, 2 x 224 x 224 x 3 an env: milliseconds, and openpi's to ours",
        "",
    ]
    lines += ["| envs | client | best | median | client CPU |", "|---|---|---|---|---|"]
    for count, by_kind in counts.items():
        lines += [f"| {count} | {kind} | {_against(by_kind['openpi'], by_kind[kind])} |" for kind in KINDS]
    for title, found in (("loopback", near), (f"a link of {RATE / 1e6:g} MB/s and {2e3 * DELAY_S:g} ms", far)):
        lines += ["", f"## One env on {title}: median, milliseconds", ""]
        lines += [f"| observation | {' | '.join(KINDS)} |", "|---|---|---|---|"]
        for name in LADDER:
            lines.append(f"| {name} | {' | '.join(f'{1e3 * found[name][kind].median:.3f}' for kind in KINDS)} |")
    lines += ["", "## Fit: fixed + k x bytes / rate", "", "| client | fixed, ms | k |", "|---|---|---|"]
    lines += [f"| {kind} | {1e3 * one.fixed_s:.2f} | {one.k:.3f} |" for kind, one in fits.items()]
    lines += ["", "## Bytes that the client sends in an exchange, 184 KiB", ""]
    lines += [f"* {kind}: {amount:.0f}" for kind, amount in sent.items()]
    lines += [f"* ratio: {sent['ours'] / sent['ours with reuse']:.2f}", ""]
    return "\n".join(lines)


def _against(theirs: Timing, ours: Timing) -> str:
    pairs = ((theirs.best, ours.best), (theirs.median, ours.median), (theirs.cpu_median, ours.cpu_median))
    return " | ".join(f"{1e3 * own:.2f} ({other / own:.2f}x)" for other, own in pairs)


def as_json(
    encoded: dict[int, dict[str, float]],
    counts: dict[int, dict[str, Timing]],
    near: Ladder,
    far: Ladder,
    fits: dict[str, Fit],
    sent: dict[str, float],
) -> dict[str, Any]:
    """The same for programs; times in milliseconds, but those of the encoders in seconds."""

    def told(found: dict[Any, dict[str, Timing]]) -> dict[str, Any]:
        return {str(key): {kind: one.to_json() for kind, one in kinds.items()} for key, kinds in found.items()}

    return {
        "encoding_s": encoded,
        "loopback": told(counts),
        "ladder loopback": told(near),
        "ladder slow link": told(far),
        "fit": {kind: {"fixed_ms": 1e3 * one.fixed_s, "k": one.k} for kind, one in fits.items()},
        "bytes": sent,
    }


def plot(path: Path, near: Ladder, far: Ladder, fits: dict[str, Fit]) -> None:
    """Medians over sizes, on loopback and behind the slow link with the fitted lines."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        say("no plot: matplotlib is not installed")
        return
    kib = [size_of(observation(1, sides)) / 1024 for sides in LADDER.values()]
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    slow = f"{RATE / 1e6:g} MB/s, {2e3 * DELAY_S:g} ms"
    for place, (title, found) in enumerate((("loopback", near), (slow, far)), start=1):
        axes = figure.add_subplot(1, 2, place, title=title, xlabel="KiB of one observation", ylabel="ms an exchange")
        for color, kind in zip(("tab:gray", "tab:blue", "tab:green"), KINDS, strict=True):
            label = kind
            if found is far:
                ends = np.array([0, max(kib)])
                axes.plot(ends, 1e3 * (fits[kind].fixed_s + fits[kind].k * ends * 1024 / RATE), color=color, lw=1)
                label = f"{kind}: {1e3 * fits[kind].fixed_s:.1f} ms + {fits[kind].k:.2f} x size / rate"
            axes.plot(
                kib,
                [1e3 * found[name][kind].median for name in LADDER],
                "o-" if found is near else "o",
                color=color,
                label=label,
            )
        axes.set_ylim(bottom=0)
        axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
