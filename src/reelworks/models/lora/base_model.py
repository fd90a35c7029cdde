"""Which weights a LoRA lies on: told in checkpoints and files, so that it never lies on others unnoticed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from reelworks.core import digests
from reelworks.core.errors import UserError


class Base(NamedTuple):
    """The weights below a LoRA.

    Attributes:
        model: The preset.
        weights: Where they came from; None for fresh ones.
        digest: Of names, shapes and values, as they were read and before anything rounds them.
    """

    model: str
    weights: str | None
    digest: str

    def __str__(self) -> str:
        return f"{self.weights or 'fresh weights'} ({self.model}, {self.digest[:8]})"

    def to_json(self) -> str:
        """Return it as text, for a checkpoint or a file's header."""
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str | bytes) -> Base:
        """Back from `to_json`."""
        return cls(**json.loads(text))


def digest(state: Mapping[str, Tensor]) -> str:
    """Digest all values of a network; about as fast as memory is read.

    The dtype that they were stored in does not count: numbers are taken as float32.
    """
    running = digests.running()
    for name in sorted(state):
        value = state[name].detach().contiguous()
        value = value.float() if value.is_floating_point() else value
        running.update(f"{name}:{tuple(value.shape)};".encode())
        running.update(value.flatten().view(torch.uint8).numpy().data)
    return running.hexdigest()


def require_same(trained_on: Base, here: Base, field: str, value: str) -> None:
    """Refuse to go on with a LoRA on another base.

    Raises:
        UserError: Names both.
    """
    if trained_on.digest != here.digest:
        raise UserError(
            f"the LoRA was trained on {trained_on}, and the base here is {here}",
            code="lora-of-another-base",
            field=field,
            value=value,
            remedy="set model.name and model.weights to the base that it was trained on",
        )
