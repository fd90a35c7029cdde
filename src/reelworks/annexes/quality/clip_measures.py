"""Measures of clips by networks with local weights: agreement with captions, ratings, classes, objects, and near-duplicates.

Legend: N clips, D features.
"""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reelworks.annexes.quality import embeddings, picture
from reelworks.annexes.quality.duplicates import LEAST_DEVIATION
from reelworks.annexes.quality.measure import ClipPictures, Still
from reelworks.annexes.quality.picture import Sharpness
from reelworks.core import machine, user_files
from reelworks.data.catalog.query import template
from reelworks.data.catalog.scan.lists import MEASURED
from reelworks.data.catalog.store import measured_columns
from reelworks.data.catalog.store.measured_columns import Column
from reelworks.inference.evaluate import networks
from reelworks.inference.evaluate.networks import ClipNetwork, PictureNetwork

Values = NDArray[np.float64]


@final
class Agreement:
    """Cosine of caption and frames in CLIP or SigLIP, mean over frames; missing without a caption."""

    name, version, reads = "agreement", 1, ("stills", "caption")
    columns = measured_columns.OF_NETWORKS["agreement"]
    pictures_px = 384

    def __init__(self, weights: Path) -> None:
        self._network = ClipNetwork(str(weights), machine.default_device())

    def of_clips(self, clips: Sequence[ClipPictures]) -> Values:
        """Return the agreement of clips, `[N, 1]`."""
        return np.array([[self._of_clip(clip)] for clip in clips])

    def _of_clip(self, clip: ClipPictures) -> float:
        if not clip.caption:
            return float("nan")
        text, frames = self._network.text(clip.caption)[0], self._network.frames(clip.frames)
        norms = np.linalg.norm(frames, axis=1) * np.linalg.norm(text)
        return float((frames @ text / norms).mean())


@final
class Aesthetic:
    """Rating by linear layers upon normalised embeddings of CLIP, mean over frames.

    Weights have the layout of the published predictors: CLIP's vision network with a projection, and `predictor` or `layers`.
    """

    name, version, reads = "aesthetic", 1, ("stills",)
    columns = measured_columns.OF_NETWORKS["aesthetic"]
    pictures_px = 384

    def __init__(self, weights: Path) -> None:
        self._device = machine.default_device()
        self._vision = networks.frozen("CLIPVisionModelWithProjection", str(weights), self._device)
        self._processor = networks.pretrained("CLIPImageProcessor", str(weights))
        self._layers = _head(weights, self._device)

    @torch.no_grad()
    def of_clips(self, clips: Sequence[ClipPictures]) -> Values:
        """Return the ratings of clips, `[N, 1]`."""
        values = []
        for clip in clips:
            pixels = self._processor(images=list(clip.frames), return_tensors="pt")["pixel_values"].to(self._device)
            hidden = torch.nn.functional.normalize(self._vision(pixels).image_embeds, dim=-1)
            for weight, bias in self._layers:  # without activations between them
                hidden = torch.nn.functional.linear(hidden, weight, bias)
            values.append([float(hidden.mean())])
        return np.array(values)


def _head(weights: Path, on: torch.device) -> list[tuple[Tensor, Tensor]]:
    from safetensors import safe_open

    with safe_open(weights / "model.safetensors", framework="pt") as file:
        found = {}
        for name in file.keys():  # noqa: SIM118  # an object of its own, which is no mapping
            if part := re.fullmatch(r"(?:predictor|layers\.(\d+))\.weight", name):
                bias = file.get_tensor(name.removesuffix("weight") + "bias")
                found[int(part[1] or 0)] = file.get_tensor(name).float().to(on), bias.float().to(on)
    if not found:
        raise ValueError("model.safetensors has no predictor.weight and no layers.N.weight")
    return [found[number] for number in sorted(found)]


