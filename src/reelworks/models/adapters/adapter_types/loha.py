"""LoHa: an elementwise product of two matrices of low rank is added to a layer's weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, final

from reelworks.models.adapters.adapter_types.adapter_type import NAME, AdapterSettings, LycorisType

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from reelworks.models.adapters.conventions import Convention
    from reelworks.models.adapters.low_rank import LowRank, Spectrum
    from reelworks.models.adapters.release_layers import Layers, TargetLayer
    from reelworks.models.family import FamilyConfig

_PARTS = ("w1_a", "w1_b", "w2_a", "w2_b")
# The two products, each as the A and B of a LoRA.
_PAIRS = (("hada_w1_b", "hada_w1_a"), ("hada_w2_b", "hada_w2_a"))


@final
class LoHa(LycorisType):
    """Four matrices; the weight gets (w1_a @ w1_b) * (w2_a @ w2_b). Its products join as those of a LoRA do."""

    name = "loha"
    settings = ("rank", "alpha", "dropout")
    tensors: ClassVar = {f"hada_{part}": f"hada_{part}" for part in _PARTS}
    required = frozenset(f"hada_{part}" for part in _PARTS)
    random = ("hada_w1_a", "hada_w1_b", "hada_w2_a")
    ranked = ("hada_w1_b",)
    multiplied = ("hada_w1_a",)
    stacked = "hada_w1_a"

    def peft_config(self, peft: Any, config: AdapterSettings, target_modules: str) -> Any:
        """Return peft's settings of an adapter on the layers that a pattern matches."""
        return peft.LoHaConfig(r=config.rank, alpha=config.exact_alpha, target_modules=target_modules)

    @staticmethod
    def forward(layer: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Multiply `[..., in]`."""
        from torch.nn import functional

        out: Tensor = layer.base_layer(x, *args, **kwargs)
        if layer.disable_adapters or layer.merged:
            return out
        w1_a, w1_b, w2_a, w2_b = (getattr(layer, f"hada_{part}")[NAME] for part in _PARTS)
        x = functional.dropout(x.to(w1_a.dtype), layer.dropout, layer.training)
        update = functional.linear(x, (w1_a @ w1_b) * (w2_a @ w2_b))
        scale: float = layer.scaling[NAME]
        return out + (update * scale).to(out.dtype)

    def split_layer(self, kinds: dict[str, Tensor], targets: list[TargetLayer], rank: int) -> Layers:
        """Split one stored layer into the target layers; empty if that cannot be done."""
        from reelworks.models.adapters import release_layers

        if not self.is_whole(kinds):
            return {}
        products = [release_layers.split_layer({"A": kinds[A], "B": kinds[B]}, targets, rank) for A, B in _PAIRS]
        if not all(products):
            return {}
        (b1, a1), (b2, a2) = _PAIRS
        return {
            layer: {a1: one["B"], b1: one["A"], a2: other["B"], b2: other["A"]}
            for (layer, one), other in zip(products[0].items(), products[1].values(), strict=True)
        }

    def released_tensors(
        self, layers: Mapping[str, Mapping[str, Tensor]], convention: Convention, rank: int, family: FamilyConfig | None
    ) -> dict[str, Tensor]:
        """Return the tensors of a file whose layers are those of a model's release."""
        from reelworks.models.adapters import release_layers

        tensors: dict[str, Tensor] = {}
        for name, parts in release_layers.group_by_release(layers, family).items():
            joined: dict[str, Tensor] = {}
            for A, B in _PAIRS:
                pairs = [(place, {"A": kinds[A], "B": kinds[B]}) for place, kinds in parts]
                joined[A], joined[B] = release_layers.join_parts(pairs)
            tensors |= self.named(convention.stem(name), joined, convention)
        return tensors

    def candidates(self, shapes: Mapping[str, torch.Size], config: AdapterSettings) -> Iterator[dict[str, Any]]:
        """Yield the settings that a file may have been trained with."""
        for rank in self.possible_ranks(shapes):
            yield {"type": self.name, "rank": rank}

    def delta(self, kinds: Mapping[str, Tensor], rows: slice = slice(None)) -> Tensor:
        """Return what is added to a weight, `[out, in]`, or some of its rows."""
        w1_a, w1_b, w2_a, w2_b = (kinds[f"hada_{part}"] for part in _PARTS)
        return (w1_a[rows] @ w1_b) * (w2_a[rows] @ w2_b)

    def factors(self, kinds: Mapping[str, Tensor]) -> LowRank:
        """Return the update as a product: (B1 A1) * (B2 A2) is that of the products of each column and of each row."""
        import torch

        from reelworks.models.adapters.low_rank import LowRank

        w1_a, w1_b, w2_a, w2_b = (kinds[f"hada_{part}"] for part in _PARTS)
        B = torch.einsum("or,os->ors", w1_a, w2_a).flatten(1)
        return LowRank(B, torch.einsum("ri,si->rsi", w1_b, w2_b).flatten(0, 1))

    def spectrum(self, kinds: Mapping[str, Tensor]) -> Spectrum:
        """Return the singular values of the update, from the whole matrix if its factors are as large."""
        from reelworks.models.adapters import low_rank

        rank = len(kinds["hada_w1_b"]) * len(kinds["hada_w2_b"])
        delta = self.delta(kinds)
        return low_rank.dense_spectrum(delta) if 2 * rank > min(delta.shape) else super().spectrum(kinds)
