"""Turn clips of a plan into decode requests and captions; every random choice about a clip is drawn here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from reelworks.core import hash_rng
from reelworks.core.arrays import F64, I64, U64
from reelworks.core.hash_rng import Purpose
from reelworks.core.shape import Shape
from reelworks.data.catalog.config import DatasetConfig
from reelworks.data.catalog.filter_expression import NUMBERS
from reelworks.data.catalog.query import captions, template
from reelworks.data.catalog.sources import ALIGNED, REJECTED, SOURCES, own_shape, sound_of, source_of
from reelworks.data.catalog.store.companions import CompanionMatches
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.loader import part_masks
from reelworks.data.loader.dataset import Dataset
from reelworks.data.loader.part_masks import PartMask
from reelworks.data.media import decode, frame_index
from reelworks.data.media.augment import NO_AUGMENTATION, Augmentation
from reelworks.data.media.decode import AtRate, FrameReader, Request
from reelworks.data.media.framing import FILTERS, CropBox
from reelworks.data.media.pictures import WHITE
from reelworks.data.media.reading import MediaError
from reelworks.data.media.sound import SoundRequest, SoundSpec

_AUGMENTS = ("flip", "rotate_degrees", "jitter_brightness", "jitter_contrast", "jitter_saturation", "jitter_hue")


def clip_hash(data: Dataset, rows: I64, copies: I64, *, epoch: int) -> U64:
    """Return the hashes of an epoch's uses of clips, by index in `data.rows`, by which all about them is drawn.

    `copies` combine `copy` and `repeat_index` of each clip, as `data.schedule.plan.draw_copies` numbers them.
    """
    epochs, copies = data.spec.draw_numbers(epoch, copies)
    return hash_rng.hash64(data.spec.seed, epochs, data.rows.uid[rows], copies)


def decode_requests(
    data: Dataset, rows: I64, words: U64, bucket: int, *, augments: bool = True, decoder: FrameReader | None = None
) -> list[Request]:
    """Return the decode requests of clips, by index in `data.rows`, that are shown in one bucket.

    `words` are their `clip_hash`. `decoder` reads videos in place of PyAV. Without `augments`, as for validation, no clip is flipped, rotated or recoloured.
    """
    config, shape, r = data.spec.data, data.table.buckets[bucket].shape, data.rows
    first, down, across = _draws(data, words)
    red, green, blue = config.alpha_color
    requests = [
        Request(
            path=r.file(row),
            is_image=bool(r.is_image[row]),
            shape=shape,
            step=float(decode.frame_step(float(r.fps[row]), config, bool(r.variable_fps[row]))),
            at_rate=_at_rate(data, row),
            first_frame_draw=float(first[i]),
            crop_draw=(float(down[i]), float(across[i])),
            short_clips=config.short_clips,
            decoder=decoder,
            alpha_color=(red, green, blue),
            first_frame=int(r.first_frame[row]),
            num_frames=int(r.num_frames[row]) if r.is_range[row] or decoder is not None else None,
            measures=Shape(int(r.num_frames[row]), int(r.height[row]), int(r.width[row])) if data.companions else None,
            size=(int(r.height[row]), int(r.width[row])),
            resize=FILTERS[config.resize],
            augmentation=_augmentation(dataset_of_row(data, row), words[i]) if augments else NO_AUGMENTATION,
        )
        for i, row in enumerate(rows.tolist())
    ]
    return [_with_spot(data, r, row, request) for row, request in zip(rows.tolist(), requests, strict=True)]


def _at_rate(data: Dataset, row: int) -> AtRate | None:
    """Return the rate at which a clip is read by time; None for one of constant rate, whose frames are counted."""
    fps = data.spec.data.frame_rate
    return None if fps is None or not data.rows.variable_fps[row] else AtRate(fps, int(data.frames[row]))


def _with_spot(data: Dataset, rows: CatalogRows, row: int, request: Request) -> Request:
    """Add the place of the frames of a long video, if the catalog knows its frame times."""
    if request.num_frames is None and rows.duration_seconds[row] < frame_index.FROM_SECONDS:
        return request
    times = data.frame_index.get(rows.fingerprint[row].as_py())
    if times is None:
        return request
    try:
        return replace(request, frame_ticks=decode.find_ticks(request, times, interlaced=bool(rows.interlaced[row])))
    except MediaError:
        return request  # decoding reports it


def companion_requests(
    data: Dataset, rows: I64, own: Sequence[Request]
) -> dict[str, tuple[Request | SoundRequest | None, ...]]:
    """Return decode requests of companions by kind, with the frames and crops of the clips' `own` requests.

    A request is None where the clip has no companion of the kind. A source that none of the clips has is left out. Sounds
    of sources have names of their own (`data.catalog.sources`).
    """
    by_kind: dict[str, tuple[Request | SoundRequest | None, ...]] = {
        kind: tuple(_of_companion(data, c, row, request) for row, request in zip(rows.tolist(), own, strict=True))
        for kind, c in data.companions.items()
    }
    if (sound := data.spec.sound) is not None and data.spec.source_sounds:
        for kind in [kind for kind in by_kind if kind in SOURCES]:
            pairs = zip(rows.tolist(), own, by_kind[kind], strict=True)
            by_kind[sound_of(kind)] = tuple(_sound_of(sound, data.companions[kind], *pair) for pair in pairs)
    return {k: requests for k, requests in by_kind.items() if source_of(k) not in SOURCES or any(requests)}


def part_masks_of(data: Dataset, words: U64, bucket: int) -> tuple[PartMask | None, ...]:
    """Draw which parts of clips, by their `clip_hash`, are given to the model; none if no strategy has a share."""
    ratios = data.spec.mask_ratios
    if not any(ratio for name, ratio in ratios.items() if name != "identity"):
        return ()
    return part_masks.draw(ratios, data.table.buckets[bucket].shape, hash_rng.extend(words, Purpose.MASK))


def sound_requests(data: Dataset, own: Sequence[Request]) -> tuple[SoundRequest, ...]:
    """Return requests for the sound of clips, by the `own` requests for their frames; none if no sound is read."""
    sound = data.spec.sound
    if sound is None:
        return ()
    return tuple(sound.request(r, sound.samples(r.shape.num_frames), silence=sound.missing == "silent") for r in own)


def _of_companion(data: Dataset, companions: CompanionMatches, row: int, own: Request) -> Request | None:
    at = int(companions.row[row])
    if at < 0 or companions.rows.is_sound[at]:
        return None
    size = (int(companions.rows.height[at]), int(companions.rows.width[at]))
    is_image = companions.rows.kind[at].as_py() == "image"
    if own.at_rate is not None:
        clock = replace(own.at_rate, clock=own.path, clock_id=data.rows.fingerprint[row].as_py())
        own = replace(own, at_rate=clock)
    own = replace(own, path=companions.rows.file(at), is_image=is_image, size=size, frame_ticks=None)
    if companions.kind in SOURCES and data.spec.whole_sources:
        own = _whole(own)
    shorter = data.spec.picture_side if companions.kind in SOURCES and is_image else None
    if (ratio := int(companions.ratio[row])) != ALIGNED or shorter is not None:
        assert data.spec.source_multiple is not None
        assert own.measures is not None
        shape = own_shape(own.shape, ratio, data.spec.source_multiple, shorter)
        own = replace(own, shape=shape, measures=Shape(own.measures.num_frames, *size), crop_draw=(0.5, 0.5))
    own = _with_spot(data, companions.rows, at, own)
    # Sources differ from the clip by the edit, and rejected clips in quality: nothing else may differ.
    if companions.kind in (*SOURCES, REJECTED):
        return own
    # The values of controls and masks are measures, not colours.
    own = replace(own, augmentation=own.augmentation.without_color())
    return replace(own, nearest=True, alpha_color=WHITE) if companions.kind in ("mask", "loss_mask") else own


def _sound_of(
    sound: SoundSpec, sources: CompanionMatches, row: int, own: Request, source: Request | SoundRequest | None
) -> SoundRequest | None:
    """Return the request for the sound of a clip's source: from its first frame on, or of a sound from its beginning."""
    at, rows = int(sources.row[row]), sources.rows
    if at < 0 or not rows.has_sound[at]:
        return None
    samples = sound.most_samples(own.shape.num_frames)
    if isinstance(source, Request):
        return sound.request(source, samples)
    samples = min(samples, sound.samples_of(float(rows.duration_seconds[at])))
    return sound.request_alone(rows.file(at), samples)


