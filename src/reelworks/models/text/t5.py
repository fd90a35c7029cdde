"""The encoder of a T5 (Raffel et al. 2020), by transformers."""

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

# Its feed-forward layers pass the range of float16; in float32 the XXL takes 19 GB.
_STORAGE = torch.bfloat16
_WIDTH = 4096  # of the XXL
CONTRACT = Contract(_STORAGE, _STORAGE, None, None, torch.float32, {}, overflows=frozenset({torch.float16}))


@final
class T5TextEncoder:
    """Captions as the last hidden states of a T5, as they stand: no cleaning, no lower case.

    Attributes:
        dim: Width of an embedding.
        pooled_dim: 0: a T5 has no summary.
        max_length: Tokens kept of a caption, the end mark included.
    """

    contract = CONTRACT
    sees_pictures = False

    def __init__(self, config: TextEncoderConfig) -> None:
        """Load from a local folder or from the hub.

        Raises:
            UserError: Nothing that can be loaded is found, it is no T5, or its width is not `text_encoder.dim`.
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
        """Return the last hidden states of every token.

        Tokens behind the end mark are padding: they are masked within the T5 and in what it returns.
        """
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
        """Count the words at a caption's end that `max_length` cuts off, a word cut in two included."""
        return words_cut_off(self._tokenizer, caption, self.max_length)

    def to(self, device: torch.device) -> TextEncoder:
        """Move the network, in place."""
        self._device = torch.device(device)
        self._model.to(self._device)
        return self


def _load(source: str) -> tuple[Any, Any]:
    transformers = optional_imports.transformers()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        model = transformers.T5EncoderModel.from_pretrained(source, dtype=_STORAGE)
    except Exception as error:  # damage leads the readers into errors of any kind
        raise UserError(
            f"no T5 with its tokenizer can be loaded ({str(error).partition(chr(10))[0]})",
            code="text-encoder-unloadable",
            field="text_encoder.weights",
            value=source,
            remedy="name a folder that holds both, or a hub id such as DeepFloyd/t5-v1_1-xxl",
        ) from error
    return tokenizer, model.requires_grad_(False).eval()
