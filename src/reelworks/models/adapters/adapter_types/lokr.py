"""LoKr: a Kronecker product of a small matrix and one of low rank is added to a layer's weight."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, final

from reelworks.core.errors import UserError
from reelworks.models.adapters.adapter_types.adapter_type import NAME, Adapter, AdapterSettings, LycorisType

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from reelworks.models.adapters.conventions import Convention
    from reelworks.models.adapters.low_rank import LowRank, Spectrum
    from reelworks.models.adapters.release_layers import Layers, TargetLayer
    from reelworks.models.family import FamilyConfig, Network


@final
class LoKr(LycorisType):
    """Two factors, w1 and w2, each one matrix or a product of two; of two whole matrices the scale is 1.

    A Kronecker product of a part of a layer is none of the whole, so that a part keeps its name in diffusers, which
    ComfyUI maps to rows.
    """

    name = "lokr"
    settings = ("rank", "alpha", "dropout", "decompose_factor", "decompose_both")
    tensors: ClassVar = {f"lokr_{part}": f"lokr_{part}" for part in ("w1", "w1_a", "w1_b", "w2", "w2_a", "w2_b")}
    random = ("lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b")
    ranked = ("lokr_w2_b", "lokr_w1_b")
    multiplied = ("lokr_w1", "lokr_w1_a")

    def peft_config(self, peft: Any, config: AdapterSettings, target_modules: str) -> Any:
        """Return peft's settings of an adapter on the layers that a pattern matches."""
        return peft.LoKrConfig(
            r=config.rank,
            alpha=config.exact_alpha,
            decompose_factor=config.decompose_factor or -1,
            decompose_both=config.decompose_both,
            target_modules=target_modules,
        )

    @staticmethod
    def forward(layer: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Multiply `[..., in]` without building the product."""
        from torch.nn import functional

        out: Tensor = layer.base_layer(x, *args, **kwargs)
        if layer.disable_adapters or layer.merged:
            return out
        first, second = _factors(layer, "lokr_w1"), _factors(layer, "lokr_w2")
        # Inputs m * N + n, outputs l * K + k; w1 is `[l, m]` and w2 `[k, n]`, each one matrix or a product of two.
        sides = first[-1].shape[1], second[-1].shape[1]
        x = functional.dropout(x.to(second[0].dtype), layer.dropout, layer.training)
        x = x.reshape(*x.shape[:-1], *sides)
        if len(second) == 2:
            x = functional.linear(x, second[1])
        x = x.transpose(-1, -2)
        for factor in reversed(first):
            x = functional.linear(x, factor)
        update = functional.linear(x.transpose(-1, -2), second[0]).flatten(-2)
        scale: float = layer.scaling[NAME]
        return out + (update * scale).to(out.dtype)

    def finish_layer(self, layer: Any, config: AdapterSettings) -> None:
        """Set the scale of two full factors to 1, as readers of LyCORIS's files have it."""
        super().finish_layer(layer, config)
        if NAME in layer.lokr_w1 and NAME in layer.lokr_w2:
            layer.scaling[NAME] = 1.0

    def call_in_diffusers(self, config: AdapterSettings, file: str, network: str, part: str) -> str | None:
        """Return the call of the network; text encoders have none."""
        return None if config.text_encoders else f'pipe.{network}.load_lora_adapter("{file}", prefix="{part}")'

    def require_writable(
        self, config: AdapterSettings, convention: Convention, field: str, network: Network | None
    ) -> None:
        """Refuse a convention without names for parts of layers, where the network has such parts."""
        if network is not None and not convention.names_parts(network):
            raise UserError(
                "these files name layers of the first release, some of which are several layers here, and Kronecker "
                "products of parts are none of the whole",
                code="adapter-not-writable",
                field=field,
                value=convention.name,
                remedy='write "diffusers", train lora.type = "loha" or "lora", or merge with --merge',
            )

    def split_layer(self, kinds: dict[str, Tensor], targets: list[TargetLayer], rank: int) -> Layers:
        """Return one stored layer as the target layer; empty if it joins several."""
        place = targets[0].place
        if place.heights != (1,):
            return {}
        return {targets[0].layer: _swap_rows(kinds) if place.swapped else kinds}

    def peft_settings(self, adapter: Adapter, layers: Mapping[str, Collection[str]]) -> dict[str, Any]:
        """Return peft's settings for the header of a file."""
        factors = {"decompose_factor": adapter.decompose_factor or -1, "decompose_both": adapter.decompose_both}
        return super().peft_settings(adapter, layers) | factors

    def released_tensors(
        self, layers: Mapping[str, Mapping[str, Tensor]], convention: Convention, rank: int, family: FamilyConfig | None
    ) -> dict[str, Tensor]:
        """Return the tensors of a file whose layers are those of a model's release, or parts of them."""
        from reelworks.models.adapters import release_layers

        tensors: dict[str, Tensor] = {}
        for layer, kinds in layers.items():
            place = release_layers.place(family, layer)
            stem = convention.stem(place.layer) if place.heights == (1,) else convention.part_stem(layer)
            tensors |= self.named(stem, _swap_rows(kinds) if place.swapped else kinds, convention, rank)
        return tensors

    def candidates(self, shapes: Mapping[str, torch.Size], config: AdapterSettings) -> Iterator[dict[str, Any]]:
        """Yield the settings that a file may have been trained with."""
        if shapes.keys().isdisjoint(self.tensors):
            return
        sides = sorted({side for kind, shape in shapes.items() if kind != "alpha" for side in shape if side > 1})
        # Of two full factors no rank is stored, and this one is large enough for all.
        ranks = [*(shapes[kind][0] for kind in self.ranked if kind in shapes), 100_000]
        both = "lokr_w1_a" in shapes
        for rank, factor in itertools.product(ranks, [config.decompose_factor, None, *sides]):
            yield {"type": self.name, "rank": rank, "decompose_factor": factor, "decompose_both": both}

    def with_kernel(self, kinds: Mapping[str, Tensor], kernel: Sequence[int]) -> dict[str, Tensor]:
        """Return the factors of a convolution as files have them: a whole second one has its kernel."""
        whole = kinds.get("lokr_w2")
        return {**kinds, **({} if whole is None else {"lokr_w2": whole.reshape(len(whole), -1, *kernel)})}

    def is_whole(self, kinds: Collection[str]) -> bool:
        """Whether a layer has both factors."""
        return all(f"lokr_{w}" in kinds or {f"lokr_{w}_a", f"lokr_{w}_b"} <= set(kinds) for w in ("w1", "w2"))

    def delta(self, kinds: Mapping[str, Tensor], rows: slice = slice(None)) -> Tensor:
        """Return what is added to a weight, `[out, in]`, or some of its rows."""
        import torch

        whole: Tensor = torch.kron(_whole(kinds, "lokr_w1"), _whole(kinds, "lokr_w2"))
        return whole[rows]

    def factors(self, kinds: Mapping[str, Tensor]) -> LowRank:
        """Return the update as a product: kron(w1, BA) is kron(w1, B) kron(1, A), or kron(1, B) kron(w1, A)."""
        import torch

        from reelworks.models.adapters.low_rank import LowRank

        w1 = _whole(kinds, "lokr_w1")
        if "lokr_w2" in kinds:
            B, A = kinds["lokr_w2"], torch.eye(kinds["lokr_w2"].shape[1])
        else:
            B, A = kinds["lokr_w2_a"], kinds["lokr_w2_b"]
        if w1.shape[0] < w1.shape[1]:
            return LowRank(torch.kron(torch.eye(len(w1)), B), torch.kron(w1, A))
        return LowRank(torch.kron(w1, B), torch.kron(torch.eye(w1.shape[1]), A))

    def spectrum(self, kinds: Mapping[str, Tensor]) -> Spectrum:
        """Return the singular values of the update, which are the products of those of its factors."""
        import torch

        from reelworks.models.adapters import low_rank

        (U1, s1, V1), (U2, s2, V2) = (
            torch.linalg.svd(_whole(kinds, name), full_matrices=False) for name in ("lokr_w1", "lokr_w2")
        )
        values, order = torch.outer(s1, s2).flatten().sort(descending=True)

        def truncate(rank: int) -> LowRank:
            i, j = order[:rank] // len(s2), order[:rank] % len(s2)
            U = torch.einsum("lr,kr->lkr", U1[:, i], U2[:, j]).flatten(0, 1)
            return low_rank.split(U, values[:rank], torch.einsum("rm,rn->rmn", V1[i], V2[j]).flatten(1))

        return low_rank.Spectrum(values.double(), truncate)


def _whole(kinds: Mapping[str, Tensor], name: str) -> Tensor:
    """Return a factor as one matrix."""
    return kinds[name] if name in kinds else kinds[f"{name}_a"] @ kinds[f"{name}_b"]


def _factors(layer: Any, name: str) -> list[Tensor]:
    """Return the matrices whose product is a factor, from the left."""
    whole = getattr(layer, name)
    return [whole[NAME]] if NAME in whole else [getattr(layer, f"{name}_a")[NAME], getattr(layer, f"{name}_b")[NAME]]


def _swap_rows(kinds: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Swap the upper and the lower half of the rows of an update; rows are ordered by the first factor first."""
    from reelworks.models.adapters import release_layers

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
    return {**kinds, first: release_layers.swap_halves(kinds[first])}
