"""What sd-scripts and musubi-tuner do with each clip, beside what their own code did with the same sizes.

The golden numbers come from the trainers' dataset classes, which were run on files of these sizes and lengths; each file says
which version they are of.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from reelworks.annexes.imports.clip import Clip
from reelworks.annexes.imports.draft import FormerSettings
from reelworks.annexes.imports.former import FormerEpoch
from reelworks.annexes.imports.kohya import areas
from reelworks.annexes.imports.kohya.levels import FormerDataset
from reelworks.annexes.imports.musubi import clips as musubi_clips
from reelworks.annexes.imports.musubi.musubi import MUSUBI
from reelworks.annexes.imports.sd_scripts import clips as sd_clips
from reelworks.annexes.imports.sd_scripts.sd_scripts import SD_SCRIPTS

GOLDEN = Path(__file__).parents[2] / "golden" / "imports"
SD: dict[str, Any] = json.loads((GOLDEN / "sd-scripts.json").read_text())
MUSUBI_TUNER: dict[str, Any] = json.loads((GOLDEN / "musubi-tuner.json").read_text())
DATASET = FormerDataset(("datasets.0.", "general."))


def picture(path: str, width: int = 512, height: int = 512, dataset: int = 0, caption: str | None = "a") -> Clip:
    return Clip(dataset, path, width, height, 1, 0.0, True, caption)


def video(path: str, frames: int, dataset: int = 0, caption: str | None = "a") -> Clip:
    return Clip(dataset, path, 64, 64, frames, 16.0, False, caption)


def uses(epoch: FormerEpoch) -> list[float]:
    return [use.times for use in epoch.uses]


@pytest.mark.parametrize("case", SD["cases"], ids=lambda case: case["name"])
def test_sd_scripts_sizes_and_batches(case: dict[str, Any]) -> None:
    settings = FormerSettings(
        {
            "datasets.0.subsets.0.image_dir": "x",
            "datasets.0.subsets.0.num_repeats": case["repeats"],
            "datasets.0.resolution": case["res"],
            "datasets.0.batch_size": case["batch"],
            "datasets.0.enable_bucket": case["enable"],
            "datasets.0.bucket_no_upscale": case.get("noup", False),
            "datasets.0.min_bucket_reso": case.get("lo", 256),
            "datasets.0.max_bucket_reso": case.get("hi", 1024),
            "datasets.0.bucket_reso_steps": case.get("step", 64),
        }
    )
    sizes = [(width, height) for width, height in SD["sizes"]]
    buckets = sd_clips.buckets_of(settings, DATASET)
    assert [list(size) for size in areas.choose_all(buckets, sizes) if size] == [
        each for each in case["chosen"] if each
    ]
    clips = [picture(f"{n:03}.png", *size) for n, size in enumerate(sizes)]
    epoch = SD_SCRIPTS.former_epoch(settings, clips)
    assert epoch is not None
    assert uses(epoch) == [case["repeats"]] * len(clips)
    assert f"an epoch is {case['batches']} batches of " in epoch.rules[0]


@pytest.mark.parametrize("case", SD["regularisation"], ids=str)
def test_sd_scripts_regularisation_pictures_are_used_or_repeated(case: dict[str, Any]) -> None:
    (subjects, repeats), (regular, own) = case["subjects"], case["regular"]
    settings = FormerSettings(
        {
            "datasets.0.resolution": 512,
            "datasets.0.batch_size": 2,
            "datasets.0.subsets.0.image_dir": "x",
            "datasets.0.subsets.0.num_repeats": repeats,
            "datasets.0.subsets.1.image_dir": "y",
            "datasets.0.subsets.1.num_repeats": own,
            "datasets.0.subsets.1.is_reg": True,
        }
    )
    clips = [picture(f"{n:03}.png") for n in range(subjects)] + [
        picture(f"{n:03}.png", dataset=1) for n in range(regular)
    ]
    epoch = sd_clips.epoch(settings, clips)
    assert uses(epoch)[subjects:] == case["times"]
    assert f"an epoch is {case['batches']} batches" in epoch.rules[0]
    spare = [use.reason for use in epoch.uses if use.times == 0]
    assert all("regularisation" in reason for reason in spare)


def test_sd_scripts_holds_out_the_same_pictures() -> None:
    case = SD["validation"]
    settings = FormerSettings(
        {
            "datasets.0.subsets.0.image_dir": "x",
            "datasets.0.validation_split": case["split"],
            "datasets.0.validation_seed": case["seed"],
        }
    )
    clips = [picture(f"{n:03}.png") for n in range(case["pictures"])]
    epoch = sd_clips.epoch(settings, clips)
    assert [clip.path for clip, use in zip(clips, epoch.uses, strict=True) if use.times] == case["trained"]


def test_sd_scripts_reads_pictures_of_the_folder_itself() -> None:
    settings = FormerSettings({"datasets.0.subsets.0.image_dir": "x"})
    clips = [picture("a.png"), picture("b/c.png"), picture("d.tiff"), video("e.mp4", 30)]
    reasons = [use.reason for use in sd_clips.epoch(settings, clips).uses]
    assert reasons == ["", sd_clips._BELOW, sd_clips._FORMAT, sd_clips._VIDEO]


@pytest.mark.parametrize("case", MUSUBI_TUNER["cases"], ids=lambda case: case["name"])
def test_musubi_sizes(case: dict[str, Any]) -> None:
    settings = FormerSettings(
        {
            "datasets.0.resolution": case["resolution"],
            "datasets.0.enable_bucket": case["enable_bucket"],
            "datasets.0.bucket_no_upscale": case["bucket_no_upscale"],
        }
    )
    sizes = [(width, height) for width, height in MUSUBI_TUNER["sizes"]]
    buckets = musubi_clips.buckets_of(settings, DATASET, videos=False)
    assert [list(size or (0, 0)) for size in areas.choose_all(buckets, sizes)] == case["chosen"]


@pytest.mark.parametrize("case", MUSUBI_TUNER["videos"], ids=str)
def test_musubi_parts_of_videos(case: dict[str, Any]) -> None:
    own = {key: value for key, value in case.items() if key != "parts"}
    values = {"datasets.0.video_directory": "x", "datasets.0.resolution": 64, "script": "wan_train_network.py"}
    settings = FormerSettings(values | {f"datasets.0.{key}": value for key, value in own.items()})
    clips = [video(f"v{frames:03}.mp4", frames) for frames in MUSUBI_TUNER["frames"]]
    parts = [sorted(musubi_clips._parts_of(settings, DATASET, clip)) for clip in clips]
    assert parts == case["parts"]
    epoch = MUSUBI.former_epoch(settings, clips)
    assert epoch is not None
    assert uses(epoch) == [len(each) for each in case["parts"]]
    lost = Counter(use.reason for use in epoch.uses if not use.times)
    assert set(lost) <= {musubi_clips._SHORT}


def test_musubi_reads_one_kind_with_captions_and_one_file_of_a_name() -> None:
    settings = FormerSettings({"datasets.0.image_directory": "x", "datasets.0.num_repeats": 3})
    clips = [picture("a.png"), picture("a.jpg"), picture("b.png", caption=None), picture("c/d.png"), video("e.mp4", 9)]
    epoch = musubi_clips.epoch(settings, clips)
    reasons = [musubi_clips._NO_CAPTION, musubi_clips._BELOW, musubi_clips._OTHER_KIND]
    assert [use.reason for use in epoch.uses] == ["", musubi_clips._SAME_NAME, *reasons]
    assert uses(epoch) == [3, 0, 0, 0, 0]


def test_accounts_of_many_clips_take_little_time() -> None:
    """A hundred thousand different sizes are told in seconds: here a tenth of it."""
    settings = FormerSettings({"datasets.0.subsets.0.image_dir": "x", "datasets.0.enable_bucket": True})
    clips = [picture(f"{n}.png", 200 + n % 997, 300 + n % 877) for n in range(10_000)]
    assert sum(uses(sd_clips.epoch(settings, clips))) == 10_000
