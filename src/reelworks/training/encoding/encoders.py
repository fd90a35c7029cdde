"""Encode clips and captions during training, on the training device; captions optionally on the CPU."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from reelworks.core import log
from reelworks.core.errors import UserError
from reelworks.data.catalog.sources import SOURCES
from reelworks.data.loader import upload
from reelworks.data.media.sound import SoundSpec
from reelworks.models.api import Autoencoder, ImageEncoder, TextEmbedding, TextEncoder
from reelworks.models.family import LEARNED, Conditioning
from reelworks.models.sound.config import SoundConfig
from reelworks.models.sound.encoder import SoundEncoder

_MOST_BYTES = 2_000_000_000  # 480 captions of 512 tokens, 4096 wide
_ENTRY_BYTES = 2_000  # Python objects around an embedding
# Pixels of a pass, unless one clip has more: 4 pictures of 1024 × 1024. They keep a GPU busy, and each map of 128 channels
# that a picture's encoder makes of them takes 2 GB in float32.
_MOST_PIXELS = 4 * 1024 * 1024
_FULL_SCALE = 32768.0  # of a sample of sound


def clips_at_once(shape: Sequence[int]) -> int:
    """Return how many clips `[B, T, H, W, 3]` a GPU encodes together, which bounds the memory of a pass."""
    clips, frames, height, width = shape[:4]
    return max(1, min(clips, _MOST_PIXELS // (frames * height * width)))


def require_numbers(latent: Tensor, pixels: Tensor) -> None:
    """Refuse a clip that would be black, and pass for one, since its latents or what they are decoded to are no numbers.

    Raises:
        UserError: One of them holds infinities or NaN.
    """
    if not latent.isfinite().all():
        raise UserError(
            "the latents hold infinities or NaN, of which only black frames come",
            code="frames-not-finite",
            field="model",
            remedy='if they were generated, use an earlier checkpoint, or set precision.compute = "float32"; if stored, encode anew',
        )
    if not pixels.isfinite().all():
        raise UserError(
            "decoded frames hold infinities or NaN, of which only black frames come",
            code="frames-not-finite",
            field="autoencoder",
            remedy='set autoencoder.dtype = "float32", or use other autoencoder.weights',
        )


@dataclass(frozen=True)
class SoundTrack:
    """A sound encoder, the samples that it takes, and how the sound is trained."""

    encoder: SoundEncoder
    spec: SoundSpec
    config: SoundConfig

    def loaded(self) -> SoundTrack:
        """Return the same with the encoder in memory, if it was to be loaded at its first use."""
        encoder = self.encoder
        return replace(self, encoder=encoder.loaded()) if isinstance(encoder, Lazy) else self

    def at_rate(self, fps: float) -> SoundTrack:
        """Return the same for clips of another frame rate."""
        return replace(self, spec=replace(self.spec, frame_rate=fps))

    def latent_shape(self, num_frames: int) -> tuple[int, int, int, int]:
        """Return the shape of the latents of a clip with so many frames, `(F, N, 1, 1)`."""
        return self.encoder.facts.features, self.spec.latents(num_frames), 1, 1

    def shape_of_samples(self, num_samples: int) -> tuple[int, int, int, int]:
        """Return the shape of the latents of so many samples, of which the last latent frame may be partly empty."""
        return self.encoder.facts.features, -(-num_samples // self.spec.samples_per_latent), 1, 1

    @torch.no_grad()
    def latents(self, samples_BSK: Tensor, device: torch.device) -> Tensor:
        """Encode int16 samples to float32 latents `[B, F, N, 1, 1]`, clip by clip, so that none depends on others.

        Silence fills the last latent frame.
        """
        samples = upload.to_device(samples_BSK, device).float() / _FULL_SCALE
        samples = pad(samples, (0, 0, 0, -samples.shape[1] % self.spec.samples_per_latent))
        return torch.cat([self.encoder.encode(one[None]).float() for one in samples])[..., None, None]

    @torch.no_grad()
    def samples(self, latent_BFN11: Tensor) -> tuple[Tensor, int]:
        """Decode latents to int16 samples `[B, S, K]` on the CPU, and return their rate."""
        samples, rate = self.encoder.decode(latent_BFN11.float().flatten(2))
        return (samples.clamp(-1, 1) * (_FULL_SCALE - 1)).round().to(torch.int16).cpu(), rate


class CaptionCache:
    """A cache of embeddings in CPU memory by exact caption, which evicts the least recently used first."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._entries: OrderedDict[str, TextEmbedding] = OrderedDict()

    def get(self, caption: str, embed: Callable[[], TextEmbedding]) -> TextEmbedding:
        """Return the embedding of a caption in CPU memory; embed the caption if it is not cached."""
        if (cached := self._entries.get(caption)) is not None:
            self._entries.move_to_end(caption)
            return TextEmbedding(cached.tokens.float(), cached.mask, cached.pooled.float())
        embedding = TextEmbedding(*(part.cpu() for part in embed()))
        entry = TextEmbedding(*map(narrow, embedding))
        self._entries[caption] = entry
        self._bytes += _size(entry)
        while self._bytes > self._most_bytes:
            self._bytes -= _size(self._entries.popitem(last=False)[1])
        return embedding


