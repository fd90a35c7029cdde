"""What a save costs: how long training waits for one, how fast it is on disk, what it costs beside training.

All figures are ratios from one run. A save that training does not wait for blocks it for one copy of the
state, told beside a copy into memory that is warm. A save on disk (written, digested, fsynced, published) is
told beside `torch.save` and fsync of the same state. Peak memory comes from processes of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reelworks.checkpoint import save
from reelworks.checkpoint.async_save import Background
from reelworks.checkpoint.store import CheckpointStore

TENSOR_BYTES = 16 << 20
RUNS = 4
State = dict[str, dict[str, Tensor]]


def make_state(total_bytes: int) -> State:
    """Tensors of 16 MB each, as a model and its optimizer have them."""
    count = max(total_bytes // TENSOR_BYTES, 1)
    generator = torch.Generator().manual_seed(0)
    return {"model": {f"w{i}": torch.randn(TENSOR_BYTES // 4, generator=generator) for i in range(int(count))}}


def blocking_seconds(state: State, folder: Path) -> tuple[float, float]:
    """Fastest warm copy, and fastest time that training waits once the memory for staging is there."""
    target = {name: torch.empty_like(value) for name, value in state["model"].items()}
    background = Background()
    copied, blocked = [], []
    for run in range(2 * RUNS):
        began = time.perf_counter()
        for name, value in state["model"].items():
            target[name].copy_(value)
        copied.append(time.perf_counter() - began)
        store = CheckpointStore(folder / f"blocking-{run}")
        began = time.perf_counter()
        background.start(store, 1, state)
        blocked.append(time.perf_counter() - began)
        background.finish()
        shutil.rmtree(store.root)
    return min(copied[1:]), min(blocked[1:])


def save_seconds(state: State, folder: Path) -> tuple[float, float]:
    """Fastest save of ours and of torch's, taken in turn."""
    ours, theirs = [], []
    for run in range(RUNS):
        store = CheckpointStore(folder / f"save-{run}")
        began = time.perf_counter()
        save.save(store, 1, state)
        ours.append(time.perf_counter() - began)
        shutil.rmtree(store.root)
        file = folder / f"state-{run}.pt"
        began = time.perf_counter()
        with file.open("wb") as f:
            torch.save(state, f)
            f.flush()
            os.fsync(f.fileno())
        theirs.append(time.perf_counter() - began)
        file.unlink()
    return min(ours), min(theirs)


def steps(seconds: float | None, background: Background | None = None) -> list[float]:
    """Times of steps of some milliseconds, for so long or as long as a save is being written."""
    weight, times = torch.randn(768, 768), []
    began = time.perf_counter()
    while background.is_writing if background is not None else time.perf_counter() - began < (seconds or 0):
        at = time.perf_counter()
        for _ in range(4):
            weight @ weight
        times.append(time.perf_counter() - at)
    return times


def step_inflation(state: State, folder: Path) -> float:
    """Median step while a save is written, over the median step without one."""
    background = Background()
    steps(1.0)
    without = steps(2.0)
    store = CheckpointStore(folder / "inflation")
    background.start(store, 1, state)
    beside = steps(None, background)
    background.finish()
    shutil.rmtree(store.root)
    return statistics.median(beside) / statistics.median(without)


def peak_bytes(kind: str, total_bytes: int, folder: Path) -> int:
    """Largest memory of a process that saves twice."""
    command = [sys.executable, "-m", "benchmarks.checkpoint", "--peak", kind]
    command += ["--gb", str(total_bytes / 1e9), "--folder", str(folder)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def save_twice(kind: str, state: State, folder: Path) -> int:
    """For `peak_bytes`, in its process."""
    background = Background()
    for step in (1, 2):
        store = CheckpointStore(folder / f"peak-{kind}-{step}")
        if kind == "beside":
            background.start(store, step, state)
            background.finish()
        else:
            save.save(store, step, state)
        shutil.rmtree(store.root)
    # Not by getrusage, whose peak a process inherits from the one that started it.
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def measure(total_bytes: int, folder: Path) -> dict[str, Any]:
    """All figures."""
    state = make_state(total_bytes)
    state_bytes = sum(value.nbytes for value in state["model"].values())
    copied, blocked = blocking_seconds(state, folder)
    ours, theirs = save_seconds(state, folder)
    inflation = step_inflation(state, folder)
    extra = peak_bytes("beside", total_bytes, folder) - peak_bytes("waits", total_bytes, folder)
    return {
        "state_bytes": state_bytes,
        "memcpy_s": copied,
        "blocking_s": blocked,
        "blocking_ratio": blocked / copied,
        "save_s": ours,
        "torch_save_s": theirs,
        "throughput_ratio": theirs / ours,
        "step_inflation": inflation,
        "peak_extra_bytes": extra,
    }


def main() -> None:
    """Measure, tell, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=1.0, help="size of the state")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: a temporary one")
    parser.add_argument("--json", action="store_true", help="only the last line")
    parser.add_argument("--peak", choices=["beside", "waits"], help=argparse.SUPPRESS)
    asked = parser.parse_args()
    total_bytes = int(asked.gb * 1e9)
    if asked.peak:
        print(save_twice(asked.peak, make_state(total_bytes), asked.folder))
        return
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        told = measure(total_bytes, Path(folder))
    if not asked.json:
        print(f"on {platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
        print(f"training waits {told['blocking_ratio']:.2f} times a warm copy of the state (limit 1.3)")
        print(f"throughput {told['throughput_ratio']:.2f} of torch.save and fsync (limit 0.8)")
        print(f"steps take {told['step_inflation']:.2f} times as long while a save is written")
        share = told["peak_extra_bytes"] / told["state_bytes"]
        print(f"peak memory {share:.2f} of the state above a save that training waits for (limit 1.2)")
    result = Path(__file__).parent / "results" / "checkpoint.json"
    result.write_text(json.dumps(told, indent=2) + "\n")
    print(json.dumps(told))


if __name__ == "__main__":
    main()
