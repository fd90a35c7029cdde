"""Open a file of a LoRA or another adapter type in any convention, and read its updates layer by layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property

import torch
from torch import Tensor

from reelworks.annexes.lora.contents import Contents, StoredLayer
from reelworks.core.errors import UserError
from reelworks.models.adapters import conventions, files, key_mapping, other_tensors
from reelworks.models.adapters.conventions import Convention
from reelworks.models.storage import weights
from reelworks.models.storage.tensor_files import TensorFiles

_PEFT = "base_model.model."
_OF_UNETS = ("down_blocks.", "mid_block.", "up_blocks.")


class AdapterFile:
    """An open file; `open_adapter` makes it.

    Attributes:
        source: How the user named it.
        contents: Its tensors, sorted; `layers` are the updates among them.
        convention: That of its names; None if they have no prefix.
    """

    def __init__(self, field: str, source: str, tensors: TensorFiles, header: dict[str, str]) -> None:
        self.field, self.source, self.header, self._tensors = field, source, header, tensors
        self.facts = tensors.facts
        self.contents = Contents.sorted_from(tensors.facts)
        self.layers = tuple(self.contents.layers)
        self.convention: Convention | None = conventions.recognise(layer.stem for layer in self.layers)

    @property
    def has_network(self) -> bool:
        """Whether it has layers of a network, beside those of text encoders."""
        return any(layer.text_encoder is None for layer in self.layers)

    @property
    def names(self) -> Convention:
        """The convention that new tensors of the file have the names of."""
        return self.convention or conventions.CONVENTIONS["diffusers"]

    def stem_of(self, layer: StoredLayer) -> str:
        """Return what the names of new tensors of a layer begin with: those of peft get the part of diffusers' pipeline."""
        return self.renamed(layer.stem)

    def renamed(self, name: str) -> str:
        """Return a name of the file with the part of diffusers' pipeline for peft's prefix."""
        return self._part + name.removeprefix(_PEFT) if name.startswith(_PEFT) else name

    @cached_property
    def _part(self) -> str:
        return "unet." if any(layer.name.startswith(_OF_UNETS) for layer in self.layers) else "transformer."

    @cached_property
    def dtypes(self) -> dict[str, int]:
        """Numbers of tensors by data type."""
        return dict(Counter(str(tensor.dtype).removeprefix("torch.") for tensor in self.facts.values()))

    @property
    def others(self) -> list[str]:
        """The names of tensors that are no update of a layer."""
        return [key for keys in self.contents.others.values() for key in keys]

    def added_to(self, key: str) -> tuple[str, str] | None:
        """Return the layer, and "weight" or "bias", that a tensor of numbers is a plain difference of; None for others."""
        return other_tensors.added_to(key) if (dtype := self.facts[key].dtype) and dtype.is_floating_point else None

    def left_out(self, held: Collection[str] = ()) -> list[str]:
        """Return sentences on the tensors that are no update of a layer, for whoever writes a file without them."""
        return [f"{self.source}: {each}" for each in self.contents.describe("left out", lambda key: key not in held)]

    def read_other(self, key: str) -> Tensor:
        """Return a tensor that is no update of a layer, as it is stored."""
        with self.telling():
            return self._tensors.read(key)

    @property
    def has_settings(self) -> bool:
        """Whether the header has peft's settings, or peft's own file beside it."""
        return key_mapping.METADATA in self.header

    def scale_in_header(self, layer: StoredLayer) -> float:
        """Return the scale of a layer without an alpha among its tensors; 0 if its settings are not understood."""
        try:
            return self._scale(
                layer, {kind: torch.empty(self.facts[key].shape, device="meta") for kind, key in layer.keys.items()}
            )
        except UserError:
            return 0.0

    def telling(self) -> AbstractContextManager[None]:
        """Let errors in the block that name no field name this file."""
        return weights.telling(self.field, self.source, anew=False)

    def read(self, layer: StoredLayer, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """Return the tensors of a layer by kind, in a dtype, of two axes each and with the scale among their numbers."""
        with self.telling():
            stored = {kind: self._tensors.read(key) for kind, key in layer.keys.items()}
            kinds = layer.type.flat({kind: value.to(dtype) for kind, value in stored.items() if kind != "alpha"})
            kinds = key_mapping.multiply(layer.type, kinds, self._scale(layer, stored))
            key_mapping.require_numbers({layer.keys[kind]: value for kind, value in kinds.items()})
        return kinds

    def _scale(self, layer: StoredLayer, stored: Mapping[str, Tensor]) -> float:
        settings = key_mapping.settings_of(self.header, layer.stem)
        return key_mapping.stored_scale(layer.type, stored, settings, layer.name)


@contextmanager
def open_adapter(source: str, field: str) -> Iterator[AdapterFile]:
    """Open a file by its path or its place on the hub; errors in the block that name no field name this one.

    Tensors that are no update of a layer are left out, and `left_out()` tells of them.

    Raises:
        UserError: It is damaged, or holds no update of a layer.
    """
    path = weights.require_file(source, field)
    with weights.telling(field, source, anew=False), TensorFiles([path]) as tensors:
        file = AdapterFile(field, source, tensors, files.header(str(path)))
        file.contents.require_updates(tensors.facts)
        yield file


@contextmanager
def look_into(source: str) -> Iterator[AdapterFile]:
    """Open a file of any tensors, whose problems are in its contents."""
    path = weights.require_file(source, "file")
    with weights.telling("file", source, anew=False), TensorFiles([path]) as tensors:
        file = AdapterFile("file", source, tensors, tensors.metadata)
        try:
            file.header = files.header(str(path))
        except UserError as error:
            file.contents.problems.append(error)
        yield file
