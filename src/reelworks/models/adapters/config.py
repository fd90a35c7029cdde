"""The recipe table `[lora]`; torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from reelworks.core.config import Config, Told, Weights, open_set
from reelworks.core.errors import UserError
from reelworks.models.adapters.adapter_types.adapter_type import Adapter, AdapterType
from reelworks.models.adapters.adapter_types.registry import TYPES
from reelworks.models.adapters.conventions import CONVENTIONS

if TYPE_CHECKING:
    from reelworks.models.family import Network

# The types of the package, for the schema; the registry knows those that were added to it.
AdapterName = Annotated[Literal["lora", "lokr", "loha", "oft"], open_set(TYPES)]
Targets = Literal["default", "blocks"]
BaseStorage = Literal["float32", "bfloat16", "float8", "int8", "nf4", "gguf"]


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
            as ["to_q", "to_v"], in which * stands for one part of a name, as in "layers.*.attention.to_q".
        decompose_factor: Largest side of the first factor of a LoKr; default: both factors as near in size as possible.
        decompose_both: Whether the first factor of a LoKr has low rank too, where that is smaller.
        block_size: Inputs that a block of "oft" rotates together; it divides the widths of all layers.
        dora: Also train the magnitude of each row of the updated weights (DoRA); for "lora".
        base: Storage of the frozen weights: linear layers of the model's blocks in 8 bits (`float8`, `int8`) or 4 bits
            (`nf4`), or all weights of matrix products in `bfloat16` or `float32`; default: the dtype of
            `precision.compute`, which changes no result but a DoRA's last digits. In `float8`, weights that a file stores in fp8
            stay as they are, in `int8` those in ComfyUI's int8, and in `nf4` those that bitsandbytes stored in nf4. `gguf`
            keeps the codes of a GGUF file.
        int8_products: With `base = "int8"`: multiply in 8 bits in the forward pass (W8A8), each row of inputs rounded by
            its largest value, in a rotated basis that spreads outliers; weights that a file stores in int8 stay in theirs.
            Faster on GPUs whose int8 is faster than their bfloat16, and less exact; gradients are as without.
        text_encoders: Also adapt the text encoders, the linear layers of their blocks, by the same settings; for those of
            SD 1.5 and SDXL. Captions are then embedded in each step, and what is stored of them are the numbers of their words.
        weights: A LoRA of this model to start from, a `.safetensors` file of any convention; not read again when a
            run is resumed.
        training_adapter: A LoRA that undoes what was distilled into the base, a `.safetensors` file of any convention
            or its place on the hub (`owner/name` or `owner/name/file.safetensors`, with `@revision` after the name). Training runs with it, unchanged;
            previews, exports, `generate` and `eval` run without it.
    """

    type: AdapterName = "lora"
    rank: int = Field(default=16, ge=1)
    alpha: float | None = Field(default=None, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    targets: Told[Targets | list[str]] = "default"
    decompose_factor: int | None = Field(default=None, ge=1)
    decompose_both: bool = False
    block_size: int = Field(default=32, ge=2)
    dora: bool = False
    base: BaseStorage | None = None
    int8_products: bool = False
    text_encoders: bool = False
    weights: Weights[str | None] = Field(default=None, min_length=1)
    training_adapter: Weights[str | None] = Field(default=None, min_length=1)

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
    def _has_codes_to_multiply(self) -> Self:
        if self.int8_products and self.base != "int8":
            raise UserError(
                f"products in 8 bits need a base in int8, and this one is in {self.base or 'the dtype of precision.compute'}",
                code="int8-products-without-codes",
                field="lora.int8_products",
                value=True,
                remedy='set lora.base = "int8", or leave it out',
            )
        return self

    @model_validator(mode="after")
    def _has_settings_of_its_type(self) -> Self:
        """Refuse settings that the type does not read, unless they have their default."""
        known = {name for kind in TYPES.values() for name in kind.settings}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name in known - {*self.kind.settings} and value != field.default:
                types = [kind.name for kind in TYPES.values() if name in kind.settings]
                raise UserError(
                    f'lora.type = "{self.type}" has no such setting',
                    code="adapter-setting-unused",
                    field=f"lora.{name}",
                    value=value,
                    remedy=f"leave it out, or set lora.type to {' or '.join(types)}",
                )
        return self

    @property
    def kind(self) -> AdapterType:
        """The adapter type."""
        return TYPES[self.type]

    @property
    def adapter(self) -> Adapter:
        """The settings that fix what the adapter's tensors mean."""
        return Adapter(
            self.type, self.rank, self.exact_alpha, self.decompose_factor, self.decompose_both, self.block_size
        )

    @property
    def exact_alpha(self) -> float:
        """Alpha, with the rank as default."""
        return float(self.rank) if self.alpha is None else self.alpha

    def require_writable(self, format: str, field: str, network: Network | None = None) -> None:
        """Refuse a file convention that cannot hold this adapter for a network; None for an unknown one."""
        self.kind.require_writable(self, CONVENTIONS[format], field, network)

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
