"""Measures of clips by networks with local weights: agreement with captions, ratings, classes, objects, and near-duplicates.

Legend: N clips, D features.
"""

from __future__ import annotations

import keyword
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from reelworks.annexes.quality import embeddings
from reelworks.annexes.quality.measure import ClipPictures, Still
from reelworks.annexes.quality.picture import Sharpness
from reelworks.core import machine, user_files
from reelworks.core.arrays import Frames
from reelworks.data.catalog.query import template
from reelworks.data.catalog.scan.lists import MEASURED
from reelworks.data.catalog.store import measured_columns
from reelworks.data.catalog.store.measured_columns import Column
from reelworks.inference.evaluate import networks
from reelworks.inference.evaluate.networks import ClipNetwork, PictureNetwork

Values = NDArray[np.float64]
_FRAMES_AT_ONCE = 32  # that a network sees
_LEAST_DEVIATION = 8.0  # levels; of frames that are nearly even, networks of pictures say the same


class FrameNetwork(ABC):
    """A measure by a network that sees single frames, those of several clips at once; a clip has the mean over its frames.

    Attributes:
        of_largest: Columns of which a clip has the largest value of its frames instead.
    """

    of_largest = slice(0)

    @abstractmethod
    def of_frames(self, frames: Sequence[Frames], captions: Sequence[str]) -> Values:
        """Return the values of frames `[H, W, 3]` of one size, each with the caption of its clip, `[N, columns]`."""

    @final
    @torch.no_grad()
    def of_clips(self, clips: Sequence[ClipPictures]) -> Values:
        """Return the values of clips, `[N, columns]`."""
        values, by_size = dict[int, Values](), dict[tuple[int, ...], list[int]]()
        for i, clip in enumerate(clips):
            by_size.setdefault(clip.frames.shape[1:], []).append(i)
        for same in by_size.values():  # a detector would see padding beside smaller ones
            shown = [(frame, clips[i].caption) for i in same for frame in clips[i].frames]
            batches = (shown[at : at + _FRAMES_AT_ONCE] for at in range(0, len(shown), _FRAMES_AT_ONCE))
            found = np.concatenate([self.of_frames(*zip(*batch, strict=True)) for batch in batches])
            ends = np.cumsum([len(clips[i].frames) for i in same])
            for i, of_clip in zip(same, np.split(found, ends[:-1]), strict=True):
                values[i] = of_clip.mean(axis=0)
                values[i][self.of_largest] = of_clip[:, self.of_largest].max(axis=0)
        return np.stack([values[i] for i in range(len(clips))])


@final
class Agreement(FrameNetwork):
    """Cosine of caption and frames in CLIP or SigLIP; missing without a caption."""

    name, version, reads = "agreement", 2, ("stills", "caption")
    columns = measured_columns.OF_NETWORKS["agreement"]
    pictures_px = 384

    def __init__(self, weights: Path) -> None:
        self._network = ClipNetwork(str(weights), machine.default_device())

    def of_frames(self, frames: Sequence[Frames], captions: Sequence[str]) -> Values:
        """Return the agreement of frames, `[N, 1]`."""
        values = np.full((len(frames), 1), np.nan)
        told = [i for i, caption in enumerate(captions) if caption]
        if told:
            each = [*dict.fromkeys(captions[i] for i in told)]
            texts = networks.unit(self._network.text(each))[[each.index(captions[i]) for i in told]]
            values[told, 0] = (networks.unit(self._network.frames([frames[i] for i in told])) * texts).sum(axis=1)
        return values


@final
class Aesthetic(FrameNetwork):
    """Rating by linear layers upon normalised embeddings of CLIP.

    Weights are a folder of CLIP, or of its vision network with a projection, and the layers: `predictor` or `layers` among its
    own tensors, as published predictors have them, or LAION's own file, `*.pth`, beside them.
    """

    name, version, reads = "aesthetic", 2, ("stills",)
    columns = measured_columns.OF_NETWORKS["aesthetic"]
    pictures_px = 384

    def __init__(self, weights: Path) -> None:
        self._device = machine.default_device()
        self._vision = networks.frozen("CLIPVisionModelWithProjection", str(weights), self._device)
        self._processor = networks.pretrained("CLIPImageProcessor", str(weights))
        self._layers = _head(weights, self._device)

    def of_frames(self, frames: Sequence[Frames], captions: Sequence[str]) -> Values:
        """Return the ratings of frames, `[N, 1]`."""
        hidden = torch.nn.functional.normalize(self._vision(_pixels(self, frames)).image_embeds, dim=-1)
        for weight, bias in self._layers:  # without activations between them
            hidden = torch.nn.functional.linear(hidden, weight, bias)
        return hidden.cpu().double().numpy()


