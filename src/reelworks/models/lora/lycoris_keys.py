"""Map the tensors of a LoKr's, LoHa's or OFT's file to layers of the network, or to rows of layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from reelworks.core.errors import UserError
from reelworks.models.family import FamilyConfig
from reelworks.models.lora import key_mapping
from reelworks.models.lora.config import LoraConfig
from reelworks.models.lora.key_mapping import Layers, TargetLayer, swapped_halves

HADA_PAIRS = (("hada_w1_b", "hada_w1_a"), ("hada_w2_b", "hada_w2_a"))
"""The two products of a LoHa, each as the A and B of a LoRA."""
# Settings of peft's OFT under which the same numbers are another rotation, with the values that are read.
_OFT_RULES = {"coft": False, "block_share": False, "use_cayley_neumann": True, "num_cayley_neumann_terms": 5}


def placed(
    tensors: Mapping[str, Tensor],
    layers: Iterable[str],
    config: LoraConfig,
    family: FamilyConfig | None,
    metadata: Mapping[str, str],
) -> tuple[Layers, list[str]]:
    """Return the tensors of a file by layer of the network that has an adapter, and the names that belong to none."""
    targets, settings = key_mapping.homes(layers, family), key_mapping.settings_of(metadata)
    for name, value in _OFT_RULES.items() if config.type == "oft" else ():
        if settings.get(name, value) != value:
            raise UserError(
                f"its header has {name} = {settings[name]}, which is not supported",
                code="lora-unreadable",
                remedy="name another file",
            )
    stored, unknown = key_mapping.by_layer(tensors, targets, key_mapping.LYCORIS_ENDINGS)
    result: Layers = {}
    for spelling, kinds in stored.items():
        parts = _parted(key_mapping.rescaled(kinds, settings, config), targets[spelling], config)
        unknown += [spelling] * (not parts)
        result |= parts
    return result, unknown


def _parted(kinds: dict[str, Tensor], targets: list[TargetLayer], config: LoraConfig) -> Layers:
    """Split one stored layer into the target layers; empty if that cannot be done."""
    place = targets[0].place
    if config.type == "loha":
        if not kinds.keys() >= {kind for pair in HADA_PAIRS for kind in pair}:
            return {}
        products = [key_mapping.parted({"A": kinds[A], "B": kinds[B]}, targets, config.rank) for A, B in HADA_PAIRS]
        if not all(products):
            return {}
        (b1, a1), (b2, a2) = HADA_PAIRS
        return {
            layer: {a1: one["B"], b1: one["A"], a2: other["B"], b2: other["A"]}
            for (layer, one), other in zip(products[0].items(), products[1].values(), strict=True)
        }
    if place.heights != (1,):
        return {}
    return {targets[0].layer: swapped(kinds) if place.swapped else kinds}


def swapped(kinds: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Swap the upper and the lower half of the rows of a LoKr's update; rows are ordered by the first factor first."""
    first = "lokr_w1" if "lokr_w1" in kinds else "lokr_w1_a"
    if kinds[first].shape[0] == 1:
        first = "lokr_w2" if "lokr_w2" in kinds else "lokr_w2_a"
    if kinds[first].shape[0] % 2:
        raise UserError(
            "the halves of a layer's rows change places in these files, which a first factor with an odd number of "
            "rows cannot express",
            code="adapter-not-writable",
            field="lora.decompose_factor",
            remedy="set it to 2, or leave the last norm out of lora.targets",
        )
    return {**kinds, first: swapped_halves(kinds[first])}