def _whole(own: Request) -> Request:
    """Return the request for a picture, or the first frame of a clip, that is shown whole in the size of its clip."""
    assert own.measures is not None
    assert own.size is not None
    measures = Shape(own.measures.num_frames, *own.size)
    upright = replace(own.augmentation, degrees=0.0)
    return replace(own, shape=replace(own.shape, num_frames=1), measures=measures, augmentation=upright, whole=True)


def _draws(data: Dataset, words: U64) -> tuple[F64, F64, F64]:
    """Draw the start of each clip and its crop along height and width, all in [0, 1)."""
    config, n = data.spec.data, len(words)
    first, down, across = np.zeros(n), np.full(n, 0.0 if config.crop == "top" else 0.5), np.full(n, 0.5)
    if config.clip_start == "random":
        first = hash_rng.uniform(hash_rng.extend(words, Purpose.FIRST_FRAME))
    if config.crop == "random":
        down, across = (hash_rng.uniform(hash_rng.extend(words, Purpose.CROP, axis)) for axis in (0, 1))
    return first, down, across


def _augmentation(dataset: DatasetConfig, word: U64) -> Augmentation:
    """Draw the changes to the frames of one use of a clip."""
    if not any(getattr(dataset, key) for key in _AUGMENTS):  # as for most datasets, of perhaps millions of clips
        return NO_AUGMENTATION

    def around(middle: float, most: float, *purpose: int) -> float:
        return middle + most * (2 * float(hash_rng.uniform(hash_rng.extend(word, *purpose))) - 1) if most else middle

    return Augmentation(
        flip=bool(hash_rng.bernoulli(hash_rng.extend(word, Purpose.FLIP), dataset.flip)),
        degrees=around(0.0, dataset.rotate_degrees, Purpose.ROTATION),
        brightness=around(1.0, dataset.jitter_brightness, Purpose.COLOR, 0),
        contrast=around(1.0, dataset.jitter_contrast, Purpose.COLOR, 1),
        saturation=around(1.0, dataset.jitter_saturation, Purpose.COLOR, 2),
        hue=around(0.0, dataset.jitter_hue, Purpose.COLOR, 3),
    )


