"""The checkpoint store alone, for a loop that has its own data: whole or absent, verified, kept by rules.

    python examples/checkpoints_only.py FOLDER --steps 40

Kill it whenever you like and give the command again: it goes on from the newest good checkpoint.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import reelworks as rw


def main() -> None:
    """Fit a line, save each fifth step, and keep the last two, the best, and every twentieth."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    policy = rw.Retention(keep_last=2, keep_every=20, keep_best=rw.KeepBest(metric="loss", mode="min"))
    store = rw.CheckpointStore(args.folder, policy=policy)
    begun = store.load_latest({"model": model, "optimizer": optimizer}) or 0
    print(f"begins at step {begun}")
    for step in range(begun + 1, args.steps + 1):
        x = torch.linspace(-1, 1, 32).unsqueeze(1)
        loss = (model(x) - (3 * x + 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            store.save(step, {"model": model, "optimizer": optimizer}, metrics={"loss": loss.item()})
    for info in store.list():
        print(f"step {info.step}: {info.num_bytes} bytes, loss {info.metrics['loss']:.5f}")


if __name__ == "__main__":
    main()
