"""Ray actors that train together: each gets the dataset, and reads its own part of every step.

python examples/ray_actors.py FOLDER --actors 2 --steps 4
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import ray

import reelworks as rw


class Trainer:
    """One of the actors; a real one joins a process group and holds a model."""

    def __init__(self, dataset: rw.Dataset, rank: int, actors: int) -> None:
        # An actor has no RANK and WORLD_SIZE, so both are given.
        self.loader = rw.Loader(dataset, micro_batches_per_step=2, rank=rank, world_size=actors)

    def train(self, state: dict[str, Any] | None, steps: int) -> tuple[list[str], dict[str, Any]]:
        """Read to a step, and return what was read, and the loader's state, which is the same on all actors."""
        if state is not None:
            self.loader.load_state_dict(state)
        lines = []
        while self.loader.step < steps:
            for step in self.loader:
                own = sum(int(micro_batch.is_valid.sum()) for micro_batch in step)
                lines.append(f"step {step.number} epoch {step.epoch}: {step.valid} clips, {own} of them here")
                if step.number == steps:
                    break
        self.loader.close()
        return lines, self.loader.state_dict()


def main() -> None:
    """Train half of the steps with all actors, and the other half with a single one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--output", type=Path, default=Path("runs/ray"))
    args = parser.parse_args()
    entry = rw.BucketEntry("32px", num_frames=[1, 5], batch_size=[4, 2])
    table = rw.BucketTable.from_entries([entry], geometry=rw.Geometry((1, 1, 1), (1, 4, 4)))
    dataset = rw.Dataset(rw.Catalog.scan(args.folder, to=args.output / "catalog"), table, seed=42)
    ray.init(num_cpus=args.actors, include_dashboard=False, log_to_driver=False)
    actor: Any = ray.remote(Trainer)
    state = None
    for actors, steps in ((args.actors, args.steps // 2), (1, args.steps)):
        trainers: list[Any] = [actor.remote(dataset, rank, actors) for rank in range(actors)]
        found = ray.get([trainer.train.remote(state, steps) for trainer in trainers])
        print("\n".join(found[0][0]))
        state = found[0][1]
        for trainer in trainers:
            ray.kill(trainer)
    ray.shutdown()


if __name__ == "__main__":
    main()