def crop_boxes(data: Dataset, rows: I64, requests: Sequence[Request]) -> tuple[CropBox, ...]:
    """Return the size of each clip's file and the place of its crop."""
    r = data.rows
    sources = (Shape(int(r.num_frames[row]), int(r.height[row]), int(r.width[row])) for row in rows.tolist())
    return tuple(request.crop_box(source) for request, source in zip(requests, sources, strict=True))


def shown_fps(data: Dataset, row: int) -> float:
    """Return the frames per second of a row's clip that the model gets as conditioning."""
    if data.rows.is_image[row]:
        return decode.IMAGE_FPS
    return float(decode.shown_fps(float(data.rows.fps[row]), data.spec.data, bool(data.rows.variable_fps[row])))


def usual_fps(data: Dataset) -> float | None:
    """Return the median frame rate of the videos of the first epoch, as the model is told it; None if there are none."""
    r, rows = data.rows, np.searchsorted(data.rows.ordinal, data.entries(0).ordinal)
    rows = rows[~r.is_image[rows]]
    rates = decode.shown_fps(r.fps[rows], data.spec.data, r.variable_fps[rows])
    return float(np.quantile(rates, 0.5, method="lower")) if len(rates) else None  # one of them, and no mean of two


def dataset_of_row(data: Dataset, row: int) -> DatasetConfig:
    """Return the dataset of a row."""
    return data.dataset_by_name[data.rows.dataset_name(row)]


def captions_of(data: Dataset, rows: I64, words: U64, *, draws: bool = True) -> tuple[str, ...]:
    """Return the captions with which clips are shown, by index in `data.rows` and their `clip_hash`.

    Without `draws`, as for validation, each clip has its first caption with the tags as they are.
    """
    return tuple(caption_of_row(data, row, words[i] if draws else None) for i, row in enumerate(rows.tolist()))


def caption_of_row(data: Dataset, row: int, word: U64 | None = None) -> str:
    """Return the caption template of a row's dataset, filled with a caption of the row and its numbers.

    `word` is the hash of the use (seed, epoch, uid and copy) from which caption and tags are chosen; without it, the
    caption is the first, with its tags as they are.
    """
    rows, dataset = data.rows, dataset_of_row(data, row)
    form, text = dataset.caption, rows.caption[row].as_py() or dataset.missing_caption
    assert text is not None, "clips without a caption are excluded unless missing_caption is set"
    numbers = {column: _number(rows, row, column) for column in template.names(form)}
    filled = template.fill(form, captions.chosen(text, dataset, word), numbers)
    return captions.triggered(filled, dataset.trigger) if dataset.trigger is not None and "[" in form else filled


def _number(rows: CatalogRows, row: int, column: str) -> float:
    if column == "caption_length":
        return len(rows.caption[row].as_py() or "")
    if column in NUMBERS:
        return float(getattr(rows, column)[row])
    return float(rows.scores[column][row]) if column in rows.scores else math.nan
