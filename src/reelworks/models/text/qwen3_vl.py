"""The Qwen3-VL text encoder of modular pipelines, whose folders have no class of pipeline that could load it."""

from __future__ import annotations

from typing import Any, Self, final

import torch

from reelworks.core import optional_imports
from reelworks.models import hub


@final
class TextParts:
    """Text encoder and tokenizer of a modular pipeline; other pipelines hold them themselves."""

    def __init__(self, text_encoder: Any, tokenizer: Any) -> None:
        self.text_encoder, self.tokenizer = text_encoder, tokenizer
        self.components = {"text_encoder": text_encoder, "tokenizer": tokenizer}

    def to(self, device: torch.device) -> Self:
        """Move the text encoder."""
        self.text_encoder.to(device)
        return self


def load_text_parts(source: str, dtype: torch.dtype) -> TextParts:
    """Load the text encoder and the tokenizer from their folders; captions need no picture processor."""
    library = optional_imports.transformers()
    name, options = hub.pretrained_arguments(source)
    kind = library.Qwen3VLForConditionalGeneration
    encoder = kind.from_pretrained(name, **options, subfolder="text_encoder", dtype=dtype)
    return TextParts(encoder, library.AutoTokenizer.from_pretrained(name, **options, subfolder="tokenizer"))
