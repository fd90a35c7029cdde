"""How long training waits for a save that is written beside it, and how much slower its steps are meanwhile.

The state is copied into pinned memory before training goes on; `copy_s` is the bare copy of as many bytes there. The first
save also allocates that memory.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import checkpoint
from benchmarks.checkpoint import State
from benchmarks.gpu import machine
from reelworks.data.checkpoint.async_save import Background
from reelworks.data.checkpoint.folder import CheckpointFolder

_SAVES = 4


def rows(_: str, device: str, tiny: bool) -> Iterator[dict[str, Any]]:
    """Yield one row for a state of 8 GB, about that of a LoRA or of half a billion trained weights."""
    count = (100_000_000 if tiny else 8_000_000_000) // checkpoint.TENSOR_BYTES
    values = checkpoint.TENSOR_BYTES // 4
    state: State = {"model": {f"w{i}": torch.randn(values, device=device) for i in range(count)}}
    state_bytes = sum(value.nbytes for value in state["model"].values())
    background = Background()
    step = _a_step(device)
    alone = [_seconds(step, device) for _ in range(20)][5:]
    copied = _copy_seconds(state, device)
    with tempfile.TemporaryDirectory() as folder:
        blocked, written, beside = [], [], list[float]()
        for number in range(_SAVES):
            store = CheckpointFolder(Path(folder, str(number)))
            machine.wait(device)
            began = time.perf_counter()
            background.start(store, 1, state)
            blocked.append(time.perf_counter() - began)
            while background.is_writing:
                beside.append(_seconds(step, device))
            background.finish()
            written.append(time.perf_counter() - began)
            shutil.rmtree(store.root)
    later = statistics.median(blocked[1:])
    yield {
        "state_gb": round(state_bytes / 1e9, 2),
        "copy_s": round(copied, 4),
        "blocked_s": round(later, 4),
        "first_blocked_s": round(blocked[0], 4),
        "blocked_over_copy": round(later / copied, 2),
        "blocked_gb_per_s": round(state_bytes / later / 1e9, 2),
        "save_s": round(statistics.median(written), 2),
        "step_beside_over_alone": round(statistics.median(beside) / statistics.median(alone), 2) if beside else None,
    }


def _copy_seconds(state: State, device: str) -> float:
    """Return the time of a bare copy into warm memory, the fastest of some."""
    values = list(state["model"].values())
    there = [torch.empty(value.shape, dtype=value.dtype, pin_memory=device == "cuda") for value in values]

    def copy() -> None:
        for target, value in zip(there, values, strict=True):
            target.copy_(value, non_blocking=True)

    return min(_seconds(copy, device) for _ in range(_SAVES))


def _a_step(device: str) -> Callable[[], object]:
    """Return work of some milliseconds that the host launches in pieces, as a step is."""
    size = 4096 if device == "cuda" else 512
    weight = torch.randn(size, size, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)

    def step() -> None:
        for _ in range(20 if device == "cuda" else 4):
            weight @ weight

    return step


def _seconds(work: Callable[[], object], device: str) -> float:
    machine.wait(device)
    began = time.perf_counter()
    work()
    machine.wait(device)
    return time.perf_counter() - began
