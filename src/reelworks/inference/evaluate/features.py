"""Metrics on features of networks: FID and KID of frames, FVD of clips, and the CLIP score of prompts.

Legend: N and M samples, D features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, final

import numpy as np
import torch

from reelworks.inference.evaluate import networks
from reelworks.inference.evaluate.clips import MeasuredClip
from reelworks.inference.evaluate.metric import Array, Settings, Skip
from reelworks.inference.evaluate.networks import ClipNetwork, InceptionNetwork, PictureNetwork, VideoMaeNetwork

_PICTURE_NETWORKS: dict[str, Callable[[str, torch.device], Any]] = {
    "inception": InceptionNetwork,
    "clip": ClipNetwork,
    "dinov2": PictureNetwork,
}


@final
class ClipScore:
    """CLIP score (Hessel et al. 2021): 100 times the cosine of prompt and frame, at least 0; the mean over frames."""

    name, higher_is_better, requires_reference = "clip-score", True, False

    def __init__(self, settings: Settings) -> None:
        self._network = networks.shared(settings, "clip", ClipNetwork)

    def value(self, clip: MeasuredClip) -> float:
        """Return the score of a clip's prompt."""
        if clip.caption is None:
            raise Skip("it has no caption: put its prompt into a .txt file beside it")
        pictures, text = networks.unit(self._network.pictures(clip)), networks.unit(self._network.text([clip.caption]))
        return float(100 * (pictures @ text.T).clip(min=0).mean())


def frechet(a_ND: Array, b_MD: Array) -> float:
    """Return the Fréchet distance of normal distributions fitted to both sets (Heusel et al. 2017), at least 0.

    |μa − μb|² + tr(Σa + Σb − 2 (Σa Σb)^½). The trace of the root is the sum of the singular values of A·Bᵀ, for centred
    sets A and B divided by √(n − 1): it needs no root of a matrix, also where there are fewer samples than features.
    """
    centred = [(x - x.mean(axis=0)) / np.sqrt(len(x) - 1) for x in (a_ND, b_MD)]
    means = np.square(a_ND.mean(axis=0) - b_MD.mean(axis=0)).sum()
    traces = sum(np.square(x).sum() for x in centred)
    if max(len(a_ND), len(b_MD)) > a_ND.shape[1]:  # factors of D rows have the same covariances, and are smaller
        centred = [np.linalg.qr(x, mode="r") if len(x) > x.shape[1] else x for x in centred]
    root = np.linalg.svd(centred[0] @ centred[1].T, compute_uv=False).sum()
    return max(float(means + traces - 2 * root), 0.0)


def kernel(a_ND: Array, b_MD: Array) -> float:
    """Return the unbiased squared distance by the kernel (x·y / D + 1)³ (Bińkowski et al. 2018); it may be below 0."""
    n, m, features = len(a_ND), len(b_MD), a_ND.shape[1]

    def similar(x: Array, y: Array) -> Array:
        return np.asarray((x @ y.T / features + 1) ** 3)

    aa, bb = similar(a_ND, a_ND), similar(b_MD, b_MD)
    within_a = (aa.sum() - np.trace(aa)) / (n * (n - 1))
    within_b = (bb.sum() - np.trace(bb)) / (m * (m - 1))
    return float(within_a + within_b - 2 * similar(a_ND, b_MD).mean())


class _PictureDistance:
    """A distance between the frames of two sets, by the features of a network."""

    name: ClassVar[str]
    higher_is_better, requires_reference = False, True
    network: ClassVar[str]
    between: ClassVar[Any]  # a function of two sets of features

    def __init__(self, settings: Settings) -> None:
        self._network = networks.shared(settings, self.network, _PICTURE_NETWORKS[self.network])

    def features(self, clip: MeasuredClip) -> Array:
        """Return the features of some of a clip's frames, `[N, D]`."""
        return np.asarray(self._network.pictures(clip))

    def distance(self, generated: Array, reference: Array) -> float:
        """Return the distance between two sets of features."""
        return float(self.between(generated, reference))


class FidInception(_PictureDistance):
    """Fréchet distance between frames by the features of Inception-v3."""

    name, network, between = "fid-inception", "inception", staticmethod(frechet)


class KidInception(_PictureDistance):
    """Kernel distance between frames by the features of Inception-v3."""

    name, network, between = "kid-inception", "inception", staticmethod(kernel)


class FidClip(_PictureDistance):
    """Fréchet distance between frames by the features of CLIP."""

    name, network, between = "fid-clip", "clip", staticmethod(frechet)


class KidClip(_PictureDistance):
    """Kernel distance between frames by the features of CLIP."""

    name, network, between = "kid-clip", "clip", staticmethod(kernel)


class FidDinov2(_PictureDistance):
    """Fréchet distance between frames by the features of DINOv2."""

    name, network, between = "fid-dinov2", "dinov2", staticmethod(frechet)


class KidDinov2(_PictureDistance):
    """Kernel distance between frames by the features of DINOv2."""

    name, network, between = "kid-dinov2", "dinov2", staticmethod(kernel)


@final
class FvdVideoMae:
    """Fréchet distance between the clips of two sets, by the features of VideoMAE."""

    name, higher_is_better, requires_reference = "fvd-videomae", False, True

    def __init__(self, settings: Settings) -> None:
        self._network = networks.shared(settings, "videomae", VideoMaeNetwork)

    def features(self, clip: MeasuredClip) -> Array:
        """Return the features of a clip, `[1, D]`."""
        return self._network.clips(clip)

    def distance(self, generated: Array, reference: Array) -> float:
        """Return the distance between two sets of features."""
        return frechet(generated, reference)
