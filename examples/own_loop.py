"""A training loop in plain PyTorch on footage of every shape, which may go on with another number of processes.

    torchrun --nproc-per-node 2 examples/own_loop.py FOLDER --steps 6
    torchrun --nproc-per-node 1 examples/own_loop.py FOLDER --steps 12     # goes on at step 6, on one process

Each clip of an epoch is trained exactly once, whatever the number of processes before and after.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

import reelworks as rw


class Denoiser(nn.Module):
    """Predicts a velocity from noisy pixels and their time; any network would do."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv3d(4, width, 3, padding=1), nn.SiLU(), nn.Conv3d(width, 3, 3, padding=1))

    def forward(self, x_BCTHW: Tensor, t_B: Tensor) -> Tensor:
        """Predict `[B, 3, T, H, W]`; times in [0, 1000]."""
        time = (t_B / 1000).view(-1, 1, 1, 1, 1).expand(-1, 1, *x_BCTHW.shape[2:])
        predicted: Tensor = self.inner(torch.cat([x_BCTHW, time], dim=1))
        return predicted


def main() -> None:
    """Train to a step, and save every third one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--output", type=Path, default=Path("runs/own-loop"))
    args = parser.parse_args()
    distributed.init_process_group("gloo")
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(0)  # the same weights on every rank

    if rank == 0:
        rw.Catalog.scan(args.folder, to=args.output / "catalog")
    distributed.barrier()
    entry = rw.BucketEntry("32px", num_frames=[1, 5], batch_size=[4, 2])
    table = rw.BucketTable.from_entries([entry], geometry=rw.Geometry((1, 1, 1), (1, 4, 4)))
    dataset = rw.Dataset(rw.Catalog.open(args.output / "catalog"), table, seed=42)
    loader = rw.Loader(dataset, micro_batches_per_step=2, record_to=args.output)  # rank and size from the group

    model = Denoiser()
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    objective = rw.objectives.RectifiedFlow(timestep_sampling="uniform")
    store = rw.CheckpointStore(args.output / "checkpoints", policy=rw.Retention(keep_last=2))
    state = {"model": model, "optimizer": optimizer, "loader": loader}
    if (found := store.load_latest(state)) is not None and rank == 0:
        print(f"goes on at step {found}, epoch {loader.epoch}", flush=True)

    while loader.step < args.steps:
        for step in loader:
            total = torch.zeros(())
            for micro_batch in step:
                x0 = micro_batch.frames.permute(0, 4, 1, 2, 3).float() / 127.5 - 1
                draws = torch.Generator().manual_seed(step.number * 1000 + micro_batch.request.index)
                noise = torch.randn(x0.shape, generator=draws)
                _, t_B = objective.times(torch.rand(len(x0), generator=draws), 1.0)
                x_t = objective.noised(x0, noise, t_B, None)
                losses_B = objective.losses(wrapped(x_t, t_B), x_t, x0, noise, t_B, None)
                loss = (losses_B * micro_batch.loss_weight).sum()
                torch.autograd.backward(loss * world_size)  # since DDP takes the mean over the ranks
                total += loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            distributed.all_reduce(total)
            if rank == 0:
                print(f"step {step.number} epoch {step.epoch}: {step.valid} clips, loss {total:.5f}", flush=True)
            if step.number % 3 == 0 or step.number == args.steps:
                store.save(step.number, state)
            if step.number == args.steps:
                break
    loader.close()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
