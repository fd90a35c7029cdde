"""Open a file of a LoRA or another adapter type in any convention, and read its updates layer by layer."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from reelworks.core.errors import UserError, first_few
from reelworks.models import identify, weights
from reelworks.models.lora import conventions, files, key_mapping, text_encoders
from reelworks.models.lora.adapter_types.adapter_type import AdapterType
from reelworks.models.lora.adapter_types.registry import TYPES
from reelworks.models.lora.conventions import Convention
from reelworks.models.tensor_files import TensorFacts, TensorFiles

_PEFT = "base_model.model."
_OF_UNETS = ("down_blocks.", "mid_block.", "up_blocks.")
_LARGEST = 1e8  # above all that training gives; products of four such numbers are within float32
_REMEDY = "download or export it again"
_WRITTEN = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class StoredLayer:
    """A layer that a file has an update of.

    Attributes:
        stem: What the names of its tensors begin with.
        name: The layer as it is spelt in the file, without the convention's prefix.
        keys: Names of its tensors by kind.
        shape: `[out, in]` of the update; no `out` for a rotation of inputs.
        kernel: Sides of a convolution's kernel; empty for a linear layer.
        rank: Its rank; None if the update is stored otherwise.
        dtype: A type that holds its numbers and is one of those that are written.
    """

    stem: str
    name: str
    type: AdapterType
    keys: Mapping[str, str]
    shape: tuple[int, int]
    kernel: tuple[int, ...]
    rank: int | None
    dtype: torch.dtype

    @property
    def text_encoder(self) -> str | None:
        """The text encoder that it is a layer of; None for one of the network."""
        return text_encoders.part_of(self.stem)

    @property
    def folded(self) -> str:
        """Its name as all conventions spell it that have the same layers."""
        return (text_encoders.in_kohya(self.stem) if self.text_encoder else self.name).replace(".", "_")


class AdapterFile:
    """An open file; `open_adapter` makes it.

    Attributes:
        source: How the user named it.
        convention: That of its names; None if they have no prefix.
    """

    def __init__(self, field: str, source: str, tensors: TensorFiles, header: dict[str, str]) -> None:
        self.field, self.source, self.header, self._tensors = field, source, header, tensors
        self.layers = tuple(_layers(tensors.facts))
        names = Counter(layer.folded for layer in self.layers)
        if twice := [name for name, count in names.items() if count > 1]:
            raise _damaged(f"it has several updates of one layer, under other prefixes: {first_few(twice)}")
        self.convention: Convention | None = conventions.recognise(layer.stem for layer in self.layers)

    @property
    def names(self) -> Convention:
        """The convention that new tensors of the file have the names of."""
        return self.convention or conventions.CONVENTIONS["diffusers"]

    def stem_of(self, layer: StoredLayer) -> str:
        """Return what the names of new tensors of a layer begin with: those of peft get the part of diffusers' pipeline."""
        part = "unet." if any(other.name.startswith(_OF_UNETS) for other in self.layers) else "transformer."
        return part + layer.name if layer.stem.startswith(_PEFT) else layer.stem

    @cached_property
    def dtypes(self) -> dict[str, int]:
        """Numbers of tensors by data type."""
        counts: dict[str, int] = defaultdict(int)
        for tensor in self._tensors.facts.values():
            counts[str(tensor.dtype).removeprefix("torch.")] += 1
        return dict(counts)

    def telling(self) -> AbstractContextManager[None]:
        """Let errors in the block that name no field name this file."""
        return telling(self.field, self.source)

    def read(self, layer: StoredLayer) -> dict[str, Tensor]:
        """Return the tensors of a layer by kind, in float32, of two axes each and with the scale among their numbers."""
        with self.telling():
            stored = {kind: self._tensors.read(key) for kind, key in layer.keys.items()}
            kinds = layer.type.flat({kind: value.float() for kind, value in stored.items() if kind != "alpha"})
            kinds = key_mapping.multiply(layer.type, kinds, self._scale(layer, stored))
            for kind, value in kinds.items():
                if not float(value.abs().max()) <= _LARGEST:
                    raise _damaged(f"{layer.keys[kind]} holds infinities, NaN or numbers above {_LARGEST:g}")
        return kinds

    def _scale(self, layer: StoredLayer, stored: Mapping[str, Tensor]) -> float:
        encoder = layer.text_encoder
        try:
            settings = key_mapping.settings_of(
                self.header, lambda part: part == encoder if encoder else not text_encoders.is_part(part)
            )
            layer.type.require_readable(settings)
            scale = key_mapping.stored_scale(layer.type, stored, settings, layer.name)
        except UserError:
            raise
        except Exception as error:  # settings of other programs may be of any type
            raise _damaged("the settings in its header are not understood") from error
        if not math.isfinite(scale):
            raise _damaged(f"the alpha of {layer.stem} is no number")
        return scale


