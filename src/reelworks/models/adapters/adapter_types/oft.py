"""OFT: a layer's inputs are rotated in blocks."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, final

from reelworks.core.errors import UserError
from reelworks.models.adapters.adapter_types.adapter_type import NAME, Adapter, AdapterSettings, LycorisType

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from reelworks.models.adapters.conventions import Convention
    from reelworks.models.adapters.low_rank import LowRank
    from reelworks.models.adapters.release_layers import Layers, TargetLayer
    from reelworks.models.family import FamilyConfig, Network

# Settings of peft under which the same numbers are another rotation, with the values that are read.
_RULES = {"coft": False, "block_share": False, "use_cayley_neumann": True, "num_cayley_neumann_terms": 5}


@final
class OFT(LycorisType):
    """The upper triangle of a skew matrix for each block of inputs, which Cayley's map turns into a rotation."""

    name = "oft"
    settings = ("block_size",)
    tensors: ClassVar = {"oft_R": "oft_R.weight"}
    required = frozenset({"oft_R"})
    random = ()
    readable: ClassVar = {name: (value,) for name, value in _RULES.items()}
    dependence = "an OFT rotates the weights of its base, so that its update depends on them"
    # Rotated inputs are contiguous, and matrix products of others may round their sums otherwise: in SDXL's long chain of
    # bfloat16 layers by 1 %.
    tolerance = 0.02
    tiny: ClassVar = {"block_size": 4}

    def peft_config(self, peft: Any, config: AdapterSettings, target_modules: str) -> Any:
        """Return peft's settings of an adapter on the layers that a pattern matches."""
        return peft.OFTConfig(r=0, oft_block_size=config.block_size, target_modules=target_modules)

    def require_fit(self, layers: Mapping[str, nn.Linear], config: AdapterSettings) -> None:
        """Refuse a block size that does not divide the width of each layer; peft would take another one there."""
        for name, layer in layers.items():
            if layer.in_features % config.block_size:
                widths = [each.in_features for each in layers.values()]
                raise UserError(
                    f"blocks must divide the {layer.in_features} inputs of {name}",
                    code="block-size-not-a-divisor",
                    field="lora.block_size",
                    value=config.block_size,
                    remedy=f"set it to a divisor of {math.gcd(*widths)}",
                )

    @staticmethod
    def forward(layer: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Multiply `[..., in]`."""
        import torch

        if not layer.disable_adapters and not layer.merged:
            parameters: Any = layer.oft_R[NAME]
            rotation_RKC = _rotation(parameters.weight, parameters.block_size)
            blocks = x.to(rotation_RKC.dtype).reshape(*x.shape[:-1], *rotation_RKC.shape[:2])
            x = torch.einsum("...rk,rkc->...rc", blocks, rotation_RKC).flatten(-2).to(x.dtype)
        out: Tensor = layer.base_layer(x, *args, **kwargs)
        return out

    def finish_layer(self, layer: Any, config: AdapterSettings) -> None:
        """Leave the layer as it is, since it has no dropout."""

    def require_writable(
        self, config: AdapterSettings, convention: Convention, field: str, network: Network | None
    ) -> None:
        """Refuse all conventions but that of peft's readers."""
        if not convention.is_peft:
            raise UserError(
                "ComfyUI and kohya's scripts rotate a layer's outputs, and peft's OFT its inputs, so that no file of "
                "theirs means the same",
                code="adapter-not-writable",
                field=field,
                value=convention.name,
                remedy='write "diffusers", or merge the adapter into its base with --merge',
            )

    def split_layer(self, kinds: dict[str, Tensor], targets: list[TargetLayer], rank: int) -> Layers:
        """Return one stored layer as the target layer; empty if it joins several."""
        return {targets[0].layer: kinds} if targets[0].place.heights == (1,) else {}

    def peft_settings(self, adapter: Adapter, layers: Mapping[str, Collection[str]]) -> dict[str, Any]:
        """Return peft's settings for the header of a file."""
        return {"peft_type": "OFT", "target_modules": sorted(layers), "r": 0, "oft_block_size": adapter.block_size}

    def released_tensors(
        self, layers: Mapping[str, Mapping[str, Tensor]], convention: Convention, rank: int, family: FamilyConfig | None
    ) -> dict[str, Tensor]:
        """Return nothing: the recipe refuses such files."""
        raise AssertionError("checked with the recipe")

    def candidates(self, shapes: Mapping[str, torch.Size], config: AdapterSettings) -> Iterator[dict[str, Any]]:
        """Yield the settings that a file may have been trained with."""
        if "oft_R" in shapes:
            yield {"type": self.name, "block_size": _block_size(shapes["oft_R"])}

    def depends_on_weight(self, kinds: Collection[str]) -> bool:
        """Whether what an update adds to a weight depends on the weight: a rotation's does."""
        return True

    def shape(self, kinds: Mapping[str, Tensor]) -> torch.Size:
        """Return the shape of the layers that are rotated, of which any number of outputs will do."""
        weight = kinds["oft_R"]
        return weight.new_empty(0, weight.shape[0] * _block_size(weight.shape)).shape

    def delta(self, kinds: Mapping[str, Tensor], rows: slice = slice(None)) -> Tensor:
        """Refuse."""
        raise self.no_answer()

    def factors(self, kinds: Mapping[str, Tensor]) -> LowRank:
        """Refuse as `delta` does."""
        raise self.no_answer()

    def norm(self, kinds: Mapping[str, Tensor]) -> None:
        """Return None: the norm depends on the weight."""

    def distance(self, kinds: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
        """Return None: the distance depends on the weight."""

    def applied(self, weight: Tensor, kinds: Mapping[str, Tensor], strength: float, rows: slice) -> Tensor:
        """Return rows of a weight that gets rotated inputs."""
        import torch

        if strength != 1:
            raise UserError(
                "a rotation has no strength",
                code="adapter-without-strength",
                value=strength,
                remedy="leave the strength out, or give 1",
            )
        rotation = _rotation(kinds["oft_R"], _block_size(kinds["oft_R"].shape))
        return torch.einsum("orc,rkc->ork", weight.reshape(len(weight), *rotation.shape[:2]), rotation).flatten(1)


def _block_size(shape: torch.Size) -> int:
    """Return the inputs of a block: a rotation of n has n (n - 1) / 2 numbers."""
    return round(math.sqrt(2 * shape[1]) + 0.5)


def _rotation(weight: Tensor, size: int) -> Tensor:
    """Return the rotation of each block, in the dtype of its numbers and without autocast: peft's series of five terms for Cayley's map."""
    import torch

    kind = "cpu" if weight.is_meta else weight.device.type
    with torch.autocast(kind, enabled=False):
        rows, columns = torch.triu_indices(size, size, 1, device=weight.device)
        upper = weight.new_zeros(weight.shape[0], size * size).index_copy(1, rows * size + columns, weight)
        square = upper.view(-1, size, size)
        skew = square - square.mT
        second = skew @ skew
        third = second @ skew
        rotation: Tensor = torch.eye(size, device=weight.device) + 2 * (skew + second + third) + third @ skew
        return rotation
