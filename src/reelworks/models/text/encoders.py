"""The text encoders of diffusers' families: each pipeline's own way from captions to embeddings.

A pipeline without its denoiser and autoencoder is loaded, so that templates, layers, padding and cleaning
are those that the released weights were trained with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from reelworks.core.errors import UserError
from reelworks.models import optional_imports, published
from reelworks.models.api import TextEmbedding, TextEncoder
from reelworks.models.config import TextConfig
from reelworks.models.text import identity, qwen_vl
from reelworks.precision.contract import Contract


def words_cut_off(tokenizer: Any, caption: str, max_length: int) -> int:
    """Count the words at a caption's end that are not kept, a word cut in two included."""
    kept = tokenizer(caption, max_length=max_length, truncation=True, return_offsets_mapping=True)
    end = max(stop for _, stop in kept["offset_mapping"])
    return len(caption[end:].split())


_STORAGE = torch.bfloat16
# T5 is among them, whose feed-forward layers pass the range of float16.
CONTRACT = Contract(_STORAGE, _STORAGE, None, None, torch.float32, {}, overflows=frozenset({torch.float16}))


Encode = Callable[[Any, list[str], int, Tensor | None], "_Encoded"]
_NOT_OF_TEXT = {
    *("vae", "transformer", "transformer_2", "unet", "processor"),
    *("audio_vae", "vocoder", "prompt_enhancer", "duration_head"),
}
_PICTURE_PX = 1024 * 1024  # in all, to which an edited picture is scaled before it is looked at


class _Encoded(NamedTuple):
    """Captions as a pipeline encodes them; without a mask, all tokens count."""

    tokens: Tensor
    mask: Tensor | None = None
    pooled: Tensor | None = None


def _wan(pipeline: Any, captions: list[str], length: int, _pictures: Tensor | None) -> _Encoded:
    tokens, _ = pipeline.encode_prompt(captions, None, False, max_sequence_length=length)
    return _Encoded(tokens, tokens.any(dim=-1))  # what fills them up is zeros


def _flux(pipeline: Any, captions: list[str], length: int, _pictures: Tensor | None) -> _Encoded:
    tokens, pooled, _ = pipeline.encode_prompt(captions, captions, max_sequence_length=length)
    return _Encoded(tokens, pooled=pooled)


def _flux2(pipeline: Any, captions: list[str], length: int, _pictures: Tensor | None) -> _Encoded:
    return _Encoded(pipeline.encode_prompt(captions, max_sequence_length=length)[0])


def _qwen_image(pipeline: Any, captions: list[str], length: int, _pictures: Tensor | None) -> _Encoded:
    tokens, mask = pipeline.encode_prompt(captions, max_sequence_length=length)
    return _Encoded(tokens, mask)


def _qwen_image_edit(pipeline: Any, captions: list[str], length: int, pictures: Tensor | None) -> _Encoded:
    if pictures is None:  # asked for sizes alone
        pictures = torch.zeros(len(captions), 32, 32, 3, dtype=torch.uint8)
    _, H, W, _ = pictures.shape
    scale = math.sqrt(_PICTURE_PX / (H * W))
    height, width = (round(size * scale / 32) * 32 for size in (H, W))
    shown = [
        Image.fromarray(one).resize((width, height), Image.Resampling.LANCZOS)
        for one in pictures.cpu().numpy()
    ]
    tokens, mask = pipeline.encode_prompt(captions, shown, max_sequence_length=length)
    return _Encoded(tokens, mask)


def _z_image(pipeline: Any, captions: list[str], length: int, _pictures: Tensor | None) -> _Encoded:
    rows, _ = pipeline.encode_prompt(captions, do_classifier_free_guidance=False, max_sequence_length=length)
    masks = [row.new_ones(len(row), dtype=torch.bool) for row in rows]
    return _Encoded(pad_sequence(rows, batch_first=True), pad_sequence(masks, batch_first=True))


def _ltx(pipeline: Any, captions: list[str], length: int, _pictures: Tensor | None) -> _Encoded:
    tokens, mask, *_ = pipeline.encode_prompt(captions, None, False, max_sequence_length=length)
    return _Encoded(tokens, mask)


def _ltx2(pipeline: Any, captions: list[str], length: int, _pictures: Tensor | None) -> _Encoded:
    """States of all layers, which a small network of the pipeline's makes tokens of; learnt ones fill them up."""
    learnt = pipeline.connectors.config.video_connector_num_learnable_registers
    if length % learnt:
        raise UserError(
            f"captions are filled up with {learnt} learnt tokens",
            field="text.max_length",
            value=length,
            remedy=f"use a multiple of {learnt}",
        )
    states, mask, *_ = pipeline.encode_prompt(captions, None, False, max_sequence_length=length)
    tokens, _, mask = pipeline.connectors(states, mask, padding_side=pipeline.tokenizer.padding_side)
    return _Encoded(tokens, mask)


def _hunyuan_video15(pipeline: Any, captions: list[str], length: int, _pictures: Tensor | None) -> _Encoded:
    pipeline.tokenizer_max_length = length  # the one that takes it nowhere else
    tokens, mask, *_ = pipeline.encode_prompt(captions, batch_size=len(captions))
    return _Encoded(tokens, mask)


