"""How much memory and time an export of weights in shards takes, beside that of the libraries of the field.

`python -m benchmarks.export` writes a state that is made a tensor at a time, as an export reads it from a checkpoint: once by
`models.export.safetensors_file`, once with `huggingface_hub`'s split into shards and `safetensors.torch.save_file` for each of
them, every time in a process of its own. `memory` is the highest resident memory above that before the export, and
`seconds` the median, both with the files made durable.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch import Tensor

from benchmarks._results import keep
from reelworks.core import system
from reelworks.data.checkpoint.safetensors_header import TensorRange
from reelworks.models.export import safetensors_file

RESULTS = Path(__file__).parent / "results" / "export.json"
TENSOR_BYTES = 32 << 20


def entries(total_bytes: int) -> list[TensorRange]:
    """Name the tensors of a state in bfloat16."""
    shape = (TENSOR_BYTES // 2,)
    return [TensorRange(f"block.{i}.weight", torch.bfloat16, shape) for i in range(total_bytes // TENSOR_BYTES)]


def tensors(wanted: list[TensorRange]) -> Iterator[Tensor]:
    """Make each tensor when it is asked for."""
    for i, entry in enumerate(wanted):
        yield torch.full(entry.shape, float(i), dtype=entry.dtype)


def by_ours(folder: Path, wanted: list[TensorRange], shard_bytes: int) -> None:
    safetensors_file.write(folder / "model.safetensors", wanted, tensors(wanted), {"format": "pt"}, shard_bytes)


def by_libraries(folder: Path, wanted: list[TensorRange], shard_bytes: int) -> None:
    """Write as `save_torch_state_dict` does, but with no more than one shard in memory."""
    shapes = {entry.name: torch.empty(entry.shape, dtype=entry.dtype, device="meta") for entry in wanted}
    split = split_torch_state_dict_into_shards(shapes, max_shard_size=shard_bytes)
    source = tensors(wanted)
    for name, keys in split.filename_to_tensors.items():
        shard = {key: next(source) for key in keys}
        save_file(shard, folder / name, metadata={"format": "pt"})
        with (folder / name).open("rb") as file:
            os.fsync(file.fileno())
        del shard
    index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


WAYS = {"ours": by_ours, "libraries": by_libraries}


def one(way: str, total_bytes: int, shard_bytes: int) -> None:
    """Export once and print the peak of memory and the time."""
    wanted = entries(total_bytes)
    with tempfile.TemporaryDirectory() as folder:
        WAYS[way](Path(folder), wanted[:1], shard_bytes)  # so that what is loaded and kept once is there
        before = system.peak_bytes()
        began = time.perf_counter()
        WAYS[way](Path(folder), wanted, shard_bytes)
        seconds = time.perf_counter() - began
    peak = system.peak_bytes()
    print(json.dumps({"memory_mb": round((peak - before) / (1 << 20)), "seconds": round(seconds, 2)}))


def main() -> None:
    """Measure, print, and save if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--shard-mb", type=int, default=500)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--one", choices=list(WAYS), help="export once in this process")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    args = parser.parse_args()
    if args.one:
        return one(args.one, int(args.gb * 1e9), args.shard_mb * 10**6)
    seen: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    command = [
        sys.executable,
        "-m",
        "benchmarks.export",
        "--gb",
        str(args.gb),
        "--shard-mb",
        str(args.shard_mb),
    ]
    for _ in range(args.trials):
        for way, found in seen.items():
            done = subprocess.run(
                [*command, "--one", way], check=True, capture_output=True, text=True, encoding="utf-8"
            )
            found.append(json.loads(done.stdout))
    result: dict[str, Any] = {"gb": args.gb, "shard_mb": args.shard_mb}
    for way, found in seen.items():
        result[way] = {key: statistics.median(trial[key] for trial in found) for key in found[0]}
    pairs = zip(seen["ours"], seen["libraries"], strict=True)
    result["time_ratio"] = round(statistics.median(a["seconds"] / b["seconds"] for a, b in pairs), 2)
    print(json.dumps(result, indent=2))
    if args.save:
        keep(RESULTS, result)
    return None


if __name__ == "__main__":
    main()
