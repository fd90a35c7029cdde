"""What would an epoch do? Scan a folder, plan it, and look, without a model, a GPU or torch.

    python examples/plan_only.py FOLDER

Prints how many optimizer steps an epoch has on 8 ranks, how long ranks would wait for one another, how many clips each
bucket has, and how many stay out, by reason.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import reelworks as rw


def main() -> None:
    """Plan the clips of a folder for 8 ranks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--catalog", type=Path, default=Path("catalog"))
    args = parser.parse_args()

    catalog = rw.Catalog.scan(args.folder, to=args.catalog)
    entries = [
        rw.BucketEntry("64px", num_frames=[1, 5], batch_size=[8, 2]),
        rw.BucketEntry("32px", num_frames=[1, 5, 9], batch_size=[16, 8, 4]),
    ]
    # A video autoencoder that shrinks 4 frames and 8 × 8 pixels to one latent, and patches of 2 × 2 latents.
    geometry = rw.Geometry(stride=(4, 8, 8), patch=(1, 2, 2), frame_rule=(4, 1))
    table = rw.BucketTable.from_entries(entries, geometry=geometry, incomplete_batch="partial")
    dataset = rw.Dataset(catalog, table, seed=42)

    for epoch in range(2):
        plan = rw.plan(dataset, micro_batches_per_step=8, world_size=8, epoch=epoch)
        print(f"epoch {epoch}: {plan.steps} steps of {plan.clips} clips, ranks wait {plan.imbalance:.0%}")
    for name, clips in sorted(plan.buckets.items()):
        print(f"  {name}: {clips} clips")
    for reason, clips in plan.rejected.by_reason().items():
        print(f"  left out, {reason}: {clips} clips, such as {plan.rejected.paths(reason)[0]}")


if __name__ == "__main__":
    main()
