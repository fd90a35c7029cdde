"""Weights that files hold in 8 bits with scales: fp8, and ComfyUI's int8, which may be in a rotated basis.

    layer.weight            codes, `[out, in]`
    layer.weight_scale      one scale, or one for each row; older files of fp8 call it `scale_weight`
    layer.comfy_quant       the bytes of a JSON object that names the format, as in {"format": "int8_tensorwise"}

With `"convrot": true` (ConvRot, arXiv 2512.03673), each `convrot_groupsize` inputs are multiplied by a Hadamard matrix, which
spreads outliers; the codes are those of the product. Every marker is read or refused: codes that are taken for something else
are a network of noise.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reelworks.core import user_files
from reelworks.core.errors import first_few
from reelworks.models.storage.stored_weights import StoredWeight, unsupported

_SCALES = (".scale_weight", ".weight_scale")
_UNUSED = (".scale_input", ".input_scale", "scaled_fp8")  # scales of inputs speed up products
_MARKER, _IN_HEADER = ".comfy_quant", "_quantization_metadata"
_ONE = torch.ones(())  # the scale of a tensor without one
_DTYPES = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2, "int8_tensorwise": torch.int8}
# What else a marker may say without another meaning of its codes.
_NO_MATTER = frozenset(("full_precision_matrix_mult", "per_row", "orig_dtype", "orig_shape", "group_size", "params"))
_DEFAULT_GROUP = 256


@dataclass(frozen=True, eq=False)
class ScaledWeight(StoredWeight):
    """Codes `[out, in]` in a dtype of 8 bits, and the scales of rows, `[out, 1]` in float32.

    Attributes:
        group: Number of inputs that are rotated together; 0 if none are.
    """

    group: int = 0

    @property
    def width(self) -> int:
        """Number of values of a row."""
        return self.parts[0].shape[1]

    def dequantize(self) -> Tensor:
        """Return the values, `[out, in]` in float32."""
        codes, scale = self.parts
        return rotate(codes.float() * scale, rotation(self.group, codes.device))


def rotate(rows: Tensor, rotation: Tensor | None) -> Tensor:
    """Return rows `[..., in]` with inputs rotated in groups, or those that were rotated as they were; None changes nothing."""
    return rows if rotation is None else (rows.reshape(-1, len(rotation)) @ rotation.to(rows)).view(rows.shape)


@functools.cache
def rotation(group: int, device: torch.device | None = None) -> Tensor | None:
    """Return the matrix that rotates so many inputs together, one for all layers of a device; None for 0."""
    return hadamard(group).to(device) if group else None


@functools.cache
def hadamard(size: int) -> Tensor:
    """Return the regular Hadamard matrix of a power of 4, symmetric and with rows of length 1, in float32."""
    four = torch.ones(4, 4) - 2 * torch.eye(4).flip(1)
    return four / 2 if size == 4 else torch.kron(hadamard(size // 4), four / 2)


class _Format(NamedTuple):
    dtype: torch.dtype
    group: int


def marked(state: Mapping[str, Tensor], description: Mapping[str, str]) -> dict[str, Tensor]:
    """Return a file's tensors with the markers that the description in its header has, as in ComfyUI's older files."""
    if _IN_HEADER not in description:
        return {**state}
    try:
        listed = user_files.parse_json(description[_IN_HEADER])["layers"]
        layers = {name: json.dumps(said).encode() for name, said in listed.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise unsupported(f"{_IN_HEADER} in its header cannot be read") from error
    return {f"{name}{_MARKER}": torch.tensor([*said], dtype=torch.uint8) for name, said in layers.items()} | {**state}


def read_quantized(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a file's tensors: weights in 8 bits on `meta`, see `stored_weights`, and others multiplied by their scales.

    Raises:
        UserError: Weights are in a format that is not read, or do not say in which.
    """
    markers = {
        name.removesuffix(_MARKER): _marker(name, data) for name, data in state.items() if name.endswith(_MARKER)
    }
    values = {
        key: value
        for key, value in state.items()
        # The last part of a marker begins with underscores, such as ComfyUI's of Qwen-Image-Edit-2511.
        if not key.endswith((*_SCALES, *_UNUSED, _MARKER)) and not key.rpartition(".")[2].startswith("__")
    }
    scales: dict[str, Tensor] = {}
    for key in (key for key in state if key.endswith(_SCALES)):
        name = f"{key.rpartition('.')[0]}.weight"
        if name in scales:
            raise unsupported(f"{name} has two scales, {' and '.join(_SCALES)}")
        scales[name] = state[key].float()
    coded = {key for key, value in values.items() if value.dtype.itemsize == 1}
    lost = [
        *(name for name in scales if name not in values or values[name].is_meta),
        *(f"{layer}{_MARKER}" for layer in markers if f"{layer}.weight" not in values),
    ]
    for key in values:
        layer, _, part = key.rpartition(".")
        lost += [key] * (part not in ("weight", "bias") and not coded.isdisjoint((layer, f"{layer}.weight")))
    if lost:
        raise unsupported(
            f"what is stored beside weights in 8 bits is not known, or is of no weight: {first_few(lost)}"
        )
    return {name: _read(name, value, scales.get(name, _ONE), markers) for name, value in values.items()}


