"""Captions with a picture among their words, as Qwen2.5-VL reads them.

Stands for the processor of transformers, which cannot be made without a video's, and that not without torchvision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from PIL import Image

from reelworks.models import optional_imports

_PICTURE = "<|image_pad|>"  # one in the text for each token of the picture


@final
class ImagePlaceholderTokens:
    """Prepares texts and pictures, one each."""

    def __init__(self, tokenizer: Any, pictures: Any) -> None:
        self._tokenizer, self._pictures = tokenizer, pictures

    def __call__(
        self, *, text: Sequence[str], images: Sequence[Image.Image], padding: bool, return_tensors: str
    ) -> Any:
        """Return what the model takes."""
        seen = self._pictures(images=images, return_tensors=return_tensors)
        counts = seen["image_grid_thw"].prod(dim=1) // self._pictures.merge_size**2
        words = self._tokenizer(
            [
                one.replace(_PICTURE, _PICTURE * count)
                for one, count in zip(text, counts.tolist(), strict=True)
            ],
            padding=padding,
            return_tensors=return_tensors,
        )
        return optional_imports.transformers().BatchFeature({**words, **seen})


def load(tokenizer: Any, source: str) -> ImagePlaceholderTokens:
    """Load what prepares pictures from the folder of a processor beside the other parts."""
    kind = optional_imports.transformers().Qwen2VLImageProcessorPil
    return ImagePlaceholderTokens(tokenizer, kind.from_pretrained(source, subfolder="processor"))
