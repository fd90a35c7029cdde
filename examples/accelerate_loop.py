"""The loader in a loop of Hugging Face Accelerate, whose checkpoints hold its place.

accelerate launch --num_processes 2 examples/accelerate_loop.py FOLDER --steps 6
accelerate launch --num_processes 1 examples/accelerate_loop.py FOLDER --steps 12    # goes on at step 6
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from torch import nn

import reelworks as rw


def main() -> None:
    """Train a small autoencoder of pictures and clips."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--output", type=Path, default=Path("runs/accelerate"))
    args = parser.parse_args()
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(0)

    with accelerator.main_process_first():
        catalog = rw.Catalog.scan(args.folder, to=args.output / "catalog")
    entry = rw.BucketEntry("32px", num_frames=[1, 5], batch_size=[4, 2])
    table = rw.BucketTable.from_entries([entry], geometry=rw.Geometry((1, 1, 1), (1, 4, 4)))
    loader = rw.Loader(
        rw.Dataset(catalog, table, seed=42),
        micro_batches_per_step=2,
        rank=accelerator.process_index,
        world_size=accelerator.num_processes,
    )
    model = nn.Sequential(nn.Conv3d(3, 16, 3, padding=1), nn.SiLU(), nn.Conv3d(16, 3, 3, padding=1))
    # `prepare` returns the loader as it is: it gives each rank its own clips already.
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loader)
    accelerator.register_for_checkpointing(loader)
    saved = args.output / "state"
    if saved.exists():
        accelerator.load_state(str(saved))
        accelerator.print(f"goes on at step {loader.step}, epoch {loader.epoch}")

    while loader.step < args.steps:
        for step in loader:
            for micro_batch in step:
                x = micro_batch.frames.permute(0, 4, 1, 2, 3).float().to(accelerator.device) / 127.5 - 1
                noisy = x + 0.1 * torch.randn_like(x)
                losses_B = (model(noisy) - x).square().mean(dim=(1, 2, 3, 4))
                loss = (losses_B * micro_batch.loss_weight.to(x.device)).sum()
                accelerator.backward(loss * accelerator.num_processes)
            optimizer.step()
            optimizer.zero_grad()
            accelerator.print(f"step {step.number} epoch {step.epoch}: {step.valid} clips")
            if step.number == args.steps:
                break
    accelerator.save_state(str(saved))
    loader.close()
    accelerator.end_training()


if __name__ == "__main__":
    main()
