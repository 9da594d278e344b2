"""Writing and opening the HTML report of 16,384 ranks × 200 iterations, with limits measured in the same run.

Writing is compared to deflating the same cells, which is the least that a small file costs, and in bytes to
the JSON numbers that a page would hold otherwise. Opening is measured in the Chromium of the machine where
there is one: until everything is drawn, and how long a frame takes while the heat map zooms and pans, against
one plain pass over as many bytes by a script in the same page.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Goal, interleaved, write_result
from megatrace.model.finding import (
    Culprits,
    Diagnosis,
    Finding,
    JobSummary,
    Kind,
    Pictures,
    Severity,
    Verdict,
    Window,
)
from megatrace.model.layout import ParallelLayout
from megatrace.model.trace import RankPlace
from megatrace.reports import ReportOptions
from megatrace.reports.html import render

LAYOUT = ParallelLayout(tp=8, pp=16, dp=128)
ITERATIONS = 200
SLOW = 7_777
MAX_BYTES = 5_000_000
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
)
FRAMES = """async () => {
    const stack = document.querySelector('#figure-heat .stack');
    const took = [];
    const press = (key, shiftKey) => new Promise((done) => {
        stack.dispatchEvent(new KeyboardEvent('keydown', { key, shiftKey, bubbles: true }));
        requestAnimationFrame((begin) => done(performance.now() - begin));
    });
    for (const key of ['0', '+', '+', 'ArrowLeft', 'ArrowDown', '-', '0', '+', 'ArrowRight', '-', '0', '0']) {
        took.push(await press(key, key.startsWith('Arrow')));
    }
    const bytes = new Uint8Array(%d).fill(7);
    const plain = [];
    for (let turn = 0; turn < 5; turn++) {
        const begin = performance.now();
        let most = 0;
        for (let k = 0; k < bytes.length; k++) if (bytes[k] > most) most = bytes[k];
        plain.push(performance.now() - begin + most * 0);
    }
    const middle = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)];
    return { frame: middle(took), longest: Math.max(...took), plain: middle(plain) };
}"""
"""ms of the drawing in each frame of a walk through the heat map, and of the plain pass."""


def diagnosis() -> Diagnosis:
    """A large job with one slow rank; its work has the noise of a real one (2 %)."""
    noise = np.random.default_rng(3).normal(1.0, 0.02, (LAYOUT.world_size, ITERATIONS))
    work = (600.0 * noise).astype(np.float32)
    work[SLOW, 80:120] *= 2.5
    times = 1_000.0 + work.max(axis=0)
    starts = np.cumsum(times) / 1e3
    finding = Finding(
        kind=Kind.SLOW_COMPUTE,
        severity=Severity.P1,
        summary=f"rank {SLOW} computed 2.5× slower in iterations 80–119",
        culprits=Culprits(ranks=(SLOW,)),
        victims=tuple(rank for rank in range(LAYOUT.world_size) if rank != SLOW),
        window=Window(0, 1, 80, 119),
    )
    return Diagnosis(
        verdict=Verdict.SLOW,
        headline=finding.summary,
        job=JobSummary(ranks=LAYOUT.world_size, ranks_seen=LAYOUT.world_size, layout=LAYOUT),
        findings=(finding,),
        places=tuple(
            RankPlace(rank, f"node{rank // 8}", rank % 8, f"gpu{rank % 8}")
            for rank in range(LAYOUT.world_size)
        ),
        pictures=Pictures(
            iteration=np.arange(ITERATIONS),
            iteration_start_s=starts - times / 1e3,
            iteration_ms=times,
            work_ranks=np.arange(LAYOUT.world_size, dtype=np.int32),
            work_ms=work,
        ),
    )


def opened(html: str) -> dict[str, float] | None:
    """How long the page takes to be drawn and a frame to be drawn again, ms; None without a browser."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if path is None:
        return None
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        file = Path(folder) / "report.html"
        file.write_text(html, encoding="utf-8")
        browser = started.chromium.launch(
            executable_path=path, args=[*ARGUMENTS, "--enable-precise-memory-info"]
        )
        page = browser.new_page(viewport={"width": 1920, "height": 1080})
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-drawn]")
        drawn = page.evaluate("() => performance.now()")
        frames: dict[str, Any] = page.evaluate(FRAMES % (LAYOUT.world_size * ITERATIONS))
        heap = page.evaluate("() => performance.memory.usedJSHeapSize")
        browser.close()
    return {"open_ms": float(drawn), "heap_mib": heap / 2**20, **{k: float(v) for k, v in frames.items()}}


def main() -> int:
    """Measures, prints, writes ``results/report_html.json``; 1 where a goal is missed."""
    whole = diagnosis()
    options = ReportOptions(generated_at=0, command="megatrace diagnose logs/")
    work = whole.pictures.work_ms
    assert work is not None
    cells = np.rint(work / 4).astype(np.uint8).tobytes()
    timing = interleaved(
        {
            "deflate the cells": lambda: zlib.compress(cells, 6),
            "numbers as JSON": lambda: json.dumps(np.round(work, 1).tolist()),
            "write the page": lambda: render(whole, options),
        },
        rounds=3,
    )
    html = render(whole, options)
    size, as_json = len(html.encode("utf-8")), len(json.dumps(np.round(work, 1).tolist()))
    tracemalloc.start()
    render(whole, options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    browser = opened(html)
    goals = [
        Goal("bytes of the page / 5,000,000", size / MAX_BYTES, 1),
        Goal(
            "write the page / deflate its cells",
            timing["write the page"].median / timing["deflate the cells"].median,
            8,
        ),
        Goal("memory to write / bytes of the work", peak / work.nbytes, 8),
    ]
    if browser is not None:
        goals.append(
            Goal("a frame of the heat map / one pass over its cells", browser["frame"] / browser["plain"], 5)
        )
    for name, taken in timing.items():
        print(f"{name:34} {taken.median * 1e3:9.1f} ms CPU")
    print(f"{'the page':34} {size:,} bytes; the numbers as JSON {as_json:,}; {peak / 2**20:.0f} MiB to write")
    if browser is not None:
        print("in the browser: " + ", ".join(f"{name} {value:.1f}" for name, value in browser.items()))
    for goal in goals:
        print(goal.line())
    figures = {
        "ranks": LAYOUT.world_size,
        "iterations": ITERATIONS,
        "bytes": size,
        "bytes_as_json": as_json,
        "peak_mib": round(peak / 2**20, 1),
        "browser": None if browser is None else {name: round(value, 2) for name, value in browser.items()},
        "cpu": {name: taken.as_json() for name, taken in timing.items()},
    }
    print(f"wrote {write_result('report_html', figures, goals).name}")
    return 0 if all(goal.met for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
