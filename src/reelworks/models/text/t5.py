"""The encoder of a T5 (Raffel et al. 2020), from transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from reelworks.core.errors import UserError
from reelworks.models import optional_imports
from reelworks.models.api import TextEmbedding, TextEncoder
from reelworks.models.config import TextEncoderConfig
from reelworks.models.family import T5
from reelworks.models.text import identity
from reelworks.models.text.encoders import words_cut_off
from reelworks.precision.contract import Contract

# Its feed-forward layers exceed the range of float16; in float32 the XXL takes 19 GB.
_STORAGE = torch.bfloat16
_WIDTH = 4096  # width of the XXL
CONTRACT = Contract(_STORAGE, _STORAGE, None, None, torch.float32, {}, overflows=frozenset({torch.float16}))


@final
class T5TextEncoder:
    """A text encoder that returns the last hidden states of a T5; captions are neither cleaned nor lower-cased.

    Attributes:
        dim: Width of an embedding.
        pooled_dim: 0, because a T5 has no pooled embedding.
        max_length: Tokens of a caption that are read, including the end mark.
    """

    contract = CONTRACT
    sees_pictures = False

    def __init__(self, config: TextEncoderConfig) -> None:
        """Load the encoder from a local folder or from the hub.

        Raises:
            UserError: The weights cannot be loaded, are not those of a T5, or have another width than `text_encoder.dim`.
        """
        assert config.weights is not None, "the recipe was checked"
        self.dim, self.pooled_dim, self.max_length = config.dim, 0, config.max_length
        self._device = torch.device("cpu")
        identity.require(config, (T5,), _WIDTH)
        self._tokenizer, self._model = _load(config.weights)
        if self._model.config.d_model != config.dim:
            raise UserError(
                f"this T5 is {self._model.config.d_model} wide",
                code="text-width-differs",
                field="text_encoder.dim",
                value=config.dim,
                remedy=f"set it to {self._model.config.d_model}",
            )

    @torch.no_grad()
    def encode(self, captions: Sequence[str], pictures_BHWC: Tensor | None = None) -> TextEmbedding:
        """Return the last hidden state of every token; padding is masked within the T5 and in the result."""
        tokens = self._tokenizer(
            list(captions),
            max_length=self.max_length,
            padding="max_length",
            truncation=True,
            return_tensors="pt",
        ).to(self._device)
        hidden: Tensor = self._model(tokens.input_ids, attention_mask=tokens.attention_mask).last_hidden_state
        hidden = hidden.float()
        return TextEmbedding(hidden, tokens.attention_mask.bool(), hidden.new_zeros(len(captions), 0))

    def unseen(self, caption: str) -> int:
        """Count the words at a caption's end that `max_length` cuts off, also in part."""
        return words_cut_off(self._tokenizer, caption, self.max_length)

    def to(self, device: torch.device) -> TextEncoder:
        """Move the network and return this object."""
        self._device = torch.device(device)
        self._model.to(self._device)
        return self


def _load(source: str) -> tuple[Any, Any]:
    transformers = optional_imports.transformers()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        model = transformers.T5EncoderModel.from_pretrained(source, dtype=_STORAGE)
    except Exception as error:  # damaged files raise errors of any kind
        raise UserError(
            f"no T5 with its tokenizer can be loaded ({str(error).partition(chr(10))[0]})",
            code="text-encoder-unloadable",
            field="text_encoder.weights",
            value=source,
            remedy="name a folder that holds both, or a hub id such as DeepFloyd/t5-v1_1-xxl",
        ) from error
    return tokenizer, model.requires_grad_(False).eval()
