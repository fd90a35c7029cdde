"""LoRA: a product of two matrices of low rank is added to a layer's weight."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, final

from reelworks.core.errors import UserError
from reelworks.models.adapters import text_encoders
from reelworks.models.adapters.adapter_types.adapter_type import NAME, Adapter, AdapterSettings, AdapterType
from reelworks.models.adapters.conventions import CONVENTIONS

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from reelworks.models.adapters.conventions import Convention
    from reelworks.models.adapters.low_rank import LowRank
    from reelworks.models.adapters.release_layers import Layers, TargetLayer
    from reelworks.models.family import FamilyConfig, Network


# Of a convolution in three factors (LyCORIS's "use_tucker"): the kernel, [rank, rank, ...], between the two others.
_MID = "mid"
# Lengths of layers of text encoders, which transformers reads by this name alone.
_TEXT_LENGTHS = "lora_magnitude_vector.weight"
# Names of the two matrices in older files of diffusers, and in those that have the name of peft's adapter in them.
_OLD, _NAMED = (
    (("lora.down", "lora.up"), ("lora_linear_layer.down", "lora_linear_layer.up")),
    (f"lora_A.{NAME}", f"lora_B.{NAME}"),
)
# Of peft: how a LoRA begins without taking a part out of its base, and settings with which it computes otherwise.
_BESIDE_THE_BASE = (True, False, None, "gaussian", "eva", "orthogonal")
_VARIANTS = ("use_qalora", "use_bdlora", "arrow_config", "alora_invocation_tokens")


@final
class LoRA(AdapterType):
    """Two matrices, A `[rank, in]` and B `[out, rank]`; with DoRA, also the magnitudes of the weight's rows."""

    name = "lora"
    settings = ("rank", "alpha", "dropout", "dora")
    tensors: ClassVar = {"A": "lora_A.weight", "B": "lora_B.weight", "magnitude_vector": "lora_magnitude_vector"}
    required = frozenset({"A", "B"})
    random = ranked = ("A",)
    multiplied = ("B",)
    stacked = "B"
    readable: ClassVar = {"init_lora_weights": _BESIDE_THE_BASE, **dict.fromkeys(_VARIANTS, (None, False))}
    dependence = "a DoRA gives the rows of the updated weight their lengths, so that its update depends on its base"

    def peft_config(self, peft: Any, config: AdapterSettings, target_modules: str) -> Any:
        """Return peft's settings of an adapter on the layers that a pattern matches."""
        return peft.LoraConfig(
            r=config.rank,
            lora_alpha=config.exact_alpha,
            lora_dropout=config.dropout,
            target_modules=target_modules,
            use_dora=config.dora,
        )

    def call_in_diffusers(self, config: AdapterSettings, file: str, network: str, part: str) -> str | None:
        """Return the call of pipelines, and that of the network for pipelines without it."""
        more = ", load_into_transformer_2=True" if network == "transformer_2" else ""
        return f'pipe.load_lora_weights("{file}"{more}), or pipe.{network}.load_lora_adapter("{file}", prefix="{part}")'

    def require_writable(
        self, config: AdapterSettings, convention: Convention, field: str, network: Network | None
    ) -> None:
        """Refuse a DoRA where its readers would compute something else."""
        if config.dora and not convention.is_peft:
            raise UserError(
                "ComfyUI scales a DoRA by the row norms of the base, not of the updated weights, and kohya's scripts "
                "know no DoRA: this file would give other pictures than the training",
                code="dora-not-writable",
                field=field,
                value=convention.name,
                remedy='write "diffusers", or train without lora.dora',
            )

    def endings(self) -> dict[str, str]:
        """Return the kinds of its tensors by the ends of their names in files of all conventions."""
        pairs = [*_OLD, _NAMED, *(convention.matrices for convention in CONVENTIONS.values())]
        matrices = {f"{name}.weight": kind for pair in pairs for kind, name in zip("AB", pair, strict=True)}
        matrices |= {"lora_A": "A", "lora_B": "B"}  # as Mochi's are named
        return (
            super().endings()
            | matrices
            | {"dora_scale": "magnitude_vector", _TEXT_LENGTHS: "magnitude_vector", "lora_mid.weight": _MID}
        )

    def split_layer(self, kinds: dict[str, Tensor], targets: list[TargetLayer], rank: int) -> Layers:
        """Split one stored layer into the target layers; empty if that cannot be done."""
        from reelworks.models.adapters import release_layers

        return release_layers.split_layer(kinds, targets, rank)

    def peft_settings(self, adapter: Adapter, layers: Mapping[str, Collection[str]]) -> dict[str, Any]:
        """Return peft's settings for the header of a file."""
        dora = any("magnitude_vector" in kinds for kinds in layers.values())
        rank = adapter.rank
        return {"r": rank, "lora_alpha": rank, "target_modules": sorted(layers), "use_dora": dora}

    def released_tensors(
        self, layers: Mapping[str, Mapping[str, Tensor]], convention: Convention, rank: int, family: FamilyConfig | None
    ) -> dict[str, Tensor]:
        """Return the tensors of a file whose layers are those of a model's release."""
        from reelworks.models.adapters import release_layers

        tensors: dict[str, Tensor] = {}
        for name, parts in release_layers.group_by_release(layers, family).items():
            A, B = release_layers.join_parts(parts)
            tensors |= self.named(convention.stem(name), {"A": A, "B": B}, convention)
        return tensors

    def endings_in(self, convention: Convention, stem: str) -> Mapping[str, str]:
        """Return the ends of a layer's tensors in files of a convention, by kind."""
        a, b = convention.matrices
        of_peft = _TEXT_LENGTHS if text_encoders.is_named_by_diffusers(stem) else self.tensors["magnitude_vector"]
        length = of_peft if convention.is_peft else "dora_scale"
        return {"A": f"{a}.weight", "B": f"{b}.weight", "magnitude_vector": length}

    def candidates(self, shapes: Mapping[str, torch.Size], config: AdapterSettings) -> Iterator[dict[str, Any]]:
        """Yield the settings that a file may have been trained with."""
        for rank in self.possible_ranks(shapes):
            yield {"rank": rank, "dora": "magnitude_vector" in shapes}

    def flat(self, kinds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return stored matrices with two axes each, and magnitudes with one; the three factors of a convolution become two."""
        import torch

        if _MID in kinds:
            A = torch.einsum("om...,mi->oi...", kinds[_MID], kinds["A"].flatten(1))
            kinds = {kind: value for kind, value in kinds.items() if kind != _MID} | {"A": A}
        return {kind: v.flatten() if kind == "magnitude_vector" else v for kind, v in super().flat(kinds).items()}

    def with_kernel(self, kinds: Mapping[str, Tensor], kernel: Sequence[int]) -> dict[str, Tensor]:
        """Return the tensors of a convolution as peft has them: A with its kernel, the others with one of a single point."""
        if not kernel:
            return dict(kinds)
        A, point = kinds["A"], [1] * len(kernel)
        shaped = {kind: value.reshape(-1, value.shape[-1], *point) for kind, value in kinds.items() if kind != "A"}
        return shaped | {"A": A.reshape(len(A), -1, *kernel)}

    def depends_on_weight(self, kinds: Collection[str]) -> bool:
        """Whether it is a DoRA, whose rows have given lengths."""
        return "magnitude_vector" in kinds

    def shape(self, kinds: Mapping[str, Tensor]) -> torch.Size:
        """Return the shape of the update, `[out, in]`."""
        shape = (kinds["B"] @ kinds["A"]).shape
        if self.depends_on_weight(kinds) and kinds["magnitude_vector"].numel() != shape[0]:
            raise RuntimeError("it has not as many lengths as rows")
        return shape

    def delta(self, kinds: Mapping[str, Tensor], rows: slice = slice(None)) -> Tensor:
        """Return what is added to a weight, `[out, in]`, or some of its rows."""
        product = self.factors(kinds)
        return product.B[rows] @ product.A

    def factors(self, kinds: Mapping[str, Tensor]) -> LowRank:
        """Return the two matrices."""
        if self.depends_on_weight(kinds):
            raise self.no_answer()
        return _product(kinds)

    def norm(self, kinds: Mapping[str, Tensor]) -> float | None:
        """Return the Frobenius norm of the product."""
        return None if self.depends_on_weight(kinds) else _product(kinds).norm()

    def distance(self, kinds: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float | None:
        """Return the Frobenius norm of the difference of two products."""
        return None if self.depends_on_weight(kinds) else _product(kinds).distance(_product(other))

    def applied(self, weight: Tensor, kinds: Mapping[str, Tensor], strength: float, rows: slice) -> Tensor:
        """Return rows of a weight with the same rows of an update, and of a DoRA's lengths, as peft computes them."""
        B, A = _product(kinds)
        updated = weight + strength * (B[rows] @ A)
        if not self.depends_on_weight(kinds):
            return updated
        lengths = kinds["magnitude_vector"].flatten()[rows, None]
        result: Tensor = updated * (lengths / updated.norm(dim=1, keepdim=True))
        return result


def _product(kinds: Mapping[str, Tensor]) -> LowRank:
    from reelworks.models.adapters.low_rank import LowRank

    return LowRank(kinds["B"], kinds["A"])