def _labels(weights: Path) -> dict[int, str]:
    """Return the label of each class by its number, by `config.json`.

    Raises:
        OSError, ValueError: There is none, or it names no labels.
    """
    config = user_files.parse_json(user_files.read_text(weights / "config.json", user_files.SETTINGS))
    labels = config.get("id2label") if isinstance(config, dict) else None
    if not isinstance(labels, dict) or not labels:
        raise ValueError("its config.json has no id2label with the label of each class")
    return {number: str(labels[str(number)]) for number in sorted(map(int, labels))}


def _numbers_by_name(labels: Mapping[int, str], suffixes: Sequence[str] = ("",)) -> dict[str, list[int]]:
    """Return the numbers of classes by the name that their columns begin with; classes with equal labels are one.

    A label that no column can have as its name, such as "class", "path" or "3d", has `class_` before it.
    """
    found: dict[str, list[int]] = {}
    for number, label in labels.items():
        name = re.sub(r"\W+", "_", unicodedata.normalize("NFKC", label).strip().lower())  # as filters read names
        name = name if name.strip("_") else str(number)
        name = name if all(_is_free(name + suffix) for suffix in suffixes) else f"class_{name}"
        found.setdefault(name, []).append(number)
    return found


def _is_free(name: str) -> bool:
    taken = name in MEASURED or name in measured_columns.OURS or name == template.TEXT
    return name.isidentifier() and not keyword.iskeyword(name) and not taken


@final
class Classes:
    """Probability of each label of an image classifier, mean over frames: watermarks, faces, or whatever it was trained for."""

    name, version, reads = "classes", 1, ("stills",)
    columns: tuple[Column, ...] = ()
    pictures_px = 512

    def __init__(self, weights: Path) -> None:
        self._device = machine.default_device()
        self._model = networks.frozen("AutoModelForImageClassification", str(weights), self._device)
        self._processor = networks.pretrained("AutoImageProcessor", str(weights))
        self._numbers = [*_numbers_by_name(_labels(weights)).values()]

    @staticmethod
    def columns_of(weights: Path) -> tuple[Column, ...]:
        """Return a column for each label in `config.json`."""
        labels = _labels(weights)
        named = _numbers_by_name(labels).items()
        return tuple(Column(name, "0 to 1", f"probability of {labels[numbers[0]]!r}") for name, numbers in named)

    @torch.no_grad()
    def of_clips(self, clips: Sequence[ClipPictures]) -> Values:
        """Return the probabilities of clips, `[N, labels]`; that of a label is the sum of its classes."""
        values: list[Any] = []
        for clip in clips:
            pixels = self._processor(images=list(clip.frames), return_tensors="pt")["pixel_values"].to(self._device)
            of_classes = self._model(pixels).logits.softmax(dim=-1).mean(dim=0).cpu().double().numpy()
            values.append([of_classes[numbers].sum() for numbers in self._numbers])
        return np.array(values)