@contextmanager
def open_adapter(source: str, field: str) -> Iterator[AdapterFile]:
    """Open a file by its path or its place on the hub; errors in the block that name no field name this one.

    Raises:
        UserError: It is damaged, holds other tensors than those of updates, or lacks some of a layer.
    """
    path = weights.require_file(source, field)
    with telling(field, source), TensorFiles([path]) as tensors:
        yield AdapterFile(field, source, tensors, files.stored_header(str(path)))


@contextmanager
def telling(field: str, value: str) -> Iterator[None]:
    """Let errors that name no field name this one."""
    try:
        yield
    except UserError as error:
        if error.field is not None:
            raise
        raise UserError(error.problem, code=error.code, field=field, value=value, remedy=error.remedy) from error


def _layers(facts: Mapping[str, TensorFacts]) -> Iterator[StoredLayer]:
    found: dict[str, dict[str, str]] = defaultdict(dict)
    unknown = []
    for key in facts:
        target = key_mapping.split_ending(key)
        if target is None or target[1] in found[target[0]]:
            unknown.append(key)
        else:
            found[target[0]][target[1]] = key
    if unknown or not found:
        raise _no_adapter(facts, unknown)
    broken = [stem for stem, keys in found.items() if _type_of(keys) is None]
    if broken:
        raise _damaged(
            f"{len(broken):,} of its {len(found):,} layers lack a tensor of their update, such as {first_few(broken)}"
        )
    for stem, keys in found.items():
        yield _layer(stem, keys, facts)


def _layer(stem: str, keys: dict[str, str], facts: Mapping[str, TensorFacts]) -> StoredLayer:
    kind = _type_of(keys)
    assert kind is not None
    shapes = {each: facts[key].shape for each, key in keys.items() if each != "alpha"}
    dtypes = {facts[key].dtype for each, key in keys.items() if each != "alpha"}
    try:
        with torch.device("meta"):
            meta: dict[str, Any] = {each: torch.empty(shape) for each, shape in shapes.items()}
            rows, columns = kind.shape(kind.flat(meta))
    except (RuntimeError, ValueError, IndexError) as error:
        raise _damaged(f"the shapes of {stem} do not belong together: {shapes}") from error
    if not all(math.prod(shape) for shape in shapes.values()):
        raise _damaged(f"{stem} has an update of rank 0")
    if any(dtype is not None and not dtype.is_floating_point for dtype in dtypes):
        raise _damaged(f"{stem} is stored in whole numbers, which are no update without their scales")
    kernel = max((shape[2:] for shape in shapes.values()), key=lambda sides: (math.prod(sides), len(sides)))
    rank = kind.rank_of(kind.flat(meta))
    return StoredLayer(
        stem, key_mapping.layer_of(stem), kind, keys, (rows, columns), kernel, rank, _written_dtype(dtypes)
    )


def _written_dtype(dtypes: set[torch.dtype | None]) -> torch.dtype:
    if len(dtypes) == 1 and (one := next(iter(dtypes))) in _WRITTEN:
        assert one is not None
        return one
    return torch.float32 if dtypes & {None, torch.float64, *_WRITTEN} else torch.bfloat16


def _type_of(kinds: Mapping[str, str]) -> AdapterType | None:
    """Return the type that a layer's tensors make a whole update of; None if they do not."""
    own = kinds.keys() - {"alpha"}
    types = (kind for kind in TYPES.values() if own <= {*kind.endings().values()} and kind.is_whole(own))
    return next(types, None)


def _no_adapter(facts: Mapping[str, TensorFacts], unknown: list[str]) -> UserError:
    shapes = {name: tensor.shape for name, tensor in facts.items()}
    if not facts:
        return _damaged("it holds no tensors")
    if len(unknown) < len(facts):
        return UserError(
            f"{len(unknown):,} of its {len(facts):,} tensors belong to no update of a known type: {first_few(unknown)}",
            code="lora-tensors-unknown",
            remedy="name a file of a LoRA, LoKr, LoHa or OFT alone",
        )
    problem, remedy = ("", "") if identify.is_lora(shapes) else identify.what(shapes, for_field="lora.weights")
    return UserError(
        f"not a LoRA{': ' + problem if problem else ''}",
        code="not-a-lora",
        remedy=remedy or "name a file of a LoRA, LoKr, LoHa or OFT",
    )


def _damaged(problem: str) -> UserError:
    return UserError(problem, code="lora-unreadable", remedy=_REMEDY)
