"""Likeness of generated clips to the training clips, and closeness of each to a single one of them.

Both compare embeddings of frames: of DINOv2 or CLIP with local weights, or of pixels without any. Pixels know colours,
edges and layout, and not what is shown: they tell two checkpoints of one run apart, and nothing about two subjects.

Legend: N, M frames, D features, C training clips.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from reelworks.core.arrays import Frames
from reelworks.inference.evaluate import networks
from reelworks.inference.evaluate.clips import MeasuredClip
from reelworks.inference.evaluate.metric import Array, Settings, Skip
from reelworks.inference.evaluate.networks import ClipNetwork, PictureNetwork
from reelworks.inference.evaluate.training_clips import Embed, Embedded

COPIED = 1.0  # closeness above which a clip counts as copied
_FRAMES = 8  # of a clip, as for networks
_SMALL_PX, _THUMBNAIL_PX = 64, 16
_COLOURS, _ANGLES, _CELLS = 4, 8, 2  # levels of each colour, directions of edges, cells of each side
_LUMA = (0.299, 0.587, 0.114)  # BT.601
_SAME = 0.05  # distance at which two training clips count as copies of one another


def _of_network(name: str, load: Callable[..., Any]) -> Callable[[Settings], Embed]:
    """Return a function that embeds frames by a network's features."""

    def embed(settings: Settings) -> Embed:
        network = networks.shared(settings, name, load)
        return lambda clip: networks.unit(network.pictures(clip))

    return embed