@final
class Objects:
    """Objects of each label that a detector finds: their share of the frame's area, mean over frames, and the most in a frame."""

    name, version, reads = "objects", 1, ("stills",)
    columns: tuple[Column, ...] = ()
    pictures_px = 800  # to which DETR and its kin resize the shorter side
    least_score = 0.5  # as the detectors' own examples show boxes

    def __init__(self, weights: Path) -> None:
        self._device = machine.default_device()
        self._model = networks.frozen("AutoModelForObjectDetection", str(weights), self._device)
        self._processor = networks.pretrained("AutoImageProcessor", str(weights))
        self._numbers = [*self._named(weights).values()]

    @staticmethod
    def _named(weights: Path) -> dict[str, list[int]]:
        """Return the numbers of each label, without the unused ones of COCO's."""
        labels = {number: label for number, label in _labels(weights).items() if label != "N/A"}
        return _numbers_by_name(labels, ("_area", "_count"))

    @classmethod
    def columns_of(cls, weights: Path) -> tuple[Column, ...]:
        """Return two columns for each label in `config.json`."""
        return tuple(
            column
            for name in cls._named(weights)
            for column in (
                Column(f"{name}_area", "0 to 1", f"share of the picture that boxes of {name!r} cover"),
                Column(f"{name}_count", "count", f"number of {name!r} in the frame that shows the most"),
            )
        )

    @torch.no_grad()
    def of_clips(self, clips: Sequence[ClipPictures]) -> Values:
        """Return the areas and counts of clips, `[N, 2 labels]`."""
        return np.stack([self._of_clip(clip) for clip in clips])

    def _of_clip(self, clip: ClipPictures) -> Values:
        inputs = self._processor(images=list(clip.frames), return_tensors="pt").to(self._device)
        frames = self._processor.post_process_object_detection(
            self._model(**inputs), threshold=self.least_score, target_sizes=[(1, 1)] * len(clip.frames)
        )
        found = np.array(
            [
                [(covered_area(some), len(some)) for some in (boxes[np.isin(label, one)] for one in self._numbers)]
                for boxes, label in ((f["boxes"].cpu().double().numpy(), f["labels"].cpu().numpy()) for f in frames)
            ]
        )
        return np.stack([found[..., 0].mean(axis=0), found[..., 1].max(axis=0)], axis=1).ravel()


def covered_area(boxes_N4: Values) -> float:
    """Return the area that boxes (left, upper, right, lower, in parts of the frame) cover together."""
    boxes = boxes_N4.clip(0, 1)
    xs, ys = np.unique(boxes[:, [0, 2]]), np.unique(boxes[:, [1, 3]])
    covered = np.zeros((max(len(xs) - 1, 0), max(len(ys) - 1, 0)), dtype=np.bool_)
    for left, upper, right, lower in boxes:
        across, down = (slice(*np.searchsorted(at, ends)) for at, ends in ((xs, (left, right)), (ys, (upper, lower))))
        covered[across, down] = True
    return float(np.diff(xs) @ covered @ np.diff(ys))


@final
class DuplicatesByNetwork:
    """Near-duplicates by the embeddings of CLIP, SigLIP or DINOv2, near the beginning and the end of a clip, mirrored or not."""

    name, version, reads = "duplicates", 2, ("stills",)
    columns = measured_columns.BUILT_IN["duplicates"]
    pictures_px = 512  # as sharpness is measured
    feature_bytes = embeddings.FEATURE_BYTES
    compare = staticmethod(embeddings.compare)

    def __init__(self, weights: Path) -> None:
        self._network, self._sharpness = PictureNetwork(str(weights), machine.default_device()), Sharpness()

    def of_clips(self, clips: Sequence[ClipPictures]) -> NDArray[np.uint8]:
        """Return the features of clips, `[N, feature_bytes]`."""
        shown = [self._without_borders(clip) for clip in clips]
        seen = [still.rgb[still.active] for stills in shown for still in (stills[0], stills[-1])]
        pictures = [np.ascontiguousarray(side) for frame in seen for side in (frame, frame[:, ::-1])]
        found = networks.unit(self._network.frames(pictures)).reshape(len(clips), 2, 2, -1)
        # The sum is the same for a mirrored copy.
        embeddings_N2D = networks.unit(found.sum(axis=2).reshape(2 * len(clips), -1)).reshape(len(clips), 2, -1)
        even = [all(still.luma[still.active].std() < LEAST_DEVIATION for still in stills) for stills in shown]
        embeddings_N2D[even] = 0
        middle = [self._sharpness.of_frame(stills[len(stills) // 2]) for stills in shown]
        return embeddings.packed(embeddings_N2D, middle)

    @staticmethod
    def _without_borders(clip: ClipPictures) -> list[Still]:
        stills = [Still(frame) for frame in clip.frames]
        active = picture.find_active(stills)
        return [Still(still.rgb, active) for still in stills]
