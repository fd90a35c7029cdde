"""The text encoders of diffusers' families: each pipeline's own conversion of captions to embeddings.

The pipeline is loaded without its denoiser and autoencoder, so that templates, layers, padding and cleaning
are those that the released weights were trained with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from reelworks.core.errors import UserError
from reelworks.models import optional_imports, registry
from reelworks.models.api import TextEmbedding, TextEncoder
from reelworks.models.config import TextEncoderConfig
from reelworks.models.diffusers_denoiser import DiffusersNetwork
from reelworks.models.family import PublishedText
from reelworks.models.text import identity
from reelworks.precision.contract import Contract


def words_cut_off(tokenizer: Any, caption: str, max_length: int) -> int:
    """Count the words at a caption's end that `max_length` tokens do not cover, also in part."""
    tokens = tokenizer(caption, max_length=max_length, truncation=True, return_offsets_mapping=True)
    end = max(stop for _, stop in tokens["offset_mapping"])
    return len(caption[end:].split())


_STORAGE = torch.bfloat16
# One of them is T5, whose feed-forward layers exceed the range of float16.
CONTRACT = Contract(_STORAGE, _STORAGE, None, None, torch.float32, {}, overflows=frozenset({torch.float16}))
_NOT_OF_TEXT = {
    *("vae", "transformer", "transformer_2", "unet", "processor"),
    *("audio_vae", "vocoder", "prompt_enhancer", "duration_head"),
}


@final
class FamilyTextEncoder:
    """A text encoder that embeds captions as a family's pipeline does.

    Attributes:
        dim: Width of a token's embedding.
        pooled_dim: Width of a caption's pooled embedding, 0 if there is none.
        max_length: Tokens of a caption that are read; the rest is cut off.
    """

    contract = CONTRACT

    def __init__(self, config: TextEncoderConfig) -> None:
        """Load the encoder from a local folder in diffusers' layout or from the hub.

        Raises:
            UserError: The weights cannot be loaded, belong to another family, or have other widths than the recipe.
        """
        assert config.weights is not None, "the recipe was checked"
        self.dim, self.pooled_dim, self.max_length = config.dim, config.pooled_dim, config.max_length
        known = registry.TEXT_ENCODERS[config.name]
        network = registry.load_network(registry.family_of_text(config.name))
        assert isinstance(network, DiffusersNetwork), "only families of diffusers have pipelines"
        self.sees_pictures = known.sees_pictures
        self._encode = network.encode_text[config.name]
        identity.require(config, known.networks, known.dim)
        self._pipeline = _load(known, config.weights, network.load_processor)
        self._tokenizer = getattr(self._pipeline, known.tokenizer)
        embedding = self.encode([""])
        for field, width in (("dim", embedding.tokens.shape[2]), ("pooled_dim", embedding.pooled.shape[1])):
            if width != getattr(config, field):
                raise UserError(
                    f"these text encoders have {width}",
                    code="text-width-differs",
                    field=f"text_encoder.{field}",
                    value=getattr(config, field),
                    remedy=f"set it to {width}",
                )

    @torch.no_grad()
    def encode(self, captions: Sequence[str], pictures_BHWC: Tensor | None = None) -> TextEmbedding:
        """Embed captions as the family's pipeline does, padded to `max_length`."""
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
        """Count the words at a caption's end that `max_length` cuts off, also in part."""
        return words_cut_off(self._tokenizer, caption, self.max_length)

    def to(self, device: torch.device) -> TextEncoder:
        """Move the networks and return this object."""
        self._pipeline.to(device)
        return self


def _load(known: PublishedText, source: str, load_processor: Callable[[Any, str], Any] | None) -> Any:
    library = optional_imports.diffusers()
    kind = getattr(library, known.pipeline)
    unused = _NOT_OF_TEXT & set(kind._get_signature_keys(kind)[0])
    parts: dict[str, Any] = dict.fromkeys(unused)
    if known.asks_autoencoder is not None:  # the pipeline's constructor reads its sizes
        with torch.device("meta"):
            parts["vae"] = getattr(library, known.asks_autoencoder)()
    try:
        pipeline = kind.from_pretrained(source, dtype=_STORAGE, **parts)
        pipeline.register_modules(**dict.fromkeys(unused))
        if known.sees_pictures and load_processor is not None:
            pipeline.processor = load_processor(pipeline.tokenizer, source)
    except Exception as error:  # damaged files raise errors of any kind
        raise UserError(
            f"no text encoders of {known.pipeline} can be loaded ({str(error).partition(chr(10))[0]})",
            code="text-encoder-unloadable",
            field="text_encoder.weights",
            value=source,
            remedy="name a folder in diffusers' layout or a hub id of this family",
        ) from error
    for part in pipeline.components.values():
        if isinstance(part, torch.nn.Module):
            part.requires_grad_(False).eval()
    return pipeline