def _sdxl(pipeline: Any, captions: list[str], length: int, _pictures: Tensor | None) -> _Encoded:
    tokens, _, pooled, _ = pipeline.encode_prompt(captions, do_classifier_free_guidance=False)
    if pipeline.config.force_zeros_for_empty_prompt:
        empty = torch.tensor([not caption for caption in captions], device=tokens.device)
        tokens = tokens.masked_fill(empty[:, None, None], 0)
        pooled = pooled.masked_fill(empty[:, None], 0)
    return _Encoded(tokens, pooled=pooled)


def _sd3(pipeline: Any, captions: list[str], length: int, _pictures: Tensor | None) -> _Encoded:
    tokens, _, pooled, _ = pipeline.encode_prompt(
        captions,
        captions,
        captions,
        do_classifier_free_guidance=False,
        max_sequence_length=length - pipeline.tokenizer_max_length,  # a T5's, behind those of its CLIPs
    )
    return _Encoded(tokens, pooled=pooled)


# How each encodes, and which of its tokenizers cuts captions last.
_FAMILIES: dict[str, tuple[Encode, str]] = {
    "wan": (_wan, "tokenizer"),
    "flux": (_flux, "tokenizer_2"),
    "flux2": (_flux2, "tokenizer"),
    "qwen-image": (_qwen_image, "tokenizer"),
    "qwen-image-edit": (_qwen_image_edit, "tokenizer"),
    "z-image": (_z_image, "tokenizer"),
    "ltx-video": (_ltx, "tokenizer"),
    "ltx-2": (_ltx2, "tokenizer"),
    "ltx-2.3": (_ltx2, "tokenizer"),
    "hunyuan-video-1.5": (_hunyuan_video15, "tokenizer"),
    "sdxl": (_sdxl, "tokenizer"),
    "sd3": (_sd3, "tokenizer_3"),
}


@final
class FamilyTextEncoder:
    """Captions as a family's pipeline embeds them.

    Attributes:
        dim: Width of a token.
        pooled_dim: Width of a caption's summary, 0 where there is none.
        max_length: Tokens kept of a caption.
    """

    contract = CONTRACT

    def __init__(self, config: TextConfig) -> None:
        """Load from a local folder in diffusers' layout or from the hub.

        Raises:
            UserError: Nothing that can be loaded is found, it is another family's, or its widths are not the recipe's.
        """
        assert config.weights is not None, "the recipe was checked"
        self.dim, self.pooled_dim, self.max_length = config.dim, config.pooled_dim, config.max_length
        self.sees_pictures = config.name == "qwen-image-edit"
        self._encode, tokenizer = _FAMILIES[config.name]
        known = published.TEXT_ENCODERS[config.name]
        identity.require(config, known.networks, known.dim)
        self._pipeline = _load(known.pipeline, config.weights)
        self._tokenizer = getattr(self._pipeline, tokenizer)
        made = self.encode([""])
        for field, found in (("dim", made.tokens.shape[2]), ("pooled_dim", made.pooled.shape[1])):
            if found != getattr(config, field):
                raise UserError(
                    f"these text encoders have {found}",
                    field=f"text.{field}",
                    value=getattr(config, field),
                    remedy=f"set it to {found}",
                )

    @torch.no_grad()
    def encode(self, captions: Sequence[str], pictures_BHWC: Tensor | None = None) -> TextEmbedding:
        """Embed captions as the family's pipeline does, filled up to `max_length`."""
        tokens, mask, pooled = self._encode(self._pipeline, list(captions), self.max_length, pictures_BHWC)
        tokens = tokens.float()[:, : self.max_length]
        mask = tokens.new_ones(tokens.shape[:2]) if mask is None else mask[:, : self.max_length]
        missing = self.max_length - tokens.shape[1]
        return TextEmbedding(
            pad(tokens, (0, 0, 0, missing)),
            pad(mask.bool(), (0, missing)),
            tokens.new_zeros(len(tokens), 0) if pooled is None else pooled.float(),
        )

    def unseen(self, caption: str) -> int:
        """Count the words at a caption's end that `max_length` cuts off, a word cut in two included."""
        return words_cut_off(self._tokenizer, caption, self.max_length)

    def to(self, device: torch.device) -> TextEncoder:
        """Move the networks, in place."""
        self._pipeline.to(device)
        return self


def _load(name: str, source: str) -> Any:
    kind = getattr(optional_imports.diffusers(), name)
    unused = _NOT_OF_TEXT & set(kind._get_signature_keys(kind)[0])
    parts: dict[str, Any] = dict.fromkeys(unused)
    if name == "HunyuanVideo15Pipeline":  # which cannot be built without an autoencoder's sizes
        with torch.device("meta"):
            parts["vae"] = optional_imports.diffusers().AutoencoderKLHunyuanVideo15()
    try:
        pipeline = kind.from_pretrained(source, dtype=_STORAGE, **parts)
        pipeline.register_modules(**dict.fromkeys(unused))
        if name == "QwenImageEditPipeline":
            pipeline.processor = qwen_vl.load(pipeline.tokenizer, source)
    except Exception as error:  # damage leads the readers into errors of any kind
        raise UserError(
            f"no text encoders of {name} can be loaded ({str(error).partition(chr(10))[0]})",
            field="text.weights",
            value=source,
            remedy="name a folder in diffusers' layout or a hub id of this family",
        ) from error
    for part in pipeline.components.values():
        if isinstance(part, torch.nn.Module):
            part.requires_grad_(False).eval()
    return pipeline
