"""How long the page takes for a run of a million steps: from the server's start until all is read, and for each answer.

python -m benchmarks.ui_run --steps 1000000
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks._page import Page, serving
from benchmarks._results import AT_START
from reelworks.data.run.folder import FORMAT_VERSION

ROUNDS = 7
SECONDS_PER_STEP = 3.0  # while new steps are drawn


def step_event(step: int) -> dict[str, Any]:
    """Return the event of a step, without its time."""
    bucket = ("360p 16:9 ×17", "480p 16:9 ×1")[step % 2]
    return {
        "kind": "step", "step": step, "epoch": step // 5000, "plan_step": step % 5000,
        "loss": 1 / (1 + step / 1e5) + (step * 7919 % 97) / 1000, "loss_by_bucket": {bucket: 0.5},
        "loss_by_timestep": {"300-400": 0.5}, "applied": True, "learning_rate": 1e-4, "grad_norm": 0.7, "clips": 8,
        "repeated": 0, "tokens": 36000, "seconds": 0.5, "data_wait_seconds": 0.01, "decode_p50_seconds": 0.02,
        "decode_p99_seconds": 0.1, "queue_bytes": 10**8, "buckets": [bucket], "memory_bytes": 10**10,
    }  # fmt: skip


def write_events(path: Path, steps: int) -> None:
    """Write events as a training of so many steps does, with a resume in the middle."""
    start = {
        "v": 1,
        "kind": "start",
        "world_size": 1,
        "micro_batches_per_step": 1,
        "same_bucket_run": 1,
        "recipe": "r.toml",
    }
    with path.open("w", encoding="utf-8") as file:

        def tell(**fields: Any) -> None:
            file.write(json.dumps(fields) + "\n")

        tell(**start, time=0.0, step=0, resumed_from=None)
        for i in range(1, steps + 1):
            now = {"v": 1, "time": 1_790_000_000.0 + 0.5 * i}
            if i == steps // 2:
                tell(**{**start, **now}, step=i - 100, resumed_from=i - 100)
            tell(**now, **step_event(i))
            if i % 1000 == 0:
                tell(
                    **now,
                    kind="validation",
                    step=i,
                    loss=0.5,
                    loss_by_time={"100": 0.1, "500": 0.4},
                    clips=64,
                    seconds=2.0,
                )


def median_seconds(page: Page, path: str) -> float:
    """Return the median time of an answer."""
    return statistics.median(page.timed(path)[0] for _ in range(ROUNDS))


def drawn_seconds(port: int, key: str, events: Path, steps: int) -> dict[str, float]:
    """Return the median times until the first curve and a new step are drawn in a browser; nothing without one."""
    found = shutil.which("chromium")
    if found is None:
        return {}
    from playwright.sync_api import sync_playwright

    base, painted, new_step = f"http://127.0.0.1:{port}", [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        shown = browser.new_page()
        for _ in range(ROUNDS):
            shown.goto(f"{base}/#/runs")
            shown.wait_for_selector("table")
            began = time.perf_counter()
            shown.evaluate(f"location.hash = '#/run/{key}'")
            shown.wait_for_selector(".plot .main-svg")
            painted.append(time.perf_counter() - began)
        for step in range(steps + 1, steps + 1 + ROUNDS):
            shown.wait_for_timeout(1000 * SECONDS_PER_STEP)
            began = time.perf_counter()
            with events.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"v": 1, "time": time.time(), **step_event(step)}) + "\n")
            while not shown.evaluate(f"document.querySelector('.plot').data.some(curve => curve.x.at(-1) === {step})"):
                shown.wait_for_timeout(20)
            new_step.append(time.perf_counter() - began)
        browser.close()
    return {"painted_s": statistics.median(painted), "new_step_s": statistics.median(new_step)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        run.mkdir()
        (run / "run.json").write_text(f'{{"format": {FORMAT_VERSION}}}', encoding="utf-8")
        (run / "recipe.toml").write_text("version = 1\n", encoding="utf-8")
        write_events(run / "events.jsonl", steps)
        with serving(Path(folder)) as (port, pid):
            page, began = Page(port), time.perf_counter()
            (row,) = page.get("/api/runs")
            result: dict[str, Any] = {"steps": steps, "bytes": (run / "events.jsonl").stat().st_size}
            result["first_answer_s"] = time.perf_counter() - began
            while row["reading"] is not None:
                time.sleep(0.1)
                (row,) = page.get("/api/runs")
            result["all_read_s"] = time.perf_counter() - began
            for name in ("", "/figures", "/previews"):
                result[f"run{name.replace('/', '_')}_s"] = median_seconds(page, f"/api/runs/{row['key']}{name}")
            result |= drawn_seconds(port, row["key"], run / "events.jsonl", steps)
            result["memory_bytes"] = psutil.Process(pid).memory_info().rss
    result |= AT_START
    print(json.dumps(result))


if __name__ == "__main__":
    main()
