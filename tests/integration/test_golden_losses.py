"""Twenty steps of two models, against the losses that a former version had: a refactoring changes no number.

The file is written anew by `REELWORKS_WRITE_GOLDEN=1 pytest tests/integration/test_golden_losses.py`, in a commit of
its own with the reason. Another kind of CPU rounds sums in another order, hence the tolerance; on the machine that
wrote the file the losses are equal to the last bit.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import children
import pytest
import tiny_families
import torch

from reelworks.recipe import recipe_file
from reelworks.run import events
from reelworks.run.folder import RunFolder

FOLDER = Path(__file__).parents[1] / "golden" / "losses"
STEPS = 20
IN_PIXELS = {
    "model": {"name": "stdit3-tiny"},
    "autoencoder": {"name": "pixel", "mean": -0.55, "std": 0.45},
    "objective": {"timestep_shift": 10.0, "prediction": "sample"},
    "text_encoder": {"name": "hashed"},
}


def recipe_of(name: str, tiny: Any, place: Path) -> dict[str, Any]:
    settings = {
        "train": {"max_steps": STEPS},
        "validation": {"every_steps": STEPS},
        "checkpoints": {"every_steps": STEPS},
    }
    if name == "pixels":
        made = tiny(**settings)
        for key in ("model", "autoencoder", "text_encoder"):
            made.pop(key)
        return made | {key: made.get(key, {}) | value for key, value in IN_PIXELS.items()}
    torch.manual_seed(0)  # of weights that are drawn where a file has none
    family = tiny_families.write(name, place, expand_timesteps=True)
    # Every caption is left out, since a tokenizer that is trained anew cuts words otherwise each time.
    settings |= {"objective": {"caption_dropout": 1.0}, "validation": {"split": 0.0}}
    return tiny(**settings) | tiny_families.recipe_of(name, family)


@pytest.mark.parametrize("name", ["pixels", "wan-tiny"])
def test_the_losses_are_those_of_before(name: str, tiny: Any, tmp_path: Path) -> None:
    recipe = recipe_of(name, tiny, tmp_path / "family")
    recipe_file.parse(recipe)
    assert children.train(recipe) == [0], children.output(recipe)
    run = RunFolder(tmp_path / "run")
    found = {
        "loss": [e["loss"] for e in events.read(run.events_file, "step")],
        "grad_norm": [e["grad_norm"] for e in events.read(run.events_file, "step")],
        "validation": [e["loss"] for e in events.read(run.events_file, "validation")],
        "plans": [e["plan"] for e in events.read(run.events_file, "epoch")],
    }
    assert len(found["loss"]) == STEPS
    file = FOLDER / f"{name}.json"
    if os.environ.get("REELWORKS_WRITE_GOLDEN"):
        file.write_text(json.dumps(found, indent=1) + "\n")
    golden = json.loads(file.read_text())
    assert found["plans"] == golden["plans"]
    for curve in ("loss", "grad_norm", "validation"):
        assert found[curve] == pytest.approx(golden[curve], rel=1e-4), curve
