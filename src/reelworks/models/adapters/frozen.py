"""Storage of the frozen base of a LoRA.

Matrix products round their weights to the compute dtype anyway, so that storing them in it changes no result. All
other weights (norms, tables, embeddings) are small and stay float32.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from reelworks.core import units
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.models.adapters.config import BaseStorage
from reelworks.models.precision.audit import PRODUCTS
from reelworks.models.storage import nf4_files, scaled_weights, stored_weights
from reelworks.models.storage.gguf_files import GgufWeight
from reelworks.models.storage.nf4_files import BLOCK, Nf4Weight
from reelworks.models.storage.scaled_weights import ScaledWeight

Format = Literal["float8", "int8", "nf4"]  # into which any weight can be rounded
FORMATS: tuple[Format, ...] = ("float8", "int8", "nf4")
_FLOAT8 = torch.float8_e4m3fn
_CODES = {"float8": _FLOAT8, "int8": torch.int8}
_LARGEST = {"float8": torch.finfo(_FLOAT8).max, "int8": 127.0, "nf4": 1.0}
_SECONDS_BETWEEN_LINES = 10.0


class Quantized(NamedTuple):
    """A quantised weight: codes `[out, in]` in float8 or int8, and their scale `[out, 1]` in float32.

    In nf4 the codes are `[ceil(out * in / 64) * 32]` uint8 with two values each, the first in the lower four bits, and
    the scale is `[ceil(out * in / 64), 1]`. Codes may be those of inputs that are rotated in groups, by `[group, group]`.
    """

    codes: Tensor
    scale: Tensor
    rotation: Tensor | None = None


def quantize(weight: Tensor, format: Format, rotation: Tensor | None = None) -> Quantized:
    """Round a weight `[out, in]`, perhaps rotated, to the nearest codes, scaled by the largest value of each row or block."""
    if weight.is_meta:  # every operation takes time there for no values
        return _empty_codes(weight, format)._replace(rotation=rotation)
    rows = scaled_weights.rotate(weight.float(), rotation)
    if format == "nf4":
        rows = functional.pad(rows.flatten(), (0, -rows.numel() % BLOCK)).view(-1, BLOCK)
    scale = (rows.abs().amax(dim=1, keepdim=True) / _LARGEST[format]).bfloat16().float()
    # Rows of zeros have scale 0. Clamped because a scale may have been rounded down.
    units = (rows / torch.where(scale == 0, 1.0, scale)).clamp(-_LARGEST[format], _LARGEST[format])
    if format == "float8":
        return Quantized(units.to(_FLOAT8), scale)
    if format == "int8":
        return Quantized(units.round().to(torch.int8), scale, rotation)
    levels = nf4_files.levels().to(units.device)
    codes = torch.bucketize(units.flatten(), (levels[1:] + levels[:-1]) / 2).to(torch.uint8)
    return Quantized(codes[0::2] | codes[1::2] << 4, scale)


def _stored_codes(weight: Tensor, format: Format) -> Quantized | None:
    """Return the codes and scales of a weight that its file holds in the format; None if it holds another one."""
    stored = stored_weights.stored_weight(weight)
    if format == "nf4" and isinstance(stored, Nf4Weight):
        codes, scale = stored.parts
        return Quantized(codes.flatten(), scale.reshape(-1, 1))
    if isinstance(stored, ScaledWeight) and stored.parts[0].dtype == _CODES.get(format):
        codes, scale = stored.parts
        return Quantized(codes.clone(), scale.contiguous(), scaled_weights.rotation(stored.group))
    return None


def _empty_codes(weight: Tensor, format: Format) -> Quantized:
    out, width = weight.shape
    if format == "nf4":
        blocks = -(-out * width // BLOCK)
        codes = weight.new_empty(blocks * BLOCK // 2, dtype=torch.uint8)
        return Quantized(codes, weight.new_empty((blocks, 1), dtype=torch.float32))
    codes = weight.new_empty(weight.shape, dtype=_CODES[format])
    return Quantized(codes, weight.new_empty((out, 1), dtype=torch.float32))


def dequantize(weight: Quantized, format: Format, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Return the weight `[out, in]` in a dtype."""
    scale = weight.scale.to(dtype)
    if format != "nf4":
        return scaled_weights.rotate(weight.codes.to(dtype) * scale, weight.rotation)
    return nf4_files.dequantize(weight.codes, scale, shape, dtype)


