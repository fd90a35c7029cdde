"""The recipe table `[lora]`; torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from reelworks.core.config import Config
from reelworks.core.errors import UserError

if TYPE_CHECKING:
    from reelworks.models.family import Network

AdapterType = Literal["lora", "lokr", "loha", "oft"]
Targets = Literal["default", "blocks"]
BaseStorage = Literal["float32", "bfloat16", "float8", "int8", "nf4", "gguf"]


class Adapter(NamedTuple):
    """The settings that fix what an adapter's tensors mean; hashable."""

    type: AdapterType = "lora"
    rank: int = 16
    alpha: float = 16.0
    decompose_factor: int | None = None
    decompose_both: bool = False
    block_size: int = 32


class LoraConfig(Config):
    """Train small updates of some layers and leave all other weights unchanged.

    Attributes:
        type: Kind of update. "lora": a product of two matrices; "lokr": a Kronecker product of a small matrix and one
            of low rank; "loha": an elementwise product of two products; "oft": rotations of blocks of a layer's inputs.
        rank: Rank of the updates; from half the longer side of a LoKr's second factor on, that factor is a full matrix.
            Not for "oft".
        alpha: Updates are scaled by alpha / rank; default: the rank. A LoKr of two full factors has no scale, nor has
            "oft".
        dropout: Share of a layer's inputs that is dropped for its update in training.
        targets: Layers to adapt: "default" for those of all attentions; "blocks" for all linear layers of the model's
            blocks, including feed-forward and modulation; or a list of layer names, complete or their last parts, such
            as ["to_q", "to_v"].
        decompose_factor: Largest side of the first factor of a LoKr; default: both factors as near in size as possible.
        decompose_both: Whether the first factor of a LoKr has low rank too, where that is smaller.
        block_size: Inputs that a block of "oft" rotates together; it divides the widths of all layers.
        dora: Also train the magnitude of each row of the updated weights (DoRA); for "lora".
        base: Storage of the frozen weights: linear layers of the model's blocks in 8 bits (`float8`, `int8`) or 4 bits
            (`nf4`), or all weights of matrix products in `bfloat16` or `float32`; default: the dtype of
            `precision.compute`, which changes no result. In `float8`, weights that a file stores in fp8 stay as they
            are, and in `nf4` those that bitsandbytes stored in nf4. `gguf` keeps the codes of a GGUF file.
        weights: A LoRA of this model to start from, a `.safetensors` file of any convention; not read again when a
            run is resumed.
        training_adapter: A LoRA that undoes what was distilled into the base, a `.safetensors` file of any convention
            or its place on the hub (`owner/name` or `owner/name/file.safetensors`, with `@revision` after the name). Training runs with it, unchanged;
            previews, exports, `generate` and `eval` run without it.
    """

    type: AdapterType = "lora"
    rank: int = Field(default=16, ge=1)
    alpha: float | None = Field(default=None, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    targets: Targets | list[str] = "default"
    decompose_factor: int | None = Field(default=None, ge=1)
    decompose_both: bool = False
    block_size: int = Field(default=32, ge=2)
    dora: bool = False
    base: BaseStorage | None = None
    weights: str | None = Field(default=None, min_length=1)
    training_adapter: str | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _adapter_fits_the_updates(self) -> Self:
        if self.dora and self.training_adapter is not None:
            raise UserError(
                "a DoRA scales the rows of the base, which are others with the adapter than without it",
                code="dora-with-training-adapter",
                field="lora.training_adapter",
                value=self.training_adapter,
                remedy="leave it out, or train without lora.dora",
            )
        return self

    @model_validator(mode="after")
    def _has_settings_of_its_type(self) -> Self:
        """Refuse settings that the type does not read, unless they have their default."""
        readers = {
            "rank": ("lora", "lokr", "loha"),
            "alpha": ("lora", "lokr", "loha"),
            "dropout": ("lora", "lokr", "loha"),
            "decompose_factor": ("lokr",),
            "decompose_both": ("lokr",),
            "block_size": ("oft",),
            "dora": ("lora",),
        }
        for name, types in readers.items():
            value = getattr(self, name)
            if self.type not in types and value != type(self).model_fields[name].default:
                raise UserError(
                    f'lora.type = "{self.type}" has no such setting',
                    code="adapter-setting-unused",
                    field=f"lora.{name}",
                    value=value,
                    remedy=f"leave it out, or set lora.type to {' or '.join(types)}",
                )
        return self

    @property
    def adapter(self) -> Adapter:
        """The settings that fix what the adapter's tensors mean."""
        return Adapter(
            self.type, self.rank, self.exact_alpha, self.decompose_factor, self.decompose_both, self.block_size
        )

    @property
    def has_scale(self) -> bool:
        """Whether its update is added to the weights, and can be multiplied; an OFT turns them."""
        return self.type != "oft"

    @property
    def exact_alpha(self) -> float:
        """Alpha, with the rank as default."""
        return float(self.rank) if self.alpha is None else self.alpha

    def require_writable(self, format: str, field: str, network: Network | None = None) -> None:
        """Refuse a file convention that cannot hold this adapter for a network; None for an unknown one."""
        if format != "diffusers" and self.type == "oft":
            raise UserError(
                "ComfyUI and kohya's scripts rotate a layer's outputs, and peft's OFT its inputs, so that no file of "
                "theirs means the same",
                code="adapter-not-writable",
                field=field,
                value=format,
                remedy='write "diffusers", or merge the adapter into its base with --merge',
            )
        if self.type == "lokr" and network is not None and not network.names_parts(format):
            raise UserError(
                "these files name layers of the first release, some of which are several layers here, and Kronecker "
                "products of parts are none of the whole",
                code="adapter-not-writable",
                field=field,
                value=format,
                remedy='write "diffusers", train lora.type = "loha" or "lora", or merge with --merge',
            )
        if self.dora and format != "diffusers":
            raise UserError(
                "ComfyUI scales a DoRA by the row norms of the base, not of the updated weights, and kohya's scripts "
                "know no DoRA: this file would give other pictures than the training",
                code="dora-not-writable",
                field=field,
                value=format,
                remedy='write "diffusers", or train without lora.dora',
            )

    def exact_base(self, compute: str) -> BaseStorage:
        """Return the storage of the base, by default the dtype of its products; refuse one that nothing would widen."""
        if self.base == "bfloat16" and compute != "bfloat16":
            raise UserError(
                "the recipe computes products in float32, which needs float32 weights",
                code="lora-base-too-narrow",
                field="lora.base",
                value=self.base,
                remedy='set precision.compute = "bfloat16", or leave lora.base out',
            )
        return self.base or ("bfloat16" if compute == "bfloat16" else "float32")