def _head(weights: Path, on: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Return weight and bias of the layers upon the embedding, in order."""
    found = {}
    for file in sorted(weights.glob("*.safetensors")) + sorted(weights.glob("*.pth")):
        is_own = file.suffix == ".pth"
        tensors = torch.load(file, map_location="cpu", weights_only=True) if is_own else load_file(file)
        for name, weight in tensors.items():
            if part := re.fullmatch(r"(?:predictor|layers\.(\d+))\.weight" + "|weight" * is_own, name):
                bias = tensors[name.removesuffix("weight") + "bias"]
                found[int(part[1] or 0)] = weight.float().to(on), bias.float().to(on)
    if not found:
        raise ValueError("it has no head: no predictor.weight or layers.N.weight in *.safetensors, and no *.pth")
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


class _LabelNetwork(FrameNetwork):
    """A measure by a network that knows labels, which its `config.json` names, with columns for each."""

    reads = ("stills",)
    columns: tuple[Column, ...] = ()
    network: str  # class of transformers

    def __init__(self, weights: Path) -> None:
        self._device = machine.default_device()
        self._model = networks.frozen(self.network, str(weights), self._device)
        self._processor = networks.pretrained("AutoImageProcessor", str(weights))
        self._numbers = [*self._named(weights).values()]

    @staticmethod
    def _named(weights: Path) -> dict[str, list[int]]:
        """Return the numbers of each label, by the name that its columns begin with."""
        return _numbers_by_name(_labels(weights))


@final
class Classes(_LabelNetwork):
    """Probability of each label of an image classifier: watermarks, faces, or whatever it was trained for."""

    name, version, pictures_px = "classes", 2, 512
    network = "AutoModelForImageClassification"

    @classmethod
    def columns_of(cls, weights: Path) -> tuple[Column, ...]:
        """Return a column for each label in `config.json`."""
        labels, named = _labels(weights), cls._named(weights).items()
        return tuple(Column(name, "0 to 1", f"probability of {labels[numbers[0]]!r}") for name, numbers in named)

    def of_frames(self, frames: Sequence[Frames], captions: Sequence[str]) -> Values:
        """Return the probabilities of frames, `[N, labels]`; that of a label is the sum of its classes."""
        of_classes = self._model(_pixels(self, frames)).logits.softmax(dim=-1).cpu().double().numpy()
        return np.stack([of_classes[:, numbers].sum(axis=1) for numbers in self._numbers], axis=1)


@final
class Objects(_LabelNetwork):
    """Objects of each label that a detector finds: their share of the frame's area, mean over frames, and the most in a frame."""

    name, version, network = "objects", 2, "AutoModelForObjectDetection"
    pictures_px = 800  # to which DETR and its kin resize the shorter side
    of_largest = slice(1, None, 2)
    least_score = 0.5  # as the detectors' own examples show boxes

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

    def of_frames(self, frames: Sequence[Frames], captions: Sequence[str]) -> Values:
        """Return the areas and counts of frames, `[N, 2 labels]`."""
        inputs = self._processor(images=list(frames), return_tensors="pt").to(self._device)
        of_frames = self._processor.post_process_object_detection(
            self._model(**inputs), threshold=self.least_score, target_sizes=[(1, 1)] * len(frames)
        )
        seen = [(found["boxes"].cpu().double().numpy(), found["labels"].cpu().numpy()) for found in of_frames]
        of_labels = [[boxes[np.isin(labels, numbers)] for numbers in self._numbers] for boxes, labels in seen]
        return np.array([[value for some in of for value in (covered_area(some), len(some))] for of in of_labels])


def covered_area(boxes_N4: Values) -> float:
    """Return the area that boxes (left, upper, right, lower, in parts of the frame) cover together."""
    boxes = boxes_N4.clip(0, 1)
    xs, ys = np.unique(boxes[:, [0, 2]]), np.unique(boxes[:, [1, 3]])
    covered = np.zeros((max(len(xs) - 1, 0), max(len(ys) - 1, 0)), dtype=np.bool_)
    for left, upper, right, lower in boxes:
        across, down = (slice(*np.searchsorted(at, ends)) for at, ends in ((xs, (left, right)), (ys, (upper, lower))))
        covered[across, down] = True
    return float(np.diff(xs) @ covered @ np.diff(ys))


def _pixels(measure: Aesthetic | Classes, frames: Sequence[Frames]) -> Tensor:
    return networks.pixels(measure._processor, frames, measure._device)


@final
class DuplicatesByNetwork:
    """Near-duplicates by the embeddings of CLIP, SigLIP or DINOv2, near the beginning and the end of a clip, mirrored or not."""

    name, version, reads = "duplicates", 3, ("stills",)
    columns = measured_columns.BUILT_IN["duplicates"]
    pictures_px = 512  # as sharpness is measured
    feature_bytes = embeddings.FEATURE_BYTES
    compare = staticmethod(embeddings.compare)

    def __init__(self, weights: Path) -> None:
        self._network, self._sharpness = PictureNetwork(str(weights), machine.default_device()), Sharpness()

    def of_clips(self, clips: Sequence[ClipPictures]) -> NDArray[np.uint8]:
        """Return the features of clips, `[N, feature_bytes]`."""
        seen = [frame for clip in clips for frame in (clip.frames[0], clip.frames[-1])]
        pictures = [np.ascontiguousarray(side) for frame in seen for side in (frame, frame[:, ::-1])]
        found = networks.unit(self._network.frames(pictures)).reshape(len(clips), 2, 2, -1)
        # The sum is the same for a mirrored copy.
        embeddings_N2D = networks.unit(found.sum(axis=2).reshape(2 * len(clips), -1)).reshape(len(clips), 2, -1)
        shown = [[Still(frame) for frame in clip.frames] for clip in clips]
        even = [all(still.luma.std() < _LEAST_DEVIATION for still in stills) for stills in shown]
        embeddings_N2D[even] = 0
        middle = [self._sharpness.of_frame(stills[len(stills) // 2]) for stills in shown]
        return embeddings.packed(embeddings_N2D, middle)