def appearance(clip: MeasuredClip) -> Array:
    """Describe frames by their colours and the directions of their edges, `[N, 96]`, rows of length 1.

    The product of two rows is the mean of two Bhattacharyya coefficients: of the histograms of colours (4 levels each), and
    of the directions of gradients (8, weighted by their size) in 2 × 2 parts of the frame.
    """
    rows = []
    for frame_HW3 in clip.some_frames(_FRAMES):
        small = _resized(frame_HW3, _SMALL_PX)
        levels = (small // (256 / _COLOURS)).astype(np.int64)
        colour = np.bincount(levels.reshape(-1, 3) @ [_COLOURS**2, _COLOURS, 1], minlength=_COLOURS**3)
        rows.append(np.concatenate([_root(colour), _root(_edges(small @ np.array(_LUMA)))]) / np.sqrt(2))
    return np.array(rows)


def _edges(luma_HW: Array) -> Array:
    """Return the sums of gradients by part of the frame and by direction; a frame without edges has equal ones."""
    down, across = np.gradient(luma_HW)
    angle = (np.arctan2(down, across) % np.pi / np.pi * _ANGLES).astype(np.int64) % _ANGLES
    row, column = np.indices(luma_HW.shape) * _CELLS // _SMALL_PX
    where = (row * _CELLS + column) * _ANGLES + angle
    sums = np.bincount(where.ravel(), np.hypot(down, across).ravel(), minlength=_CELLS**2 * _ANGLES)
    return np.asarray(sums + 1.0)


def _root(counts: NDArray[Any]) -> Array:
    """Return the root of shares, a vector of length 1."""
    return np.asarray(np.sqrt(counts / counts.sum()))


def thumbnail(clip: MeasuredClip) -> Array:
    """Describe frames by their 16 × 16 pixels without mean, `[N, 768]`, of length 1: the product of two is their correlation.

    A frame of one colour is correlated with nothing.
    """
    small = np.array([_resized(frame, _THUMBNAIL_PX).ravel() for frame in clip.some_frames(_FRAMES)])
    centred = small - small.mean(axis=1, keepdims=True)
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    return np.asarray(np.divide(centred, length, out=np.zeros_like(centred), where=length > 1e-6))


def _resized(frame_HW3: Frames, side_px: int) -> Array:
    picture = Image.fromarray(np.ascontiguousarray(frame_HW3))
    return np.asarray(picture.resize((side_px, side_px), Image.Resampling.BOX), dtype=np.float64)


def similarities(plain_ND: Array, mirrored_ND: Array, others: Embedded) -> Array:
    """Return the similarity of a clip to each of others, `[C]`, of the clip or of its mirror image, which is larger.

    It is the mean over the clip's frames of the largest cosine with a frame of the other clip.
    """
    starts = np.cumsum([0, *map(len, others.plain[:-1])])
    all_MD = np.concatenate(others.plain).T
    found = [np.maximum.reduceat(frames @ all_MD, starts, axis=1).mean(axis=0) for frames in (plain_ND, mirrored_ND)]
    return np.asarray(np.maximum(*found))


def distances(similarities_C: Array) -> Array:
    """Return the distances of vectors of length 1 whose cosines are given, in [0, 2]."""
    return np.asarray(np.sqrt((2 - 2 * similarities_C).clip(min=0)))


def usual_distance(training: Embedded) -> float:
    """Return the distance at which the nearest other training clip usually lies: the median over the training clips.

    Copies among the training clips do not count as other ones.

    Raises:
        Skip: There are no two that differ.
    """
    nearest = []
    for i, both in enumerate(zip(training.plain, training.mirrored, strict=True)):
        apart = distances(similarities(*both, training))
        apart[i] = 0
        nearest.append(min(apart[apart > _SAME], default=np.inf))
    usual = float(np.median([each for each in nearest if np.isfinite(each)] or [np.inf]))
    if not np.isfinite(usual):
        raise Skip("there are no two different training clips, whose distance would be the measure")
    return usual


def _training(settings: Settings, key: str, embed: Embed) -> Embedded:
    if settings.training is None:
        raise Skip("it needs training clips; name their folder with --reference")
    found = settings.training.embedded(key, embed)
    if not found.names:
        raise Skip("no training clip can be read")
    return found


class _Likeness:
    """Mean cosine between the frames of a clip and those of all training clips; each training clip has the same weight.

    It is the CLIP-I, or DINO, score of DreamBooth (Ruiz et al. 2023), with frames of clips in place of pictures.
    """

    name: ClassVar[str]
    higher_is_better, requires_reference = True, False
    key: ClassVar[str]  # of the embeddings, which metrics share
    embedding: ClassVar[Any]  # a function of settings that returns how clips are embedded

    def __init__(self, settings: Settings) -> None:
        self._embed = self.embedding(settings)
        training = _training(settings, self.key, self._embed)
        self._mean_D = np.mean([frames.mean(axis=0) for frames in training.plain], axis=0)

    def value(self, clip: MeasuredClip) -> float:
        """Return the mean cosine of a clip's frames."""
        return float((self._embed(clip) @ self._mean_D).mean())


class _Closeness:
    """Closeness of a clip to the training clip that it resembles most, beside the distances between training clips.

    2 / (1 + 2 d / u), for the distance d to the nearest training clip, mirrored or not, and the distance u at which a training
    clip usually has its nearest other one. A copy has 2; above 1, the clip is nearer to that training clip than to what lies
    u away from it can be (d < u / 2), which says copied; a further clip of the same kind has about 0.67.
    """

    name: ClassVar[str]
    higher_is_better, requires_reference = False, False
    key: ClassVar[str]  # of the embeddings, which metrics share
    embedding: ClassVar[Any]  # a function of settings that returns how clips are embedded

    def __init__(self, settings: Settings) -> None:
        self._embed = self.embedding(settings)
        self._training = _training(settings, self.key, self._embed)
        self._usual = usual_distance(self._training)
        self.nearest: dict[str, str] = {}  # training clip that each clip resembles most, by name

    def value(self, clip: MeasuredClip) -> float:
        """Return the closeness of a clip, and note the training clip."""
        similar_C = similarities(self._embed(clip), self._embed(clip.mirrored()), self._training)
        self.nearest[clip.name] = self._training.names[int(similar_C.argmax())]
        return float(2 / (1 + 2 * distances(similar_C.max()) / self._usual))


_dinov2, _clip = _of_network("dinov2", PictureNetwork), _of_network("clip", ClipNetwork)


class LikenessDinov2(_Likeness):
    """Likeness to the training clips by the features of DINOv2."""

    name, key, embedding = "likeness-dinov2", "dinov2", staticmethod(_dinov2)


class LikenessClip(_Likeness):
    """Likeness to the training clips by the features of CLIP."""

    name, key, embedding = "likeness-clip", "clip", staticmethod(_clip)


class LikenessPixels(_Likeness):
    """Likeness to the training clips by colours and edges, without weights."""

    name, key, embedding = "likeness-pixels", "colours and edges", staticmethod(lambda settings: appearance)


class ClosenessDinov2(_Closeness):
    """Closeness to single training clips by the features of DINOv2."""

    name, key, embedding = "closeness-dinov2", "dinov2", staticmethod(_dinov2)


class ClosenessClip(_Closeness):
    """Closeness to single training clips by the features of CLIP."""

    name, key, embedding = "closeness-clip", "clip", staticmethod(_clip)


class ClosenessPixels(_Closeness):
    """Closeness to single training clips by the correlation of small pictures, without weights."""

    name, key, embedding = "closeness-pixels", "small pictures", staticmethod(lambda settings: thumbnail)
