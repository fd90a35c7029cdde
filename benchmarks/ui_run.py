"""How long the page takes for a run of a million steps: from the server's start until all is read, and for each answer.

python -m benchmarks.ui_run --steps 1000000
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

ROUNDS = 7


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
    names = ["360p 16:9 ×17", "480p 16:9 ×1"]
    with path.open("w") as file:

        def tell(**fields: Any) -> None:
            file.write(json.dumps(fields) + "\n")

        tell(**start, time=0.0, step=0, resumed_from=None)
        for i in range(1, steps + 1):
            now = {"v": 1, "time": 1_790_000_000.0 + 0.5 * i}
            if i == steps // 2:
                tell(**{**start, **now}, step=i - 100, resumed_from=i - 100)
            tell(
                **now, kind="step", step=i, epoch=i // 5000, row=i % 5000, loss=1 / (1 + i / 1e5) + (i * 7919 % 97) / 1000,
                loss_by_bucket={names[i % 2]: 0.5}, loss_by_timestep={"300-400": 0.5}, applied=True, learning_rate=1e-4,
                grad_norm=0.7, clips=8, repeated=0, tokens=36000, seconds=0.5, data_wait_seconds=0.01,
                decode_p50_seconds=0.02, decode_p99_seconds=0.1, queue_bytes=10**8, buckets=[names[i % 2]],
                memory_bytes=10**10,
            )  # fmt: skip
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


@contextmanager
def page(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Start `reelworks ui`, and yield its address and process."""
    command = [sys.executable, "-m", "reelworks", "ui", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().rpartition(" ")[2].partition("#")[0].rstrip("/\n")
        try:
            yield address, psutil.Process(server.pid)
        finally:
            server.terminate()


def ask(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"{address}/api{path}") as answer:
        return json.load(answer)


def median_seconds(address: str, path: str) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        ask(address, path)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        run.mkdir()
        (run / "run.json").write_text('{"format": 1}')
        (run / "recipe.toml").write_text("version = 1\n")
        write_events(run / "events.jsonl", steps)
        with page(Path(folder)) as (address, process):
            began = time.perf_counter()
            (row,) = ask(address, "/runs")
            first = time.perf_counter() - began
            while row["reading"] is not None:
                time.sleep(0.1)
                (row,) = ask(address, "/runs")
            result = {"steps": steps, "bytes": (run / "events.jsonl").stat().st_size, "first_answer_s": first}
            result["all_read_s"] = time.perf_counter() - began
            for name in ("", "/figures", "/previews"):
                result[f"run{name.replace('/', '_')}_s"] = median_seconds(address, f"/runs/{row['key']}{name}")
            result["memory_bytes"] = process.memory_info().rss
    print(json.dumps(result))


if __name__ == "__main__":
    main()
