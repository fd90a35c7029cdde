"""Condition frames: frames that a clip begins with, and clips that continue each other.

They are not changed by sampling, and a mask marks them for the model as in training.

Legend: T frames, H height, W width, C channels, N latent frames.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reelworks.core.arrays import Frames
from reelworks.core.errors import UserError
from reelworks.core.shape import Geometry, Shape
from reelworks.data.catalog import sources
from reelworks.data.catalog.sources import SOURCES, sound_of
from reelworks.data.media import decode, decode_pool, formats, probe, sound
from reelworks.data.media.config import DataConfig
from reelworks.data.media.decode import AtRate, Request
from reelworks.data.media.formats import ProbeError
from reelworks.data.media.framing import FILTERS
from reelworks.data.media.probe import Probe
from reelworks.data.media.reading import MediaError
from reelworks.models import components
from reelworks.models.family import Companions, Conditioning
from reelworks.training.encoding.encoders import FrozenEncoders
from reelworks.training.recipe.dataset import sound_spec
from reelworks.training.recipe.recipe import Recipe

WHITE = 255
_LAST = math.nextafter(1.0, 0.0)  # as a draw in [0, 1): the last possible first frame


@dataclass(frozen=True)
class Conditions:
    """Condition frames of a generation."""

    reference: Frames | None = None  # `[T, H, W, 3]` uint8, which the clip begins with
    loop: int = 1  # clips to join; each but the first begins with the last frames of the previous one
    condition_frames: int = 17  # number of those last frames
    last_frame: Frames | None = None  # `[1, H, W, 3]` uint8, which the clip ends with
    inpaint: Frames | None = None  # `[T, H, W, 3]` uint8, of which the black areas of a mask are kept
    sound: NDArray[np.int16] | None = None  # `[S, channels]`, for which the picture is generated

    def check(self, geometry: Geometry, shape: Shape, conditioning: Conditioning) -> None:
        """Refuse condition frames that leave nothing to generate or whose latents do not fit those of the clip."""
        self._check_joined()
        if conditioning.companions.control_parts:
            self._check_parts(shape)
            return
        if self.inpaint is not None:
            raise UserError(
                "this model does not know which parts of a clip are kept",
                code="conditions-not-taken",
                field="--inpaint",
                remedy="leave it out, or use a model that takes a mask, such as wan-2.1-vace-1.3b",
            )
        self._check_last_frame(geometry, shape, conditioning)
        if conditioning.needs_first_frame and shape.num_frames > 1:
            self._check_first_frame()
            return
        if not conditioning.frames and (self.loop > 1 or self.reference is not None):
            raise UserError(
                "this model cannot continue frames: it takes no condition frames",
                code="conditions-not-taken",
                field="--reference, --loop",
                remedy="leave them out, or use a model that was trained with condition frames, such as stdit3",
            )
        if self.loop > 1:
            _check(self.condition_frames, geometry, shape, "--condition-frames")
        if self.reference is not None:
            _check(len(self.reference), geometry, shape, "--condition-frames, for --reference")

    def _check_parts(self, shape: Shape) -> None:
        """Refuse given frames that leave nothing to generate, and joined clips that would all end alike."""
        shared = self.condition_frames if self.loop > 1 else 0
        first = max(shared, 0 if self.reference is None else len(self.reference))
        if first and first + (self.last_frame is not None) >= shape.num_frames:
            raise _nothing_left(shape, "--condition-frames", first)

    def _check_joined(self) -> None:
        given = [self.last_frame, self.inpaint, self.sound]
        if self.loop > 1 and any(each is not None for each in given):
            raise UserError(
                "each of the joined clips would have the same given frames or sound",
                code="condition-invalid",
                field="--loop",
                value=self.loop,
                remedy="leave it out, or leave out --last-frame, --inpaint and --sound",
            )

    def _check_last_frame(self, geometry: Geometry, shape: Shape, conditioning: Conditioning) -> None:
        needed = conditioning.shown.last and shape.num_frames > 1
        if self.last_frame is None:
            if needed:
                raise UserError(
                    "this model makes clips from their first and last frames",
                    code="condition-invalid",
                    field="--last-frame",
                    remedy="name a picture for the last one",
                )
            return
        if not needed and not (conditioning.frames and shape.num_frames > 1):
            raise UserError(
                "this model cannot end with a frame",
                code="condition-invalid",
                field="--last-frame",
                remedy="leave it out, or use a model that takes a last frame",
            )
        first = 0 if self.reference is None else geometry.latent(replace(shape, num_frames=len(self.reference)))[0]
        if not needed and first + 1 >= geometry.latent(shape)[0]:
            raise _nothing_left(shape, "--last-frame", None)

    def _check_first_frame(self) -> None:
        if self.reference is None:
            problem, remedy = "this model makes clips from their first frame", "name a picture for it"
        elif len(self.reference) > 1 or (self.loop > 1 and self.condition_frames > 1):
            problem, remedy = "this model takes only one condition frame", "add --condition-frames 1"
        else:
            return
        raise UserError(problem, code="condition-invalid", field="--reference", remedy=remedy)


def _nothing_left(shape: Shape, field: str, value: int | None) -> UserError:
    return UserError(
        f"nothing is left of {shape.num_frames} frames to generate",
        code="condition-invalid",
        field=field,
        value=value,
        remedy="give fewer frames",
    )


def _check(num_frames: int, geometry: Geometry, shape: Shape, field: str) -> None:
    chunk = geometry.chunk_frames or 1
    if num_frames >= shape.num_frames:
        raise _nothing_left(shape, field, num_frames)
    if num_frames != 1 and num_frames % chunk:
        # A latent frame within a chunk covers other frames than one of a chunk of its own.
        problem, remedy = f"this autoencoder encodes {chunk} frames together", f"use 1 or {chunk}"
    elif not geometry.accepts_frames(num_frames):
        problem, remedy = geometry.frame_words, f"use {geometry.nearest_frames(num_frames)}"
    else:
        return
    raise UserError(problem, code="condition-invalid", field=field, value=num_frames, remedy=remedy)


def read(path: Path, shape: Shape, condition_frames: int, config: DataConfig, option: str = "--reference") -> Frames:
    """Read a picture, or the last frames of a clip, resized to `shape`."""
    wanted = replace(shape, num_frames=condition_frames)
    with _opening(path, option, wanted):
        return _load(path, wanted, option, config, first_frame_draw=_LAST)


def companions(
    files: Mapping[str, str], shape: Shape, prefix: str, recipe: Recipe, fps: float
) -> dict[str, NDArray[Any]]:
    """Read files of companions by kind, which options or keys with a prefix name, and the sounds of sources.

    As in training, sources of another aspect ratio than the shape's have sizes of their own if the recipe's model takes
    several, and perhaps pictures one size; or they are single pictures that are shown whole on white, if it takes them as
    frames. Sounds are as long as the clip at most.
    """
    multiple = components.source_multiple(recipe.model, recipe.autoencoder)
    taken = components.conditioning(recipe.model).companions
    found = dict[str, NDArray[Any]]()
    for kind, file in files.items():
        path, option = Path(file), prefix + kind.partition("-")[0]
        if kind in SOURCES and taken.sounds and (heard := _sound_of(path, shape, option, recipe, fps)) is not None:
            found[sound_of(kind)] = heard
        if formats.is_sound(path.name):
            _require_sounds(path, option, taken)
            continue
        wanted, whole = shape, kind in SOURCES and taken.sources_as_frames
        if whole:
            wanted = replace(shape, num_frames=1)
        elif kind in SOURCES and multiple is not None:
            is_image = path.suffix.lower() in formats.IMAGE_EXTENSIONS
            wanted = _own_shape(path, shape, option, multiple, taken.picture_side if is_image else None)
        found[kind] = companion(path, wanted, option, as_read(recipe, fps), whole=whole, nearest=kind == "mask")
    if found.keys() & set(sources.SOUNDS) and not found.keys() & set(SOURCES):
        raise UserError(
            "the sources are sounds alone",
            code="companion-mismatch",
            field=f"{prefix}source",
            remedy="name a picture or a clip beside them",
        )
    return found


def _require_sounds(path: Path, option: str, taken: Companions) -> None:
    if option.endswith("source") and taken.sounds:
        return
    raise UserError(
        "this is a sound, which the model does not take",
        code="conditions-not-taken",
        field=option,
        value=str(path),
        remedy="name a picture or a clip, or use a model whose sources may be sounds, such as minimax-h3-ref-sound",
    )


def _sound_of(path: Path, shape: Shape, option: str, recipe: Recipe, fps: float) -> NDArray[np.int16] | None:
    """Read the sound of a source, or one alone; None if it has none."""
    measured, spec = _measured(path, option, shape), sound_spec(recipe)
    assert spec is not None, "a model with sound has it in its recipe"
    if not measured.sound:
        return None
    spec = replace(spec, frame_rate=fps)
    samples = spec.most_samples(shape.num_frames)
    request = (
        spec.request_alone(path, min(samples, spec.samples_of(measured.duration_seconds)))
        if measured.kind == "sound"
        else spec.request(Request(path, is_image=False, shape=shape), samples)
    )
    with _opening(path, option, shape):
        return decode_pool.load(request)


def _measured(path: Path, option: str, shape: Shape) -> Probe:
    with _opening(path, option, shape):
        return decode_pool.within_limit(probe.probe, path)


def _own_shape(path: Path, shape: Shape, option: str, multiple: tuple[int, int], shorter: int | None) -> Shape:
    size = _measured(path, option, shape)
    ratio = int(sources.ratios(size.width, size.height, shape.width, shape.height))
    return sources.own_shape(shape, ratio, multiple, shorter)


def read_sound(path: Path, recipe: Recipe, num_frames: int, fps: float) -> NDArray[np.int16]:
    """Read the sound for a clip of so many frames, as the recipe's model takes it.

    Raises:
        UserError: The model takes no sound, or the file cannot be read or has none.
    """
    spec = sound_spec(recipe)
    if spec is None:
        raise UserError(
            "this model takes no sound",
            code="conditions-not-taken",
            field="--sound",
            value=str(path),
            remedy="leave it out, or use a model that was trained with sound, such as ltx-2-sound",
        )
    spec = replace(spec, frame_rate=fps)
    try:
        return decode_pool.within_limit(sound.load_track, spec.request_alone(path, spec.samples(num_frames)))
    except MediaError as error:
        raise UserError(
            f"its sound cannot be read ({error})",
            code="condition-unreadable",
            field="--sound",
            value=str(path),
            remedy="name a file of sound, or a video with sound, that opens in a player",
        ) from error


def as_read(recipe: Recipe, fps: float) -> DataConfig:
    """Return how given clips are read: at the rate of the generated one if training leaves out frames, or else each frame."""
    rate = None if recipe.data.frame_rate is None and recipe.data.frame_interval == 1 else fps
    return recipe.data.model_copy(update={"fps": rate, "frame_interval": 1})


def companion(path: Path, shape: Shape, option: str, config: DataConfig, **how: Any) -> Frames:
    """Read a picture, repeated for all frames, or a clip from its start, resized to `shape`; `how` has values of a `Request`."""
    with _opening(path, option, shape):
        frames = _load(path, shape, option, config, **how)
    return np.repeat(frames, shape.num_frames // len(frames), axis=0)


def _load(path: Path, shape: Shape, option: str, config: DataConfig, **how: Any) -> Frames:
    """Read a picture as one frame, or frames of a clip that lie as far apart in time as those that are generated."""
    is_image = path.suffix.lower() in formats.IMAGE_EXTENSIONS
    if is_image:
        shape = replace(shape, num_frames=1)
    elif shape.num_frames > 1:
        own = _measured(path, option, shape)
        how["step"] = float(decode.frame_step(own.fps, config, own.variable_fps))
        if config.frame_rate is not None and own.variable_fps:
            count = decode.frames_available(np.array(own.num_frames), own.fps, config, variable=True)
            how["at_rate"] = AtRate(config.frame_rate, int(count))
    red, green, blue = config.alpha_color
    how["alpha_color"] = (red, green, blue)
    return decode_pool.load(Request(path, is_image, shape, resize=FILTERS[config.resize], **how))


@contextmanager
def _opening(path: Path, option: str, shape: Shape) -> Iterator[None]:
    try:
        yield
    except (OSError, ProbeError, MediaError) as error:
        remedy = "name a picture" + (", or a longer clip" if shape.num_frames > 1 else "")
        if not path.is_file():
            remedy = "name a file that is there"
        problem, value = str(error), str(path)
        raise UserError(problem, code="condition-unreadable", field=option, value=value, remedy=remedy) from error


def kept(conditions: Conditions, reference: Frames | None, mask: Frames | None, shape: Shape) -> tuple[Frames, Frames]:
    """Return a clip of which parts are kept, and the mask, white where it is made anew, with its given frames."""
    size = (shape.num_frames, shape.height, shape.width, 3)
    clip = np.zeros(size, np.uint8) if conditions.inpaint is None else conditions.inpaint.copy()
    made = np.full(size, WHITE, np.uint8) if mask is None else mask.copy()
    if reference is not None:
        clip[: len(reference)], made[: len(reference)] = reference, 0
    if conditions.last_frame is not None:
        clip[-1:], made[-1:] = conditions.last_frame, 0
    return clip, made


def give(
    encoder: FrozenEncoders, noise_BCNHW: Tensor, first: Frames | None, last: Frames | None, num_frames: int
) -> tuple[Tensor, Tensor]:
    """Put latents of given frames at the ends of noise; also return `[B, N]`: 0 for them, 1 for those to generate.

    The last frame stands still for as long as its latent frame, as at the end of a clip of that frame alone.
    """
    latent_BCNHW, ratio_BN = noise_BCNHW.clone(), noise_BCNHW.new_ones(len(noise_BCNHW), noise_BCNHW.shape[2])
    if first is not None:
        given = encoder.latents(torch.from_numpy(np.array(first))[None])
        count = given.shape[2]
        latent_BCNHW[:, :, :count], ratio_BN[:, :count] = given, 0
    if last is not None:
        still = encoder.latents(torch.from_numpy(np.repeat(last, num_frames, axis=0))[None])
        latent_BCNHW[:, :, -1:], ratio_BN[:, -1] = still[:, :, -1:], 0
    return latent_BCNHW, ratio_BN


def join(make: Callable[[Frames | None], Frames], conditions: Conditions) -> Frames:
    """Make clips one after the other and concatenate them without the frames that they share."""
    joined = make(conditions.reference)
    for _ in range(conditions.loop - 1):
        following = make(joined[-conditions.condition_frames :])
        joined = np.concatenate([joined, following[conditions.condition_frames :]])
    return joined
