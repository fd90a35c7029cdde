"""LoRA: a product of two matrices of low rank is added to a layer's weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, final

from reelworks.core.errors import UserError
from reelworks.models.lora.adapter_types.adapter_type import Adapter, AdapterSettings, AdapterType
from reelworks.models.lora.conventions import CONVENTIONS

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from reelworks.models.family import FamilyConfig, Network
    from reelworks.models.lora.conventions import Convention
    from reelworks.models.lora.release_layers import Layers, TargetLayer


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

    def peft_config(self, peft: Any, config: AdapterSettings, target_modules: str) -> Any:
        """Return peft's settings of an adapter on the layers that a pattern matches."""
        return peft.LoraConfig(
            r=config.rank,
            lora_alpha=config.exact_alpha,
            lora_dropout=config.dropout,
            target_modules=target_modules,
            use_dora=config.dora,
        )

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
        pairs = (zip("AB", convention.matrices, strict=True) for convention in CONVENTIONS.values())
        matrices = {f"{name}.weight": kind for pair in pairs for kind, name in pair}
        return super().endings() | matrices | {"dora_scale": "magnitude_vector"}

    def split_layer(self, kinds: dict[str, Tensor], targets: list[TargetLayer], config: AdapterSettings) -> Layers:
        """Split one stored layer into the target layers; empty if that cannot be done."""
        from reelworks.models.lora import release_layers

        return release_layers.split_layer(kinds, targets, config.rank)

    def peft_settings(self, adapter: Adapter, layers: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Any]:
        """Return peft's settings for the header of a file."""
        dora = any("magnitude_vector" in kinds for kinds in layers.values())
        rank = adapter.rank
        return {"r": rank, "lora_alpha": rank, "target_modules": sorted(layers), "use_dora": dora}

    def released_tensors(
        self, layers: Mapping[str, Mapping[str, Tensor]], convention: Convention, rank: int, family: FamilyConfig | None
    ) -> dict[str, Tensor]:
        """Return the tensors of a file whose layers are those of a model's release."""
        from reelworks.models.lora import release_layers

        tensors = {}
        for name, parts in release_layers.group_by_release(layers, family).items():
            stem = convention.stem(name)
            a, b = convention.matrices
            tensors[f"{stem}.{a}.weight"], tensors[f"{stem}.{b}.weight"] = release_layers.join_parts(parts)
            if convention.needs_alpha:
                tensors[f"{stem}.alpha"] = release_layers.alpha_tensor(rank * len(parts))
        return tensors

    def candidates(self, shapes: Mapping[str, torch.Size], config: AdapterSettings) -> Iterator[dict[str, Any]]:
        """Yield the settings that a file may have been trained with."""
        for rank in self.possible_ranks(shapes):
            yield {"rank": rank, "dora": "magnitude_vector" in shapes}