def narrow(values: Tensor) -> Tensor:
    """Return float32 values as bfloat16 if that loses nothing, as in the output of published text encoders."""
    if values.dtype != torch.float32:
        return values
    half = values.bfloat16()
    return half if torch.equal(half.float(), values) else values


def _size(embedding: TextEmbedding) -> int:
    return _ENTRY_BYTES + sum(part.nbytes for part in embedding)


@dataclass(frozen=True)
class FrozenEncoders:
    """The frozen encoders of a model: autoencoder, text encoder and perhaps an image encoder of a clip's first frame."""

    autoencoder: Autoencoder
    text_encoder: TextEncoder  # on any device
    device: torch.device  # of all other encoders and of all results
    conditioning: Conditioning = LEARNED
    image_encoder: ImageEncoder | None = None
    given: tuple[str, ...] = ()  # companions that the model takes
    embedded: CaptionCache = field(default_factory=CaptionCache)
    sound: SoundTrack | None = None  # of a model that is trained with the sound of clips

    @property
    def companion_latents(self) -> tuple[str, ...]:
        """Names of the inputs that are made of companions."""
        if not self.conditioning.companions.control_parts:
            return self.given
        return ("control", *(name for name in SOURCES if name in self.given))

    def loaded(self) -> FrozenEncoders:
        """Return the same encoders with those of pixels and sound in memory, if they were to be loaded at first use."""
        autoencoder = self.autoencoder
        loaded = autoencoder.loaded() if isinstance(autoencoder, Lazy) else autoencoder
        return replace(self, autoencoder=loaded, sound=None if self.sound is None else self.sound.loaded())

    def embed_ahead(self, prompts: Sequence[str]) -> None:
        """Embed texts, which stay cached, and drop the text encoder if it was loaded for them."""
        text = self.text_encoder
        if prompts and isinstance(text, Lazy) and not text.sees_pictures:
            self.texts([*prompts, ""], [*(False for _ in prompts), True])
            text.drop()

    @torch.no_grad()
    def latents(self, frames_BTHWC: Tensor) -> Tensor:
        """Encode uint8 frames to float32 latents `[B, C, T, H, W]`.

        Frames travel as bytes and are normalised to [-1, 1] here, on the device.
        """
        if self.device.type != "cuda":
            return self.latents_at_once(frames_BTHWC)
        parts = torch.split(frames_BTHWC, clips_at_once(frames_BTHWC.shape))
        return torch.cat([self.latents_at_once(part_BTHWC) for part_BTHWC in parts])

    @torch.no_grad()
    def latents_at_once(self, frames_BTHWC: Tensor) -> Tensor:
        """Encode frames as `latents` does, all in one pass of the autoencoder."""
        video_BTHWC = upload.to_device(frames_BTHWC, self.device).float() / 127.5 - 1.0
        return self.autoencoder.encode(video_BTHWC.permute(0, 4, 1, 2, 3)).float()

    @torch.no_grad()
    def texts(self, captions: Sequence[str], dropped: Sequence[bool], pictures: Sequence[Tensor] = ()) -> TextEmbedding:
        """Embed captions one by one, so that no embedding depends on the others of a batch, and cache them.

        `dropped` is True where the empty caption replaces a caption, unless the model has learnt its own embedding.
        `pictures` are what captions may refer to in order, as `TextEncoder.encode` has them; embeddings with them are not
        cached.
        """
        if self.conditioning.empty_caption == "encoded":
            captions = ["" if drop else text for text, drop in zip(captions, dropped, strict=True)]
        encode = self.text_encoder.encode
        if self.text_encoder.sees_pictures and pictures:
            rows = [encode([text], [each[i : i + 1] for each in pictures]) for i, text in enumerate(captions)]
        else:
            rows = [self.embedded.get(text, partial(encode, [text])) for text in captions]
        return TextEmbedding(*(upload.to_device(torch.cat(parts), self.device) for parts in zip(*rows, strict=True)))

    @torch.no_grad()
    def frames(self, latent_BCTHW: Tensor, num_frames: int) -> Tensor:
        """Decode latents to uint8 frames `[B, T, H, W, 3]`; see `require_numbers`."""
        video_BCTHW = self.autoencoder.decode(latent_BCTHW.float(), num_frames)
        require_numbers(latent_BCTHW, video_BCTHW)
        return ((video_BCTHW.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 4, 1).contiguous()


class Lazy:
    """An encoder of known sizes that `build` makes on its device at its first use; from then on it stays in memory.

    Training from stored latents and embeddings needs none. What is known of it is told without loading it, and all else by the loaded one; see `models.api`.

    Attributes:
        made: The loaded one, if it is.
    """

    def __init__(self, name: str, build: Callable[[], Any], **known: Any) -> None:
        vars(self).update(known)
        self._name, self._build = name, build
        self.made: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what copies and the like look for
            raise AttributeError(name)
        return getattr(self.loaded(), name)

    def encode(self, *inputs: Any) -> Any:
        """Encode what the loaded one encodes."""
        return self.loaded().encode(*inputs)

    def loaded(self) -> Any:
        """Return the encoder in memory."""
        if not self.made:
            with log.stage(f"loading the {self._name}", at_once=True):
                self.made.append(self._build())
        return self.made[0]

    def drop(self) -> None:
        """Let go of it, until it is used again."""
        self.made.clear()
        gc.collect()  # a compiled network refers to itself
