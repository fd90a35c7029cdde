"""Pairs of clips from files to a trained LoRA, live and from stored latents."""

from __future__ import annotations

import math

import children
import numpy as np
import pytest
import tiny_recipe
from PIL import Image

from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder

SIZE = (32, 48)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Six pictures, and a worse one for all but the last."""
    folder = tmp_path_factory.mktemp("pairs")
    generator = np.random.default_rng(0)
    for kind in ("clips", "worse"):
        (folder / kind).mkdir()
        for i in range(6 if kind == "clips" else 5):
            Image.fromarray(generator.integers(0, 256, (*SIZE, 3), dtype=np.uint8)).save(folder / kind / f"{i}.png")
            (folder / kind / f"{i}.txt").write_text(f"picture {i}", encoding="utf-8")
    return folder


def trained(pictures, output, **changes):
    """Train on the pairs, and return the loss and the gradient's norm of each step."""
    pairs = {"path": str(pictures / "clips"), "rejected": str(pictures / "worse")}
    tables = {"lora": {"rank": 2, "targets": "blocks"}, "objective": {"dpo_beta": 100.0}}
    tables |= {"text_encoder": {"pooled_dim": 8}, "train": {"max_epochs": 4, "learning_rate": 0.01}}
    entry = [{"resolution": "32x48", "num_frames": 1, "batch_size": 3}]
    recipe = tiny_recipe.of_family("wan-tiny", output, pairs, bucket=entry, **tables | changes)
    assert children.train(recipe) == [0], children.output(recipe)
    return [(e["loss"], e["grad_norm"]) for e in events.read(RunFolder(output).events_file, "step")]


@pytest.mark.slow
def test_stored_pairs_train_as_live_ones_do(pictures, tmp_path):
    """Losses begin at log 2 and are the same from the store; a clip without a rejected one is left out by name."""
    live = trained(pictures, tmp_path / "live")
    assert live[0][0] == pytest.approx(math.log(2), rel=1e-4)
    assert live[-1][0] < live[0][0]
    assert all(norm > 0 for _, norm in live)
    assert trained(pictures, tmp_path / "stored", encode={"store": True}) == live
    left_out = (tmp_path / "live/plan/summary.json").read_text(encoding="utf-8")
    assert "no rejected" in left_out
    assert "worse/5.*" in left_out
