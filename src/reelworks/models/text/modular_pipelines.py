"""Text encoders of modular pipelines, whose folders have no class of pipeline that could load them."""

from __future__ import annotations

from typing import Any, Self, final

import torch

from reelworks.core import optional_imports
from reelworks.models import hub


@final
class TextParts:
    """Text encoder, tokenizer and what else encodes texts in a modular pipeline; other pipelines hold them themselves."""

    def __init__(self, text_encoder: Any, tokenizer: Any, **others: Any) -> None:
        self.text_encoder, self.tokenizer = text_encoder, tokenizer
        self.processor: Any = None  # of pictures, for encoders that see them
        self.components = {"text_encoder": text_encoder, "tokenizer": tokenizer, **others}

    def to(self, device: torch.device) -> Self:
        """Move the networks."""
        for part in self.components.values():
            if isinstance(part, torch.nn.Module):
                part.to(device)
        return self


def load_qwen3_vl(source: str, dtype: torch.dtype, tokenizer: str = "tokenizer") -> TextParts:
    """Load a Qwen3-VL and its tokenizer, whose folder may have another name."""
    library = optional_imports.transformers()
    kind = library.Qwen3VLForConditionalGeneration
    encoder = hub.pretrained(kind.from_pretrained, source, subfolder="text_encoder", dtype=dtype)
    return TextParts(encoder, hub.pretrained(library.AutoTokenizer.from_pretrained, source, subfolder=tokenizer))
