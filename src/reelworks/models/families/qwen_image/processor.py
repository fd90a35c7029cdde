"""Tokenize captions that contain a picture, for Qwen2.5-VL.

Replaces the processor of transformers, which needs a video processor, which needs torchvision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from PIL import Image

from reelworks.models import optional_imports

_PICTURE = "<|image_pad|>"  # occurs in the text once for each token of the picture


@final
class ImagePlaceholderTokens:
    """Prepares texts with one picture each."""

    def __init__(self, tokenizer: Any, pictures: Any) -> None:
        self._tokenizer, self._pictures = tokenizer, pictures

    def __call__(
        self, *, text: Sequence[str], images: Sequence[Image.Image], padding: bool, return_tensors: str
    ) -> Any:
        """Return the inputs of the model."""
        pictures = self._pictures(images=images, return_tensors=return_tensors)
        counts = pictures["image_grid_thw"].prod(dim=1) // self._pictures.merge_size**2
        words = self._tokenizer(
            [
                caption.replace(_PICTURE, _PICTURE * count)
                for caption, count in zip(text, counts.tolist(), strict=True)
            ],
            padding=padding,
            return_tensors=return_tensors,
        )
        return optional_imports.transformers().BatchFeature({**words, **pictures})


def load(tokenizer: Any, source: str) -> ImagePlaceholderTokens:
    """Load the picture processor from its folder in a pipeline."""
    kind = optional_imports.transformers().Qwen2VLImageProcessorPil
    return ImagePlaceholderTokens(tokenizer, kind.from_pretrained(source, subfolder="processor"))