def rotation_group(width: int) -> int:
    """Return how many of a layer's inputs are rotated together for int8 products: the most up to 256 that divide them."""
    return next((size for size in (256, 64, 16) if width % size == 0), 0)


def takes_int8_product(rows: int, weight: Quantized) -> bool:
    """Whether torch's int8 product takes so many rows of inputs, by its rules for GPUs."""
    out, width = weight.codes.shape
    return rows > 16 and out % 8 == 0 and width % 8 == 0


def int8_product(input: Tensor, weight: Quantized, bias: Tensor | None) -> Tensor:
    """Multiply `[..., in]` by an int8 weight, with each row of inputs rounded to 8 bits by its largest value.

    Inputs are rotated as those of the weight were (ConvRot, arXiv 2512.03673): an outlier is then a small part of many
    numbers, and leaves the others their digits. Sums are exact. The result has the dtype of the input.
    """
    rows = scaled_weights.rotate(input.reshape(-1, input.shape[-1]), weight.rotation)
    scale = rows.abs().amax(dim=1, keepdim=True).float() / 127
    codes = (rows / torch.where(scale == 0, 1.0, scale)).round().to(torch.int8)
    sums: Tensor = torch._int_mm(codes, weight.codes.t())
    out = sums.float().mul_(scale).mul_(weight.scale.t())
    if bias is not None:
        out += bias
    return out.to(input.dtype).view(*input.shape[:-1], -1)


def require_int8_products(device: torch.device) -> None:
    """Refuse a device for which torch has no int8 product."""
    codes = torch.ones(32, 32, dtype=torch.int8, device=device)
    try:
        torch._int_mm(codes, codes)
    except (RuntimeError, NotImplementedError) as error:
        raise UserError(
            f"this device multiplies no matrices of int8 ({str(error).partition(chr(10))[0][:200]})",
            code="no-int8-products",
            field="lora.int8_products",
            value=True,
            remedy="leave it out; products are then those of precision.compute",
        ) from error


