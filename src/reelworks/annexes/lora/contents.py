"""Sort the tensors of a file into updates of layers and others; of those that are no update here, tell what they are."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from reelworks.core import units
from reelworks.core.errors import UserError, first_few
from reelworks.models import identify
from reelworks.models.adapters import key_mapping, other_tensors, release_layers, text_encoders
from reelworks.models.adapters.adapter_types.adapter_type import AdapterType
from reelworks.models.storage.tensor_files import TensorFacts

_WRITTEN = (torch.float32, torch.bfloat16, torch.float16)
_BY_COLUMNS, _LACKING = "DoRAs by columns", "tensors of updates that lack a part"
_NO_REMEDY = "name a file of a LoRA, LoKr, LoHa or OFT"


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
        return key_mapping.folded(self.stem)


@dataclass
class Contents:
    """The tensors of a file.

    Attributes:
        layers: Updates of layers.
        others: Names of tensors that are no update here, by what they are.
        problems: Errors that a damaged file ends in where its updates are used.
    """

    layers: list[StoredLayer] = field(default_factory=list)
    others: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    problems: list[UserError] = field(default_factory=list)

    @classmethod
    def sorted_from(cls, facts: Mapping[str, TensorFacts]) -> Contents:
        """Sort the tensors of a file."""
        found: dict[str, dict[str, str]] = defaultdict(dict)
        unknown = []
        for key in facts:
            target = key_mapping.split_ending(key)
            if target is None or target[1] in found[target[0]]:
                unknown.append(key)
            else:
                found[target[0]][target[1]] = key
        contents, spoiled = cls(), {other_tensors.layer_of(key, found) for key in unknown}
        for stem, keys in found.items():
            if stem not in spoiled:
                contents._add(stem, keys, facts)
        for key in (*unknown, *(key for stem in spoiled if stem for key in found[stem].values())):
            contents.others[other_tensors.kind_of(key)].append(key)
        try:
            key_mapping.require_once(layer.stem for layer in contents.layers)
        except UserError as error:
            contents.problems.append(error)
        return contents

    def _add(self, stem: str, keys: dict[str, str], facts: Mapping[str, TensorFacts]) -> None:
        """Add the tensors of a layer as its update, or as others."""
        kind, lengths = key_mapping.type_of(keys), keys.get("magnitude_vector")
        is_by_columns = lengths is not None and release_layers.is_by_columns(lengths, facts[lengths].shape)
        if kind is not None and not is_by_columns:
            try:
                self.layers.append(_layer(stem, kind, keys, facts))
                return
            except UserError as error:
                self.problems.append(error)
        for key in keys.values():
            what = _BY_COLUMNS if kind is not None and is_by_columns else other_tensors.kind_of(key)
            self.others[_LACKING if kind is None and key_mapping.is_part(keys) else what].append(key)

    def require_updates(self, facts: Mapping[str, TensorFacts]) -> None:
        """Refuse a file that is damaged, or without updates of layers."""
        if self.problems:
            raise self.problems[0]
        if not self.layers:
            raise self.without_updates(facts)

    def without_updates(self, facts: Mapping[str, TensorFacts]) -> UserError:
        """Return the error for a file that is used for its updates and has none."""
        if not facts:
            return UserError("it holds no tensors", code="lora-unreadable", remedy=_NO_REMEDY)
        if _BY_COLUMNS in self.others:
            return release_layers.refusal_of_columns()
        if some := self.others.get(_LACKING):
            return key_mapping.damaged(
                f"its updates lack a part: {units.plural(len(some), 'tensor', 'are')} alone, such as {first_few(some)}"
            )
        shapes = {name: tensor.shape for name, tensor in facts.items()}
        problem, remedy = ("", "") if identify.is_lora(shapes) else identify.what(shapes, for_field="lora.weights")
        held = other_tensors.describe({what: len(keys) for what, keys in self.others.items()})
        return UserError(
            f"not a LoRA: {problem}" if problem else f"it holds no update that is read here: {held}",
            code="not-a-lora",
            remedy=remedy or _NO_REMEDY,
        )

    def describe(self, verb: str, chosen: Callable[[str], bool]) -> list[str]:
        """Return a sentence with the verb for each kind of chosen tensors that are no update here."""
        found = {what: [key for key in keys if chosen(key)] for what, keys in self.others.items()}
        return [f"{verb}: {what} × {len(keys):,}: {first_few(keys)}" for what, keys in found.items() if keys]


def _layer(stem: str, kind: AdapterType, keys: dict[str, str], facts: Mapping[str, TensorFacts]) -> StoredLayer:
    """Return the update of a layer; raises `UserError` if its tensors do not belong together."""
    own = {each: facts[key] for each, key in keys.items() if each != "alpha"}
    flat = key_mapping.require_update(stem, kind, own)
    shapes, dtypes = {each: tensor.shape for each, tensor in own.items()}, {tensor.dtype for tensor in own.values()}
    kernel = max((shape[2:] for shape in shapes.values()), key=lambda sides: (math.prod(sides), len(sides)))
    name, (rows, columns) = key_mapping.layer_of(stem), kind.shape(flat)
    return StoredLayer(stem, name, kind, keys, (rows, columns), kernel, kind.rank_of(flat), written_dtype(dtypes))


def written_dtype(dtypes: set[torch.dtype | None]) -> torch.dtype:
    """Return a type that holds numbers of some types and is one of those that are written."""
    if len(dtypes) == 1 and (one := next(iter(dtypes))) in _WRITTEN:
        assert one is not None
        return one
    return torch.float32 if dtypes & {None, torch.float64, *_WRITTEN} else torch.bfloat16
