"""Each picture is trained once an epoch at each resolution that it fills, live and from stored latents, by coverage."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import children
import pytest

from reelworks.data.run.folder import RunFolder
from reelworks.training.coverage import clip_history
from reelworks.training.encoding.store import EncodedStore

ENTRIES = [
    {"resolution": "32px", "num_frames": 1, "batch_size": 3},
    {"resolution": "64px", "num_frames": 1, "batch_size": 2},
]


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.slow
def test_every_picture_is_used_at_every_resolution_once(tiny: Any, footage: Path, tmp_path: Path, store: bool) -> None:
    recipe = tiny(
        bucket=ENTRIES,
        dataset=[{"path": str(footage), "filter": "kind == 'image'", "resolutions": ["32px", "64px"]}],
        buckets={"upscale": True, "max_crop": 0.7},
        encode={"store": store, "folder": str(tmp_path / "encoded")},
        train={"max_epochs": 1},
        validation={"split": 0.0},
    )
    del recipe["train"]["max_steps"]
    assert children.train(recipe, debug=True) == [0]
    uses = Counter(
        (Path(clip["path"]).name, line["shapes"][0])
        for line in children.debug_lines(tmp_path / "run")
        for clip in line["trained"]
    )
    pictures = sorted(path.name for path in footage.glob("picture-*.png"))
    assert Counter(name for name, _ in uses.elements()) == Counter(2 * pictures)
    assert set(uses.values()) == {1}, "at two shapes"
    told = clip_history.cover(RunFolder(tmp_path / "run"))
    assert told.epochs[0].counts["trained"] == 2 * len(pictures)
    if store:
        kinds = EncodedStore.open(tmp_path / "encoded").table().column("kind").to_pylist()
        assert kinds.count("latent") == 2 * len(pictures)
