"""Data-parallel training in processes that this program spawns: each gets the dataset, and makes its own loader.

python examples/spawned_processes.py FOLDER --processes 2 --steps 4
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import reelworks as rw


def train(rank: int, processes: int, dataset: rw.Dataset, steps: int) -> None:
    """Train a small autoencoder as one of the processes; the dataset was pickled on its way here."""
    dist.init_process_group("gloo", rank=rank, world_size=processes)
    torch.manual_seed(0)
    # Made after the process group, which tells it its rank.
    loader = rw.Loader(dataset, micro_batches_per_step=2)
    model = nn.Sequential(nn.Conv3d(3, 16, 3, padding=1), nn.SiLU(), nn.Conv3d(16, 3, 3, padding=1))
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    while loader.step < steps:
        for step in loader:
            for micro_batch in step:
                x = micro_batch.frames.permute(0, 4, 1, 2, 3).float() / 127.5 - 1
                losses_B = (wrapped(x) - x).square().mean(dim=(1, 2, 3, 4))
                ((losses_B * micro_batch.loss_weight).sum() * processes).backward()
            optimizer.step()
            optimizer.zero_grad()
            if rank == 0:
                print(f"step {step.number} epoch {step.epoch}: {step.valid} clips", flush=True)
            if step.number == steps:
                break
    loader.close()
    dist.destroy_process_group()


def main() -> None:
    """Scan the folder once, and spawn the processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--output", type=Path, default=Path("runs/spawned"))
    args = parser.parse_args()
    entry = rw.BucketEntry("32px", num_frames=[1, 5], batch_size=[4, 2])
    table = rw.BucketTable.from_entries([entry], geometry=rw.Geometry((1, 1, 1), (1, 4, 4)))
    dataset = rw.Dataset(rw.Catalog.scan(args.folder, to=args.output / "catalog"), table, seed=42)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    spawn = multiprocessing.get_context("spawn").Process
    spawned = [spawn(target=train, args=(rank, args.processes, dataset, args.steps)) for rank in range(args.processes)]
    for process in spawned:
        process.start()
    for process in spawned:
        process.join()
    sys.exit(max(abs(process.exitcode or 0) for process in spawned))


if __name__ == "__main__":
    main()
