"""Training from stored latents is the training that encodes live, and nothing stored is ever stale."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import children
import pyarrow.compute as pc

from reelworks.encoders.store import EncodedStore
from reelworks.run import events
from reelworks.run.folder import RunFolder

Recipe = dict[str, Any]
FIXED = {"num_workers": 0, "clip_start": "start"}


def losses(recipe: Recipe) -> list[tuple[float, float]]:
    """Train a recipe, and return loss and gradient norm of its steps with the losses of its validations."""
    assert children.train(recipe) == [0], children.output(recipe)
    file = RunFolder(Path(recipe["output"])).events_file
    steps = [(e["loss"], e["grad_norm"]) for e in events.read(file, "step")]
    return steps + [(e["loss"], 0.0) for e in events.read(file, "validation")]


def stored_kinds(folder: Path) -> dict[str, int]:
    counts = pc.value_counts(EncodedStore.open(folder).table().column("kind"))
    return {c["values"]: c["counts"] for c in counts.to_pylist()}


def test_losses_from_the_store_are_those_of_live_encoding(tiny: Callable[..., Recipe], tmp_path: Path) -> None:
    objective = {"caption_dropout": 0.3}
    live = losses(tiny("live", data=FIXED, objective=objective))
    stored = losses(tiny("stored", data=FIXED, objective=objective, encode={"store": True}))
    assert stored == live
    assert stored_kinds(tmp_path / "encoded")["latent"] == 17
