"""Metrics on features of networks: FID and KID of frames, FVD of clips, and the CLIP score of prompts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, final

import torch

from reelworks.inference.evaluate import distances, networks
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
        pictures, text = networks.unit(self._network.pictures(clip)), networks.unit(self._network.text(clip.caption))
        return float(100 * (pictures @ text.T).clip(min=0).mean())


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
        features: Array = self._network.pictures(clip)
        return features

    def distance(self, generated: Array, reference: Array) -> float:
        """Return the distance between two sets of features."""
        return float(self.between(generated, reference))


class FidInception(_PictureDistance):
    """Fréchet distance between frames by the features of Inception-v3."""

    name, network, between = "fid-inception", "inception", staticmethod(distances.frechet)


class KidInception(_PictureDistance):
    """Kernel distance between frames by the features of Inception-v3."""

    name, network, between = "kid-inception", "inception", staticmethod(distances.kernel)


class FidClip(_PictureDistance):
    """Fréchet distance between frames by the features of CLIP."""

    name, network, between = "fid-clip", "clip", staticmethod(distances.frechet)


class KidClip(_PictureDistance):
    """Kernel distance between frames by the features of CLIP."""

    name, network, between = "kid-clip", "clip", staticmethod(distances.kernel)


class FidDinov2(_PictureDistance):
    """Fréchet distance between frames by the features of DINOv2."""

    name, network, between = "fid-dinov2", "dinov2", staticmethod(distances.frechet)


class KidDinov2(_PictureDistance):
    """Kernel distance between frames by the features of DINOv2."""

    name, network, between = "kid-dinov2", "dinov2", staticmethod(distances.kernel)


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
        return distances.frechet(generated, reference)
