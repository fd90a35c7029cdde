"""Adapter types by their names in recipes."""

from __future__ import annotations

from reelworks.models.adapters.adapter_types.adapter_type import AdapterType
from reelworks.models.adapters.adapter_types.loha import LoHa
from reelworks.models.adapters.adapter_types.lokr import LoKr
from reelworks.models.adapters.adapter_types.lora import LoRA
from reelworks.models.adapters.adapter_types.oft import OFT

LORA = LoRA()
TYPES: dict[str, AdapterType] = {}


def register(kind: AdapterType) -> None:
    """Let `lora.type` select a type by its name."""
    assert kind.name not in TYPES, kind.name
    TYPES[kind.name] = kind


for _kind in (LORA, LoKr(), LoHa(), OFT()):
    register(_kind)
