"""Encoders whose picture embeddings condition a network: the vision half of a CLIP or SigLIP.

Legend: B pictures, H height, W width, N tokens, E their width.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, final

import torch
from torch import Tensor

from reelworks.core import optional_imports
from reelworks.core.errors import UserError
from reelworks.data.distributed.contract import Contract
from reelworks.models import hub
from reelworks.models.api import ImageEncoder
from reelworks.models.storage.weights import require_there

CONTRACT = Contract(torch.float32, torch.float32, None, None, torch.float32, {})


class _EncoderFacts(NamedTuple):
    model: str
    processor: str
    folder: str  # of the processor, in a pipeline
    layer: int  # index among the hidden states


_KINDS = {
    "clip": _EncoderFacts("CLIPVisionModel", "CLIPImageProcessor", "image_processor", -2),
    "siglip": _EncoderFacts("SiglipVisionModel", "SiglipImageProcessor", "feature_extractor", -1),
}


@final
class VisionEncoder:
    """Embeds pictures as the pipelines of diffusers do; see `models.api.ImageEncoder`."""

    contract = CONTRACT

    def __init__(self, kind: Literal["clip", "siglip"], weights: str) -> None:
        """Load from a pipeline's folder, the encoder's own folder, or the hub."""
        self._kind = _KINDS[kind]
        module = _load(self._kind.model, weights, "image_encoder", dtype=CONTRACT.storage)
        self._module = module.requires_grad_(False).eval()
        self._processor = _load(self._kind.processor, weights, self._kind.folder)
        _, self.tokens, self.dim = self.encode(torch.zeros(1, 32, 32, 3, dtype=torch.uint8)).shape

    @torch.no_grad()
    def encode(self, pictures_BHWC: Tensor) -> Tensor:
        """Embed uint8 pictures as `[B, N, E]` float32."""
        prepared = self._processor(images=list(pictures_BHWC.cpu().numpy()), return_tensors="pt")
        out = self._module(**prepared.to(self._module.device), output_hidden_states=True)
        tokens: Tensor = out.last_hidden_state if self._kind.layer == -1 else out.hidden_states[self._kind.layer]
        return tokens.float()

    def to(self, device: torch.device) -> ImageEncoder:
        """Move the network, in place."""
        self._module.to(device)
        return self


def _load(name: str, source: str, folder: str, **options: Any) -> Any:
    field = "model.image_encoder"
    require_there(source, field)
    load = getattr(optional_imports.transformers(), name).from_pretrained
    try:
        try:
            return hub.pretrained(load, source, subfolder=folder, **options)
        except OSError:  # not a pipeline's folder
            return hub.pretrained(load, source, **options)
    except Exception as error:  # damaged files raise errors of any kind
        raise UserError(
            f"no {name} can be loaded ({str(error).partition(chr(10))[0]})",
            code="image-encoder-unloadable",
            field=field,
            value=source,
            remedy="set it to a folder in diffusers' layout or a hub id of this family",
        ) from error
