"""Train a model whose family lies outside the package: one call makes it known.

    python examples/add_a_model/train.py FOLDER

FOLDER holds pictures with captions beside them. The tiny network is checked first, as every family is, and then
trained for a few steps; `--model auraflow-0.3` and its weights would take its place.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from auraflow.spec import FAMILY

import reelworks as rw
from reelworks.models import registry
from reelworks.testing import contract
from reelworks.training.recipe import recipe_file


def main() -> None:
    """Register the family, check its tiny network, train it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--output", type=Path, default=Path("runs/add-a-model"))
    args = parser.parse_args()

    registry.register(FAMILY)
    contract.check_family("auraflow-tiny")
    print("auraflow-tiny keeps the contract of denoisers")

    recipe = recipe_file.parse(
        {
            "version": 1,
            "output": str(args.output),
            "dataset": [{"path": str(args.folder), "filter": "num_frames == 1"}],
            "bucket": [{"resolution": "32px", "num_frames": 1, "batch_size": 4}],
            "model": {"name": "auraflow-tiny"},
            "data": {"num_workers": 0},
            "train": {"max_steps": args.steps},
        }
    )
    rw.train(recipe)


if __name__ == "__main__":
    main()
