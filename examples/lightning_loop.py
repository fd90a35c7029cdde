"""The loader in a Lightning `Trainer`, whose checkpoints hold its place.

python examples/lightning_loop.py FOLDER --steps 3
python examples/lightning_loop.py FOLDER --steps 6      # goes on at step 3
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn

import reelworks as rw


class Model(lightning.LightningModule):
    """A small autoencoder; a batch is a step of the loader, with micro-batches of several shapes in it."""

    def __init__(self, loader: rw.Loader) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.loader = loader
        self.network = nn.Sequential(nn.Conv3d(3, 16, 3, padding=1), nn.SiLU(), nn.Conv3d(16, 3, 3, padding=1))

    def training_step(self, step: Any, batch_idx: int) -> Tensor:
        """Do an optimizer step of ours."""
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        optimizer.zero_grad()
        total = torch.zeros((), device=self.device)
        for micro_batch in step:
            x = micro_batch.frames.permute(0, 4, 1, 2, 3).float().to(self.device) / 127.5 - 1
            losses_B = (self.network(x + 0.1 * torch.randn_like(x)) - x).square().mean(dim=(1, 2, 3, 4))
            loss = (losses_B * micro_batch.loss_weight.to(self.device)).sum()
            self.manual_backward(loss * self.trainer.world_size)
            total += loss.detach()
        optimizer.step()
        print(f"step {step.number} epoch {step.epoch}: {step.valid} clips, loss {total:.5f}", flush=True)
        return total

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One optimizer for all."""
        return torch.optim.AdamW(self.network.parameters(), lr=1e-3)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the loader's place in Lightning's checkpoint."""
        checkpoint["loader"] = self.loader.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on from it."""
        self.loader.load_state_dict(checkpoint["loader"])


def main() -> None:
    """Train to a step, and save at the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--output", type=Path, default=Path("runs/lightning"))
    args = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    entry = rw.BucketEntry("32px", num_frames=[1, 5], batch_size=[4, 2])
    table = rw.BucketTable.from_entries([entry], geometry=rw.Geometry((1, 1, 1), (1, 4, 4)))
    loader = rw.Loader(rw.Dataset(rw.Catalog.scan(args.folder, to=args.output / "catalog"), table, seed=42))
    trainer = lightning.Trainer(
        max_steps=args.steps,
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    saved = args.output / "last.ckpt"
    trainer.fit(Model(loader), loader, ckpt_path=str(saved) if saved.exists() else None)
    trainer.save_checkpoint(str(saved))
    loader.close()


if __name__ == "__main__":
    main()
