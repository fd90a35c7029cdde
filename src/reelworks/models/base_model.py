"""Identify the base weights of a LoRA, so that checkpoints and files are never loaded on other ones unnoticed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from reelworks.core import digests, user_files
from reelworks.core.errors import UserError
from reelworks.data.checkpoint import safetensors_header
from reelworks.models import hub
from reelworks.models.storage import stored_weights


class Base(NamedTuple):
    """The base weights of a LoRA."""

    model: str  # name of the preset
    weights: str | None  # source of the weights; None for randomly initialised ones
    digest: str  # of names, shapes and values as they were read, before any rounding
    training_adapter: str | None = None  # digest of the adapter that takes part in training
    text_encoders: str | None = None  # digest of those that it trains too

    def __str__(self) -> str:
        return f"{self.weights or 'fresh weights'} ({self.model}, {self.digest[:8]})"

    def for_others(self) -> Base:
        """Return it as a file that is given away names it: without the folders of this machine."""
        return self._replace(weights=self.weights and hub.name_for_others(self.weights))

    def to_json(self) -> str:
        """Return this object as JSON, for a checkpoint or a file's header."""
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str | bytes) -> Base:
        """Read the output of `to_json`."""
        return cls(**user_files.parse_json(text))


def digest(state: Mapping[str, Tensor]) -> str:
    """Return a digest of all values, taken as float32 whatever their dtype; as fast as memory is read.

    A network's state dict has its variables (`keep_vars`), which know the scales of quantised values.
    """
    running = digests.running()
    for name in sorted(state):
        value = stored_weights.value(state[name]).contiguous()
        value = value.float() if value.is_floating_point() else value
        running.update(f"{name}:{tuple(value.shape)};".encode())
        running.update(safetensors_header.raw(value).cpu().numpy().data)
    return running.hexdigest()


def require_same(trained_on: Base, here: Base, checkpoint: str) -> None:
    """Refuse a LoRA that was trained on another base."""
    if trained_on.digest == here.digest and trained_on.text_encoders != here.text_encoders:
        then, now = (each.text_encoders and each.text_encoders[:8] for each in (trained_on, here))
        raise UserError(
            f"of text encoders, the LoRA was trained with {then or 'none'}, and here it has {now or 'none'}",
            code="lora-of-other-texts",
            field="checkpoint",
            value=checkpoint,
            remedy="set lora.text_encoders, text_encoder.name, text_encoder.weights and seed as they were",
        )
    if trained_on.digest != here.digest:
        raise UserError(
            f"the LoRA was trained on {trained_on}, but the base here is {here}",
            code="lora-of-another-base",
            field="checkpoint",
            value=checkpoint,
            remedy="set model.name and model.weights as they were, and for fresh weights the seed",
        )


def require_same_adapter(trained_with: Base, here: Base, source: str | None) -> None:
    """Refuse to go on training with another training adapter."""
    if trained_with.training_adapter == here.training_adapter:
        return
    then = trained_with.training_adapter
    raise UserError(
        f"the run was trained {f'with the training adapter {then[:8]}' if then else 'without a training adapter'}, "
        f"and this is {here.training_adapter[:8] if here.training_adapter else 'none'}",
        code="training-adapter-differs",
        field="lora.training_adapter",
        value=source,
        remedy="name the file that the run began with, or start another run with --output DIR --load RUN --weights-only",
    )