class FrozenLinear(nn.Linear, ABC):
    """A frozen linear layer whose weight is widened for each product; its bias stays a parameter."""

    def __init__(self, layer: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.bias = layer.bias

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The weight in float32."""
        return self.dequantize(torch.float32)

    @abstractmethod
    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """Return the weight in a dtype."""

    def forward(self, input: Tensor) -> Tensor:
        """Multiply `[..., in]` as `nn.Linear` does; autocast sets the dtype."""
        kind = "cpu" if input.device.type == "meta" else input.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else input.dtype
        product: Callable[..., Tensor] = _Product.apply
        return product(input.to(dtype), self)


@final
class QuantizedLinear(FrozenLinear):
    """A frozen linear layer with a weight that was rounded to codes with scales."""

    codes: Tensor
    scale: Tensor
    rotation: Tensor | None

    def __init__(
        self, layer: nn.Linear, format: Format, device: torch.device | None = None, *, int8_products: bool = False
    ) -> None:
        super().__init__(layer)
        self.format, self.int8_products = format, int8_products
        weight = _stored_codes(layer.weight, format)
        if weight is None:  # rounded on the device, where that is fast
            group = rotation_group(self.in_features) if int8_products else 0
            value = stored_weights.value(layer.weight).to(device)
            weight = quantize(value, format, scaled_weights.rotation(group, value.device))
        # Scales of published files have more bits than bfloat16.
        self.wide_scale = not weight.scale.is_meta and not torch.equal(weight.scale, weight.scale.bfloat16().float())
        self.register_buffer("codes", weight.codes.to(device))
        self.register_buffer("scale", weight.scale.to(device))
        # On its device from the start, since to copy it for a product would make the host wait; one for all layers.
        rotation = None if weight.rotation is None else scaled_weights.rotation(len(weight.rotation), self.codes.device)
        self.register_buffer("rotation", rotation, persistent=False)

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """Return the weight in a dtype."""
        shape = (self.out_features, self.in_features)
        if self.wide_scale or self.rotation is not None:
            return dequantize(self.quantized, self.format, shape, torch.float32).to(dtype)
        return dequantize(self.quantized, self.format, shape, dtype)

    @property
    def quantized(self) -> Quantized:
        """The codes with their scales."""
        return Quantized(self.codes, self.scale, self.rotation)


@final
class GgufLinear(FrozenLinear):
    """A frozen linear layer with the codes of a GGUF file."""

    rows: Tensor

    def __init__(self, layer: nn.Linear, stored: GgufWeight, device: torch.device) -> None:
        super().__init__(layer)
        self.kind = stored.type
        self.register_buffer("rows", stored.parts[0].to(device, copy=True))  # not in the file's pages

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """Return the weight in a dtype, rounded once."""
        return GgufWeight((self.rows,), self.kind).dequantize().to(dtype)


def quantized_layers(module: nn.Module) -> list[FrozenLinear]:
    """Return the quantised layers of a network."""
    return [child for child in module.modules() if isinstance(child, FrozenLinear)]


def count(module: nn.Module) -> int:
    """Return the number of quantised weights of a network, which are not among its parameters."""
    return sum(layer.in_features * layer.out_features for layer in quantized_layers(module))


class _Product(torch.autograd.Function):
    """A product with a frozen weight that is widened again in the backward pass, instead of being saved for it.

    Gradients are those of the widened weight, also of a product in 8 bits.
    """

    @staticmethod
    def forward(ctx: Any, input: Tensor, layer: FrozenLinear) -> Tensor:
        ctx.layer = layer
        bias = None if layer.bias is None else layer.bias.to(input.dtype)
        if isinstance(layer, QuantizedLinear) and layer.int8_products:
            weight = layer.quantized
            if takes_int8_product(input.shape[:-1].numel(), weight):
                return int8_product(input, weight, bias)
        return functional.linear(input, layer.dequantize(input.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (grad,) = grad_outputs
        return grad @ ctx.layer.dequantize(grad.dtype), None


def store(
    module: nn.Module,
    blocks: Sequence[nn.Module],
    base: BaseStorage,
    *,
    compute: torch.dtype,
    device: torch.device,
    int8_products: bool = False,
) -> None:
    """Freeze a network and store it on a device, in place and layer by layer, so that it is never all in float32.

    The weights may have any dtype and be on any device. Linear layers of `blocks` are quantised if `base` is a quantised
    format; `compute` is the dtype of products, but of those of codes with `int8_products`, which the device must have.
    """
    if int8_products and device.type != "meta":
        require_int8_products(device)
    block_ids = set(map(id, blocks))
    product_dtype = torch.float32 if base == "float32" else compute

    count = sum(type(layer) is nn.Linear for block in blocks for layer in block.modules())
    progress = _RoundingProgress(count, base) if base in FORMATS and device.type != "meta" else None

    def store_parameters(layer: nn.Module) -> None:
        dtype = product_dtype if isinstance(layer, PRODUCTS) else torch.float32
        for name, parameter in list(layer.named_parameters(recurse=False)):
            stored = stored_weights.value(parameter).to(device, dtype if parameter.is_floating_point() else None)
            setattr(layer, name, nn.Parameter(stored, requires_grad=False))

    def store_below(parent: nn.Module, inside: bool) -> None:
        inside = inside or id(parent) in block_ids
        store_parameters(parent)
        for name, buffer in list(parent.named_buffers(recurse=False)):
            setattr(parent, name, buffer.to(device, torch.float32 if buffer.is_floating_point() else None))
        for name, child in list(parent.named_children()):
            layer = None
            if inside and type(child) is nn.Linear:
                layer = _quantize_layer(child, base, device, int8_products=int8_products)
            if layer is not None:
                store_parameters(layer)
                setattr(parent, name, layer)
                if progress is not None:
                    progress.count_layer()
            else:
                store_below(child, inside)

    store_below(module, inside=False)


class _RoundingProgress:
    """Says how far the rounding of a network is, which takes minutes for one of billions of parameters."""

    def __init__(self, layers: int, base: str) -> None:
        self._layers, self._done, self._latest = layers, 0, time.monotonic()
        logger.info(f"rounding {layers} layers to {base}")

    def count_layer(self) -> None:
        self._done += 1
        if time.monotonic() - self._latest >= _SECONDS_BETWEEN_LINES:
            self._latest = time.monotonic()
            logger.info(
                f"{self._done} of {units.plural(self._layers, 'layer')} {units.verb(self._done, 'are')} rounded"
            )


def _quantize_layer(
    layer: nn.Linear, base: BaseStorage, device: torch.device, *, int8_products: bool
) -> FrozenLinear | None:
    """Return a linear layer in a quantised format; None if the base, or in GGUF its file, has no codes for it."""
    if base == "gguf":
        stored = stored_weights.stored_weight(layer.weight)
        return GgufLinear(layer, stored, device) if isinstance(stored, GgufWeight) else None
    return QuantizedLinear(layer, base, device, int8_products=int8_products) if base in FORMATS else None
