"""Training adapters: frozen LoRAs that a network is trained with and used without.

A distilled base forgets what was distilled into it while a LoRA is trained on it, unless an adapter, which was trained
to undo the distillation, takes part in training: the new LoRA then learns its subject alone, and fits the base without
the adapter.

The adapter's product is added to the output of each layer, and never to the weights. So it can be left out without any
rounding, whatever the storage of the base, and a quantised base is the same with it and without.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from reelworks.core import units
from reelworks.core.errors import UserError, first_few
from reelworks.models import base_model
from reelworks.models.adapters import files, inject, key_mapping
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.family import FamilyConfig
from reelworks.models.storage import weights

_FIELD = "lora.training_adapter"
_A, _B, _IS_ON = "training_adapter_A", "training_adapter_B", "training_adapter_is_on"


class TrainingAdapter(NamedTuple):
    """The contents of a file: tensors as they are in it, and its header."""

    source: str
    tensors: Mapping[str, Tensor]
    header: Mapping[str, str]

    @classmethod
    def read(cls, source: str) -> TrainingAdapter:
        """Read a file: a path, a hub id of a repository with one file, or `owner/name/file` on the hub."""
        path = str(weights.require_file(source, _FIELD))
        with weights.telling(_FIELD, source):
            tensors = files.updates_in(weights.read(path, field=_FIELD), source, _FIELD)
            return cls(source, tensors, files.header(path))

    def digest(self) -> str:
        """Return a digest of its tensors and of the settings in its header, which its scale depends on."""
        settings = key_mapping.stored_settings(self.header.get(key_mapping.METADATA, "{}"))
        text = torch.frombuffer(bytearray(json.dumps(settings, sort_keys=True), "utf-8"), dtype=torch.uint8)
        return base_model.digest({**self.tensors, key_mapping.METADATA: text} if settings else self.tensors)

    def attach(self, module: nn.Module, family: FamilyConfig | None) -> None:
        """Add the adapter to the layers of a network that has its weights and no LoRA yet, in place.

        Raises:
            UserError: A tensor fits no layer; nothing is attached then.
        """
        layers: dict[str, Any] = {name: module.get_submodule(name) for name in inject.linear_layers(module)}
        # The rank of the settings decides how joined layers are split, and the products are the same either way.
        with weights.telling(_FIELD, self.source):
            updates, unknown = key_mapping.place_tensors(self.tensors, layers, LoraConfig(), family, self.header)
        for name, kinds in updates.items():
            own, update = layers[name], (kinds["A"].shape[-1], kinds["B"].shape[0])
            if "magnitude_vector" in kinds or update != (own.in_features, own.out_features):
                unknown.append(name)
        if unknown or not updates:
            raise UserError(
                f"not an adapter of this model: {len(unknown):,} of its {len(self.tensors):,} tensors "
                f"{units.verb(len(unknown), 'fit')} none of its linear layers, such as {first_few(sorted(unknown)) or 'all'}",
                code="training-adapter-does-not-fit",
                field=_FIELD,
                value=self.source,
                remedy="name a LoRA for this model, of two low-rank matrices for each layer",
            )
        for name, kinds in updates.items():
            _add(layers[name], kinds)


def _add(layer: nn.Module, kinds: Mapping[str, Tensor]) -> None:
    """Keep the two matrices as buffers of a layer, in float32 and on its device, and add their product to its output.

    State dicts lack them, so that checkpoints and exports do not change, and FSDP leaves them whole.
    """
    device = next(value for value in (*layer.parameters(), *layer.buffers())).device
    layer.register_buffer(_A, kinds["A"].to(device, torch.float32), persistent=False)
    layer.register_buffer(_B, kinds["B"].to(device, torch.float32), persistent=False)
    setattr(layer, _IS_ON, True)
    layer.register_forward_hook(_add_update)


def _add_update(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Return the output of a layer with the adapter's product; autocast lowers it as it does the layer's own."""
    if not getattr(layer, _IS_ON):
        return output
    input, A, B = args[0], layer.get_buffer(_A), layer.get_buffer(_B)
    low_rank = functional.linear(input, A.to(input.dtype))
    return output + functional.linear(low_rank, B.to(low_rank.dtype)).to(output.dtype)


@contextmanager
def disable(module: nn.Module) -> Iterator[None]:
    """Run a network without its training adapter, if it has one; the trained LoRA stays."""
    layers = [child for child in module.modules() if hasattr(child, _IS_ON)]
    for layer in layers:
        setattr(layer, _IS_ON, False)
    try:
        yield
    finally:
        for layer in layers:
            setattr(layer, _IS_ON, True)
