"""Write a file in the names of another convention; no number changes but by its scale and its dtype."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor

from reelworks.annexes.lora import base_network, output
from reelworks.annexes.lora.adapter_file import AdapterFile, open_adapter
from reelworks.annexes.lora.base_network import BaseNetwork
from reelworks.annexes.lora.contents import StoredLayer
from reelworks.annexes.lora.output import NewAdapterFile, WrittenLayer, rewriting
from reelworks.annexes.lora.request import ConvertLoraRequest
from reelworks.annexes.lora.results import LayerResult, LoraResult, ratio
from reelworks.core import requests, torch_state
from reelworks.core.errors import UserError
from reelworks.core.units import plural
from reelworks.models.adapters import files, fit, key_mapping, release_layers
from reelworks.models.adapters.adapter_types.adapter_type import AdapterType
from reelworks.models.adapters.adapter_types.registry import LORA
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.adapters.conventions import CONVENTIONS, Convention
from reelworks.models.adapters.low_rank import LowRank
from reelworks.models.adapters.release_layers import Place
from reelworks.models.export import export

_NAMELESS = "for which programs that read this convention have no names"


@requests.telling(ConvertLoraRequest)
@torch_state.own()
def convert(request: ConvertLoraRequest) -> LoraResult:
    """Write a file in another convention.

    Raises:
        UserError: The file is damaged, its network is not known, or the convention cannot hold its updates.
    """
    with rewriting(request) as new, open_adapter(str(request.file), "file") as file:
        return write_as(file, new, CONVENTIONS[request.to], request.model)


def write_as(file: AdapterFile, new: NewAdapterFile, convention: Convention, model: str | None) -> LoraResult:
    """Write an open file in a convention."""
    network = base_network.require(file, model) if file.has_network else None
    conversion = _Conversion(file, new, convention, network)
    with new.stage("converting", len(file.layers)):
        for group in conversion.groups():
            conversion.add(group)
        encoders = [layer for layer in file.layers if layer.text_encoder]
        left_out = sum(not conversion.add_of_text_encoder(layer) for layer in encoders)
    if not new.layers:
        raise UserError(
            f"its layers are those of text encoders, {_NAMELESS}",
            code="adapter-not-writable",
            field="to",
            value=convention.name,
            remedy="use the file as it is",
        )
    header = output.header_of(file.header, new.layers) | {"modelspec.usage_hint": convention.usage}
    notes = [f"left out: {plural(left_out, 'layer')} of text encoders, {_NAMELESS}"] if left_out else []
    return new.finish(header | conversion.peft_settings(), convention, [*notes, *file.left_out()])


class _Conversion:
    """A file that is being written in another convention."""

    def __init__(
        self, file: AdapterFile, new: NewAdapterFile, convention: Convention, network: BaseNetwork | None
    ) -> None:
        self._file, self._new, self._convention, self._base = file, new, convention, network
        # Of those with diffusers' names, the shapes of tensors by kind.
        self._own: dict[AdapterType, dict[str, dict[str, torch.Size]]] = defaultdict(dict)

    @property
    def _network(self) -> BaseNetwork:
        """The network, of a file that has layers of one."""
        assert self._base is not None
        return self._base

    @property
    def _names_release(self) -> bool:
        return self._convention.has_release_names(self._network.config.network)

    def groups(self) -> list[list[StoredLayer]]:
        """Return the network's layers of the file, those together that are parts of one layer in the release."""
        groups: dict[str, list[StoredLayer]] = defaultdict(list)
        for layer in self._file.layers:
            if layer.text_encoder is None:
                first = self._network.targets_of(layer.name)[0].layer
                groups[self._network.place_of(first).layer].append(layer)
        return [*groups.values()]

    def add(self, group: list[StoredLayer]) -> None:
        """Write layers that make one layer of the release: as they are, split, or joined, as the convention names them."""
        apart: dict[str, tuple[StoredLayer, dict[str, Tensor]]] = {}
        for layer in group:
            kinds, targets = self._rounded(layer), self._network.targets_of(layer.name)
            is_own = targets[0].place == Place(targets[0].layer)
            is_released = targets[0].place == self._network.place_of(targets[0].layer)
            if self._names_release and is_released:
                self._require_writable(layer, joins=False)
                self._write(layer, self._convention.stem(targets[0].place.layer), kinds)
            elif is_own:
                apart[targets[0].layer] = layer, kinds
            else:
                stacked = layer.type.stacked
                trained = targets if stacked is None else release_layers.trained(kinds[stacked], targets)
                parts = layer.type.split_layer(kinds, trained, 0)
                if not parts:
                    raise layer.type.no_parts(layer.stem)
                apart |= {name: (layer, part) for name, part in parts.items()}
        if self._names_release:
            self._write_joined(apart)
            return
        for name, (layer, kinds) in apart.items():
            self._require_writable(layer, joins=False)
            stem = f"{self._network.part}.{name}" if self._convention.is_peft else self._convention.stem(name)
            self._write(layer, stem, kinds)
            self._own[layer.type][name] = {kind: value.shape for kind, value in kinds.items()}

    def _write_joined(self, apart: Mapping[str, tuple[StoredLayer, dict[str, Tensor]]]) -> None:
        """Write layers of diffusers as one of the release."""
        if not apart:
            return
        (layer, _), *others = apart.values()
        if any(other.type is not layer.type for other, _ in others):
            raise layer.type.no_parts(layer.stem)
        self._require_writable(layer, joins=any(self._network.place_of(name).heights != (1,) for name in apart))
        shaped = {
            name: each.type.with_kernel(kinds, self._network.kernel_of(name)) for name, (each, kinds) in apart.items()
        }
        tensors = layer.type.released_tensors(shaped, self._convention, layer.rank or 1, self._network.config)
        by_stem: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for name, value in tensors.items():
            by_stem[key_mapping.split_ending(name, layer.type)[0]][name] = value  # type: ignore[index]
        for stem, named in by_stem.items():
            ranks = [each.rank for each, _ in apart.values() if each.rank is not None]
            about = WrittenLayer(layer.type, sum(ranks) if len(by_stem) == 1 and ranks else layer.rank)
            self._new.add_layer(stem, named, about, self._new.dtype_of(layer.dtype))

    def add_of_text_encoder(self, layer: StoredLayer) -> bool:
        """Write a layer of a text encoder; returns whether the convention has a name for it."""
        is_only = None if self._base is None else self._base.has_one_text_encoder
        stem = self._convention.text_stem(layer.stem, is_only=is_only)
        if stem is not None:
            self._require_writable(layer, joins=False)
            self._write(layer, stem, self._rounded(layer))
        return stem is not None

    def _rounded(self, layer: StoredLayer) -> dict[str, Tensor]:
        """Return the update of a layer as it is written, and note how far it is from the exact one."""
        kinds, dtype = self._file.read(layer), self._new.dtype_of(layer.dtype)
        if layer.type is LORA and any((value.abs() > torch.finfo(dtype).max).any() for value in kinds.values()):
            kinds |= LowRank(kinds["B"], kinds["A"]).balanced()._asdict()
        rounded = {kind: export.cast(layer.keys.get(kind, layer.stem), value, dtype) for kind, value in kinds.items()}
        values = {kind: value.float() for kind, value in rounded.items()}
        norm = layer.type.norm(kinds)
        is_exact = all(torch.equal(values[kind], value) for kind, value in kinds.items())
        error = 0.0 if is_exact else ratio(layer.type.distance(kinds, values), norm)
        self._new.results.append(LayerResult(layer.stem, layer.type.name, layer.rank, norm, error))
        return rounded

    def _write(self, layer: StoredLayer, stem: str, kinds: Mapping[str, Tensor]) -> None:
        # Files of other types have kernels among the inputs, and so has a LoRA that was made of one.
        targets = [] if layer.text_encoder else self._network.targets_of(layer.name)
        kernel = self._network.kernel_of(targets[0].layer) if targets else layer.kernel
        kind, shaped = layer.type, layer.type.with_kernel(kinds, kernel)
        named = kind.named(stem, shaped, self._convention, layer.rank)
        about = WrittenLayer(kind, kind.rank_of(kinds), kind.depends_on_weight(kinds))
        self._new.add_layer(stem, named, about, self._new.dtype_of(layer.dtype))

    def _require_writable(self, layer: StoredLayer, *, joins: bool) -> None:
        """Refuse an update that the convention's readers would take for another one."""
        if joins or layer.type.depends_on_weight(layer.keys):
            settings = LoraConfig.model_validate({"type": layer.type.name, "dora": "magnitude_vector" in layer.keys})
            network = None if self._base is None else self._base.config.network
            layer.type.require_writable(settings, self._convention, "to", network)

    def peft_settings(self) -> dict[str, str]:
        """Return the header field with peft's settings, for conventions whose readers need them."""
        if not self._convention.is_peft:
            return {}
        if {layer.type for layer in self._new.layers.values()} == {LORA}:
            return output.peft_settings(self._new.layers)
        kind, layers = next(iter(self._own.items()), (None, {}))
        found = fit.settings_of_shapes(kind, layers) if kind is not None and len(self._own) == 1 else None
        if kind is None or found is None:
            raise UserError(
                "peft has no settings that give all its layers these shapes",
                code="adapter-not-writable",
                field="to",
                value=self._convention.name,
                remedy="write another convention, or convert the LoRA that `reelworks lora resize` makes of it",
            )
        return files.settings_field({self._network.part: kind.peft_settings(found.adapter, layers)})
