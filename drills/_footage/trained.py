"""Train on odd films, and read the numbers of the frames that the model is given.

Each film has numbers of its own, so that a frame tells which film it is of. A caption names its film. Of each clip in each batch
the frames must be successive ones that the program shows of the film that the caption names, or, at a rate of frames that is asked
for, those that are shown at these times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numbered_frames as drawn
import numpy as np
from numbered_frames import Frames

from drills._footage import program
from drills._footage.all_cases import all_cases
from drills._footage.case import Shop
from drills._footage.program import Shown

_CASES = """
h264_default_avi h264_pyramid_wmv h264_b3_mxf h264_default_mpg hevc_default_avi mpeg4_b2_avi mpeg2_b2_asf xvid_mkv
cut_early_h264_open_ts cut_late_mpeg2_mpg cut_after_mpeg4_mkv segment1_hevc_open_mkv begun_0.3_h264 joined_later_hevc lost_sound_mpeg2
edit_swapped_b3 copied_twice_mp4_avi_mkv streams_thumbnail_first_mov streams_preview_first_mkv turned_180_pixels_1_1_h264_mp4
alpha_vp9_webm fields_tff_mpeg2_mpg same_time_few_plain rate_480_h264_mkv time_wraps_h264 variable_drops_h264_mkv
"""
# At 16 frames a second, whatever the rate of the film.
_AT_A_RATE = """
variable_phone_h264_mp4 variable_slower_vp9_webm variable_faster_h264_mkv variable_frozen_end_h264_mp4 variable_screen_vp8_webm
rate_24000_1001_h264_mkv rate_60000_1001_h264_mp4 h264_default_avi
"""
CASES, AT_A_RATE = tuple(_CASES.split()), tuple(_AT_A_RATE.split())
_FRAMES = 5  # of a clip in a batch
_APART = 72  # numbers from one film's first frame to that of the next
_ROUNDING = 0.003  # seconds, since containers round times to milliseconds


@dataclass(frozen=True)
class Given:
    """A clip as the model was given it."""

    caption: str
    numbers: list[int]


def try_run(names: Sequence[str], folder: Path, *, fps: float | None) -> dict[str, str]:
    """Train on the films of these cases and return what is wrong, by case; "" for those that are right."""
    known = {case.name: case for case in all_cases()}
    films = folder / "films"
    films.mkdir(parents=True)
    shown: dict[str, Shown] = {}
    wrong: dict[str, str] = {}
    for place, name in enumerate(names):
        case = known[name]
        path = films / case.file
        try:
            case.make(Shop(folder / "shop" / name, place * _APART), path)
            shown[name] = program.show(path, stream=case.stream, decoder=case.decoder)
        except program.ProgramError as error:
            path.unlink(missing_ok=True)
            print(f"not made: {name}: {error}", flush=True)
            continue
        path.with_suffix(".txt").write_text(name, encoding="utf-8")
    given = train(_recipe(films, folder / "run", fps))
    for name, right in shown.items():
        mine = [clip.numbers for clip in given if clip.caption == name]
        problems = [_problem(numbers, right, fps) for numbers in mine]
        wrong[name] = "no batch has it" if not mine else next(filter(None, problems), "")
    return wrong


def _problem(numbers: Sequence[int], shown: Shown, fps: float | None) -> str:
    """Return what is wrong about the numbers of a clip's frames."""
    right = drawn.numbers(shown.frames)
    if numbers[0] not in right:
        return f"frames {numbers}, none of its own"
    if fps is None:
        runs = [right[at : at + len(numbers)] for at in range(len(right))]
        return "" if list(numbers) in runs else f"frames {numbers} are not successive"
    if not set(numbers) <= set(right):
        return f"frames {numbers}, not all its own"
    at = [right.index(number) for number in numbers]
    asked = np.arange(len(numbers)) / fps
    ends = np.append(shown.seconds[1:], np.inf)
    earliest, latest = (shown.seconds[at] - asked).max(), (ends[at] - asked).min()
    return "" if earliest <= latest + _ROUNDING else f"frames {numbers} are not shown {1 / fps:.4g} s apart"


def _recipe(films: Path, run: Path, fps: float | None) -> dict[str, Any]:
    """Return a recipe that trains a tiny model for some epochs on whole frames of these films."""
    return {
        "version": 1,
        "output": str(run),
        "seed": 7,
        "dataset": [{"path": str(films)}],
        "bucket": [{"resolution": "96x128", "num_frames": [_FRAMES], "batch_size": [2]}],
        "buckets": {"upscale": True, "aspect_ratios": ["4:3"], "max_crop": 0.5},
        "data": {"num_workers": 0, "max_decode_failures": 1.0} | ({"fps": fps} if fps else {}),
        "model": {"name": "stdit3-tiny", "hidden_size": 32, "depth": 1, "num_heads": 2},
        "autoencoder": {"stride": 8},
        "text_encoder": {"dim": 16, "max_length": 6},
        "precision": {"compute": "float32"},
        "train": {"max_epochs": 3, "threads": 1},
        "validation": {"split": 0.0},
    }


def train(recipe: Mapping[str, Any]) -> list[Given]:
    """Train by a recipe and return the clips of all batches as the model was given them."""
    from reelworks.training.loop.request import TrainRequest
    from reelworks.training.loop.trainer import run
    from reelworks.training.recipe import recipe_file

    given: list[Given] = []
    with _noted(given):
        run(recipe_file.parse(dict(recipe)), TrainRequest())
    return given


@contextmanager
def _noted(given: list[Given]) -> Iterator[None]:
    from reelworks.training.step.examples import ExampleBuilder

    original = ExampleBuilder.build

    def build(self: Any, encoded: Any, objective: Any) -> Any:
        batch = encoded.batch
        clips: Frames = batch.frames.numpy()
        for frames, caption, valid in zip(clips, batch.request.captions, batch.is_valid.tolist(), strict=True):
            if valid:
                given.append(Given(caption, drawn.numbers(frames)))
        return original(self, encoded, objective)

    ExampleBuilder.build = build  # type: ignore[method-assign]
    try:
        yield
    finally:
        ExampleBuilder.build = original  # type: ignore[method-assign]