def _read(name: str, value: Tensor, scale: Tensor, markers: Mapping[str, _Format]) -> Tensor:
    layer, _, part = name.rpartition(".")
    format = markers.get(layer) if part == "weight" else None
    if format is not None and value.dtype != format.dtype:
        raise unsupported(f"{name} has {value.dtype} where its marker says {format.dtype}")
    is_packed = str(value.dtype).endswith("_x2")  # of two numbers in a byte
    if format is None and part == "weight" and (is_packed or not value.dtype.is_floating_point):
        raise unsupported(f"{name} has {value.dtype} and no marker ({layer}{_MARKER}) that says what its numbers mean")
    if format is not None and format.group and value.shape[-1] % format.group:
        raise unsupported(
            f"{name} has {value.shape[-1]} inputs, which are no multiple of the {format.group} that are rotated"
        )
    return _scaled(name, value, scale, format.group if format is not None else 0)


def _scaled(name: str, value: Tensor, scale: Tensor, group: int) -> Tensor:
    """Return a tensor with its scale: one value, or one for each output row with or without further axes."""
    if scale.ndim and scale.numel() == 1:
        scale = scale.reshape(())
    elif scale.ndim == 1:
        scale = scale.reshape(len(scale), *[1] * (value.ndim - 1))
    fits = scale.ndim == value.ndim and all(n in (1, of) for n, of in zip(scale.shape, value.shape, strict=True))
    if scale.ndim and not fits:
        raise unsupported(f"{name} is {[*value.shape]}, with scales of {[*scale.shape]}")
    is_code = value.dtype.itemsize == 1 and value.dtype != torch.bool
    if is_code and value.ndim == 2 and (not scale.ndim or scale.shape[1] == 1):
        rotated = f" rotated by {group}" if group else ""
        return ScaledWeight((value, scale.expand(len(value), 1)), f"{value.dtype}{rotated}", group).on_meta()
    return value if scale is _ONE else rotate(value.float() * scale, rotation(group, value.device))


def _marker(name: str, data: Tensor) -> _Format:
    try:
        said: Any = user_files.parse_json(data.cpu().contiguous().view(torch.uint8).numpy().tobytes())
        said = {**(said.get("params") or {}), **said}
        format = str(said["format"])
        group = int(said.get("convrot_groupsize", _DEFAULT_GROUP)) if said.get("convrot") else 0
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise unsupported(f"the marker {name} cannot be read") from error
    unknown = sorted(said.keys() - _NO_MATTER - {"format", "convrot", "convrot_groupsize"})
    if format not in _DTYPES or unknown:
        raise unsupported(f"the marker {name} says {', '.join([f'format {format}', *unknown])}, which is not known")
    if group and (group < 4 or 4 ** (group.bit_length() // 2) != group):
        raise unsupported(f"the marker {name} says that {group} inputs are rotated together, which is no power of 4")
    return _Format(_DTYPES[format], group)
