"""Measures of clips by networks with local weights: agreement with the caption, aesthetic rating, classes of a classifier.

Legend: N frames, D features.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reelworks.catalog import measured_columns
from reelworks.catalog.measured_columns import Column
from reelworks.core import user_files
from reelworks.evaluation import networks
from reelworks.evaluation.networks import ClipNetwork
from reelworks.measures.measure import ClipPictures

Values = NDArray[np.float64]


def device() -> torch.device:
    """Return the GPU, or the CPU without one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@final
class Agreement:
    """Cosine of caption and frames in CLIP or SigLIP, mean over frames; missing without a caption."""

    name, version, reads = "agreement", 1, ("stills", "caption")
    columns = measured_columns.OF_NETWORKS["agreement"]
    pictures_px = 384

    def __init__(self, weights: Path) -> None:
        self._network = ClipNetwork(str(weights), device())

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
        self._device = device()
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


@final
class Classes:
    """Probability of each class of an image classifier, mean over frames: watermarks, faces, or whatever it was trained for."""

    name, version, reads = "classes", 1, ("stills",)
    columns: tuple[Column, ...] = ()
    pictures_px = 512

    def __init__(self, weights: Path) -> None:
        self._device = device()
        self._model = networks.frozen("AutoModelForImageClassification", str(weights), self._device)
        self._processor = networks.pretrained("AutoImageProcessor", str(weights))

    @staticmethod
    def columns_of(weights: Path) -> tuple[Column, ...]:
        """Return a column for each class, by the labels in `config.json`."""
        labels = json.loads(user_files.read_text(weights / "config.json", user_files.SETTINGS)).get("id2label", {})
        return tuple(
            Column(re.sub(r"\W+", "_", str(labels[key]).strip().lower()), "0 to 1", f"probability of {labels[key]!r}")
            for key in sorted(labels, key=int)
        )

    @torch.no_grad()
    def of_clips(self, clips: Sequence[ClipPictures]) -> Values:
        """Return the probabilities of clips, `[N, classes]`."""
        values: list[Any] = []
        for clip in clips:
            pixels = self._processor(images=list(clip.frames), return_tensors="pt")["pixel_values"].to(self._device)
            values.append(self._model(pixels).logits.softmax(dim=-1).mean(dim=0).double().cpu().numpy())
        return np.stack(values)
