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
from unittest import mock

import torch
from torch import Tensor

from benchmarks._results import AT_START, keep
from benchmarks.schedule import machine_name
from reelworks.core import machine
from reelworks.data.checkpoint import load, save, shards, state_file
from reelworks.data.checkpoint.async_save import Background
from reelworks.data.checkpoint.folder import CheckpointFolder

TENSOR_BYTES = 16 << 20
RUNS = 4
RESULTS = Path(__file__).parent / "results" / "checkpoint.json"
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
        store = CheckpointFolder(folder / f"blocking-{run}")
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
        store = CheckpointFolder(folder / f"save-{run}")
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


def load_seconds(state: State, folder: Path) -> dict[str, float]:
    """Fastest load into existing tensors of ours and of torch's, in turn, and of comparing the digests of what is read.

    The files are in the page cache. Digests take what a load takes longer with them than with a comparison that reads nothing.
    """
    folder = folder / "load"
    path, file = save.save(CheckpointFolder(folder), 1, state).info.path, folder / "state.pt"
    torch.save(state, file)
    times: dict[str, list[float]] = {"load_s": [], "unverified_s": [], "torch_load_s": []}
    index = {chunk.begin: chunk.digest for t in state_file.read(path).tensors.values() for chunk in t.chunks}
    for _ in range(2 * RUNS):
        began = time.perf_counter()
        load.load(path, state)
        times["load_s"].append(time.perf_counter() - began)
        unread = [mock.Mock(hexdigest=mock.Mock(return_value=index[begin]), update=bool) for begin in sorted(index)]
        with mock.patch.object(shards, "digests", mock.Mock(running=mock.Mock(side_effect=unread))):
            began = time.perf_counter()
            load.load(path, state)
            times["unverified_s"].append(time.perf_counter() - began)
        began = time.perf_counter()
        loaded = torch.load(file, weights_only=True)
        for name, value in state["model"].items():
            value.copy_(loaded["model"][name])
        times["torch_load_s"].append(time.perf_counter() - began)
    shutil.rmtree(folder)
    return {name: min(values) for name, values in times.items()}


def small_tensors(folder: Path, count: int = 10_000) -> dict[str, float]:
    """Times of many small tensors over those of torch, without fsync, which is of the disk; median of pairs."""
    state = {"model": {f"w{i}": torch.randn(16) for i in range(count)}}
    store, file = CheckpointFolder(folder / "small"), folder / "small.pt"
    saves, loads = [], []
    for step in range(RUNS):
        times = []
        for work in (
            lambda: torch.save(state, file),
            lambda: save.save(store, step, state),  # noqa: B023
            lambda: torch.load(file, weights_only=True),
            lambda: load.load(store.path(step), state),  # noqa: B023
        ):
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
        saves.append(times[1] / times[0])
        loads.append(times[3] / times[2])
    return {
        "small_tensors": count,
        "small_save_ratio": statistics.median(saves),
        "small_load_ratio": statistics.median(loads),
    }


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
    store = CheckpointFolder(folder / "inflation")
    background.start(store, 1, state)
    beside = steps(None, background)
    background.finish()
    shutil.rmtree(store.root)
    return statistics.median(beside) / statistics.median(without)


def peak_bytes(kind: str, total_bytes: int, folder: Path) -> int:
    """Largest memory of a process that saves twice."""
    command = [sys.executable, "-m", "benchmarks.checkpoint", "--peak", kind]
    command += ["--gb", str(total_bytes / 1e9), "--folder", str(folder)]
    return int(
        subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8").stdout.splitlines()[-1]
    )


def save_twice(kind: str, state: State, folder: Path) -> int:
    """For `peak_bytes`, in its process."""
    background = Background()
    for step in (1, 2):
        store = CheckpointFolder(folder / f"peak-{kind}-{step}")
        if kind == "beside":
            background.start(store, step, state)
            background.finish()
        else:
            save.save(store, step, state)
        shutil.rmtree(store.root)
    # Not by getrusage, whose peak a process inherits from the one that started it.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def measure(total_bytes: int, folder: Path) -> dict[str, Any]:
    """All figures."""
    state = make_state(total_bytes)
    state_bytes = sum(value.nbytes for value in state["model"].values())
    copied, blocked = blocking_seconds(state, folder)
    ours, theirs = save_seconds(state, folder)
    inflation = step_inflation(state, folder)
    loading = load_seconds(state, folder)
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
        **loading,
        "verified_share": loading["load_s"] / loading["unverified_s"] - 1,
        "load_ratio": loading["torch_load_s"] / loading["load_s"],
        **small_tensors(folder),
        **AT_START,
        "machine": machine_name(),
    }


def main() -> None:
    """Measure, tell, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=1.0, help="size of the state")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: a temporary one")
    parser.add_argument("--json", action="store_true", help="only the last line")
    parser.add_argument("--save", action="store_true", help=f"keep the figures in {RESULTS.name}")
    parser.add_argument("--peak", choices=["beside", "waits"], help=argparse.SUPPRESS)
    asked = parser.parse_args()
    total_bytes = int(asked.gb * 1e9)
    if asked.peak:
        print(save_twice(asked.peak, make_state(total_bytes), asked.folder))
        return
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        told = measure(total_bytes, Path(folder))
    if not asked.json:
        print(f"on {platform.machine()}, {machine.cores()} cores, torch {torch.__version__}")
        print(f"training waits {told['blocking_ratio']:.2f} times a warm copy of the state (limit 1.3)")
        print(f"throughput {told['throughput_ratio']:.2f} of torch.save and fsync (limit 0.8)")
        print(f"steps take {told['step_inflation']:.2f} times as long while a save is written")
        share = told["peak_extra_bytes"] / told["state_bytes"]
        print(f"verifying what is read adds {told['verified_share']:.0%} to a load from memory (limit 10 %)")
        print(f"loading is {told['load_ratio']:.2f} times as fast as torch.load")
        print(
            f"{told['small_tensors']} small tensors: {told['small_save_ratio']:.1f} times torch.save's time,", end=" "
        )
        print(f"{told['small_load_ratio']:.1f} times torch.load's")
        print(f"peak memory {share:.2f} of the state above a save that training waits for (limit 1.2)")
    if asked.save:
        keep(RESULTS, told)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
