"""Networks whose features metrics compare, loaded from local files: CLIP, DINOv2, VideoMAE, Inception.

Legend: N frames, T frames of a clip, H height, W width, D features.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np
import torch
from torch import Tensor

from reelworks.core import optional_imports
from reelworks.core.arrays import Frames
from reelworks.inference.evaluate.clips import MeasuredClip
from reelworks.inference.evaluate.metric import Array, Settings, Skip

N = TypeVar("N")
_FRAMES = 8  # of a clip, for networks that see pictures


def shared(settings: Settings, name: str, load: Callable[[str, torch.device], N]) -> N:
    """Return the network of a name, which is loaded once; raise `Skip` if its weights are not named or not readable."""
    if name not in settings.networks:
        source = settings.weights.get(name)
        if source is None:
            raise Skip(f"no weights are named for {name}; add --weights {name}=PATH")
        if not Path(source).exists():
            raise Skip(f"the weights of {name} are not there: {source}")
        try:
            settings.networks[name] = load(source, settings.device)
        except Exception as error:  # damaged files raise errors of any kind
            first_line = str(error).strip().partition("\n")[0]
            raise Skip(f"the weights of {name} cannot be loaded from {source} ({first_line})") from error
    network: N = settings.networks[name]
    return network


def pretrained(kind: str, source: str, **options: Any) -> Any:
    """Load a part by transformers from a local folder."""
    return getattr(optional_imports.transformers(), kind).from_pretrained(source, local_files_only=True, **options)


def frozen(kind: str, source: str, device: torch.device) -> Any:
    """Load a network in float32 that is not trained."""
    return pretrained(kind, source, dtype=torch.float32).requires_grad_(False).eval().to(device)


def pixels(processor: Any, frames: Iterable[Frames], device: torch.device) -> Tensor:
    """Prepare frames `[H, W, 3]` as the network expects them, `[N, 3, H, W]` float32."""
    prepared = processor(images=list(frames), return_tensors="pt")
    values: Tensor = prepared["pixel_values"].to(device)
    return values


def _array(features_ND: Tensor) -> Array:
    return features_ND.cpu().double().numpy()


@final
class PictureNetwork:
    """CLIP, SigLIP, or DINOv2, DINOv3 and other vision networks of transformers that give a picture one embedding."""

    def __init__(self, source: str, device: torch.device) -> None:
        self.model, self.device = frozen("AutoModel", source, device), device
        self._processor = pretrained("AutoImageProcessor", source)
        self.is_clip = self.model.config.model_type == "clip"
        self._vision = self.model.vision_model if hasattr(self.model.config, "vision_config") else self.model

    def pictures(self, clip: MeasuredClip) -> Array:
        """Embed some frames of a clip, `[N, D]`."""
        return self.frames(clip.some_frames(_FRAMES))

    @torch.no_grad()
    def frames(self, frames: Iterable[Frames]) -> Array:
        """Embed frames `[H, W, 3]`, `[N, D]`."""
        pooled = self._vision(pixels(self._processor, frames, self.device)).pooler_output
        return _array(self.model.visual_projection(pooled) if self.is_clip else pooled)


@final
class ClipNetwork:
    """CLIP or SigLIP: embeddings of pictures and texts in one space."""

    def __init__(self, source: str, device: torch.device) -> None:
        self._network = PictureNetwork(source, device)
        self._model, self._device = self._network.model, device
        self._is_siglip = not self._network.is_clip
        self._tokenizer = pretrained("AutoTokenizer", source)
        self.pictures, self.frames = self._network.pictures, self._network.frames

    @torch.no_grad()
    def text(self, captions: Sequence[str]) -> Array:
        """Embed captions, `[N, D]`; tokens beyond those that the model reads are left out."""
        most = self._model.config.text_config.max_position_embeddings
        padding = "max_length" if self._is_siglip else len(captions) > 1  # SigLIP was trained with texts of one length
        tokens = self._tokenizer([*captions], padding=padding, truncation=True, max_length=most, return_tensors="pt")
        ids, mask = tokens["input_ids"].to(self._device), None if self._is_siglip else tokens["attention_mask"]
        pooled = self._model.text_model(
            ids, attention_mask=None if mask is None else mask.to(self._device)
        ).pooler_output
        return _array(pooled if self._is_siglip else self._model.text_projection(pooled))


@final
class InceptionNetwork:
    """Inception-v3 as the TorchScript file `inception-2015-12-05.pt` of StyleGAN, which resizes by itself."""

    def __init__(self, source: str, device: torch.device) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the file is published in this format only
            self._model: Any = torch.jit.load(source, map_location=device).eval()  # type: ignore[no-untyped-call]
        self._device = device

    @torch.no_grad()
    def pictures(self, clip: MeasuredClip) -> Array:
        """Embed some frames of a clip, `[N, 2048]`."""
        frames = torch.from_numpy(clip.some_frames(_FRAMES).copy()).movedim(-1, 1).to(self._device)
        return _array(self._model(frames, return_features=True))


@final
class VideoMaeNetwork:
    """VideoMAE: the mean of the last hidden states of a whole clip."""

    def __init__(self, source: str, device: torch.device) -> None:
        self._model, self._device = frozen("VideoMAEModel", source, device), device
        self._processor = pretrained("VideoMAEImageProcessor", source)
        self._num_frames: int = self._model.config.num_frames

    @torch.no_grad()
    def clips(self, clip: MeasuredClip) -> Array:
        """Embed frames of a clip in equal distances, `[1, D]`."""
        if len(clip.frames) < self._num_frames:
            raise Skip(f"VideoMAE needs {self._num_frames} frames, and it has {len(clip.frames)}")
        frames = list(clip.some_frames(self._num_frames))
        pixels_1T3HW = self._processor(frames, return_tensors="pt")["pixel_values"].to(self._device)
        return _array(self._model(pixels_1T3HW).last_hidden_state.mean(dim=1))


def unit(features_ND: Array) -> Array:
    """Return features of length 1."""
    return np.asarray(features_ND / np.linalg.norm(features_ND, axis=1, keepdims=True))
