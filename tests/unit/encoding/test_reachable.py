"""What any epoch may reach is what many epochs reach, whatever chance decides there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import prepare_files as files
import pytest

from reelworks.data.schedule.plan import Samples
from reelworks.training.encoding import reachable

ENTRIES = [
    {"resolution": "64px", "num_frames": [1, 9], "batch_size": [3, 2], "keep_prob": 0.5},
    {"resolution": "48px", "num_frames": [1, 5, 9], "batch_size": 2, "keep_prob": [0.5, 0.3, 0.4]},
    {"resolution": "32px", "num_frames": [1, 5], "batch_size": 2},
]
TABLE = {"256px": {1: [0.5, 2], 17: [[0.6, 0.5], 2]}, "192px": {1: [0.5, 2], 17: [0.5, 2], 9: [1.0, 2]}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reachable")
    for number, size in enumerate([(64, 64), (96, 72), (40, 40), (300, 300), (50, 80)]):
        files.picture(path / "data" / f"{number}.png", size=size)
    for number, (frames, size) in enumerate([(20, (96, 96)), (6, (64, 64)), (3, (64, 64)), (20, (300, 300))]):
        files.clip(path / "data" / f"{number}.mp4", num_frames=frames, size=size)
    return path


def places(clips: Samples) -> set[tuple[int, int]]:
    return set(zip(clips.ordinal.tolist(), clips.bucket.tolist(), strict=True))


@pytest.mark.parametrize(
    ("changes", "most_more"),
    [
        ({}, 0),
        pytest.param({"validation": {"split": 0.3}}, 0, marks=pytest.mark.slow),
        # Chance alone does not decide: a batch is merged with others, and what an earlier entry always takes is not known.
        ({"buckets": {"aspect_ratios": ["1:1"], "incomplete_batch": "merge"}}, 9),
        ({"data": {"short_clips": "hold"}}, 9),
        pytest.param(
            {"bucket": [], "buckets": {"opensora": TABLE, "probability": "opensora-1.2"}}, 1, marks=pytest.mark.slow
        ),
        ({"bucket": [], "buckets": {"opensora": TABLE, "probability": "opensora-2.0"}}, 1),
    ],
)
@pytest.mark.quick_cases(1)
def test_it_is_what_many_epochs_reach(folder: Path, changes: dict[str, Any], most_more: int) -> None:
    data = files.opened(files.recipe(folder, **({"bucket": ENTRIES, "buckets": {"aspect_ratios": ["1:1"]}} | changes)))
    many = places(reachable.in_epochs(data, data.plan_spec(2, 1), range(150)))
    possible = places(reachable.in_any_epoch(data))
    assert many <= possible
    assert len(possible) <= len(many) + most_more


def test_uses_of_a_clip_stay_at_their_resolutions(folder: Path) -> None:
    dataset = [{"path": str(folder / "data"), "resolutions": ["64px", "32px"], "repeats": 1.5}]
    data = files.opened(files.recipe(folder, bucket=ENTRIES, buckets={"aspect_ratios": ["1:1"]}, dataset=dataset))
    assert places(reachable.in_any_epoch(data)) == places(reachable.in_epochs(data, data.plan_spec(2, 1), range(150)))
