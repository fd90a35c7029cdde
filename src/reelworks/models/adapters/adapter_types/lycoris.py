"""Base class of LoKr, LoHa and OFT: their files are peft's for diffusers, or have LyCORIS's names.

peft's layers of these types draw a random number in each pass, which breaks compiled graphs, and build the whole update of
a LoKr; the forward passes here keep peft's parameters.
"""

from __future__ import annotations

import json
from abc import ABC
from collections.abc import Collection, Mapping
from typing import Any

from reelworks.models.adapters.adapter_types.adapter_type import Adapter, AdapterType


class LycorisType(AdapterType, ABC):
    """A type of LyCORIS."""

    needs_alpha = True

    def peft_settings(self, adapter: Adapter, layers: Mapping[str, Collection[str]]) -> dict[str, Any]:
        """Return peft's settings for the header of a file."""
        names = {"peft_type": self.name.upper(), "target_modules": sorted(layers)}
        return names | {"r": adapter.rank, "alpha": adapter.rank}

    def header(self, adapter: Adapter) -> dict[str, str]:
        """Return what the header of a file says of the type, in kohya's terms."""
        arguments = {"algo": self.name, "factor": adapter.decompose_factor or -1}
        return {"ss_network_module": "lycoris.kohya", "ss_network_args": json.dumps(arguments)}
