"""Find the network that a file of updates belongs to, which its header names or the shapes of its layers tell."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from torch import nn

from reelworks.core.errors import UserError
from reelworks.lora_tools.adapter_file import AdapterFile
from reelworks.models import identify, registry
from reelworks.models.family import FamilyConfig
from reelworks.models.lora import closest, release_layers
from reelworks.models.lora.closest import ClosestBase
from reelworks.models.lora.files import BASE
from reelworks.models.lora.release_layers import Place, TargetLayer


class BaseNetwork:
    """A network with its layers, and their names in files."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.config: FamilyConfig = registry.PRESETS[names[0]].config
        self.layers = closest.with_weights(identify.network(names[0]))
        self._homes = release_layers.homes(self.layers, self.config)

    @property
    def part(self) -> str:
        """Its folder in a pipeline of diffusers."""
        return self.config.network.part

    @property
    def linear(self) -> dict[str, nn.Linear]:
        """Its linear layers by name."""
        return {name: layer for name, layer in self.layers.items() if isinstance(layer, nn.Linear)}

    def place_of(self, layer: str) -> Place:
        """Return the place of one of its layers in the release."""
        return release_layers.place(self.config, layer)

    def targets_of(self, name: str) -> list[TargetLayer]:
        """Return the layers that a layer's name in a file means, in the order of their rows."""
        return self._homes[name]


def sizes_of(file: AdapterFile) -> dict[str, tuple[int, int]]:
    """Return outputs and inputs of the network's layers by name."""
    return {layer.name: layer.shape for layer in file.layers if layer.text_encoder is None}


def closest_to(file: AdapterFile, model: str | None = None) -> ClosestBase:
    """Return the presets that a file fits: of those that `model` or its header means, else of all."""
    sizes = sizes_of(file)
    for among in [[registry.preset_name(model)]] if model else _named_in(file.header):
        found = closest.closest(sizes, among)
        if found.is_whole or model:
            return found
    return closest.closest(sizes)


def require(file: AdapterFile, model: str | None) -> BaseNetwork:
    """Return the network of a file.

    Raises:
        UserError: Some layers fit no known network, or several networks fit that have different names for them.
    """
    found = closest_to(file, model)
    if not found.is_whole:
        raise _misfit(found, model)
    return resolve(found, file)


def resolve(found: ClosestBase, file: AdapterFile) -> BaseNetwork:
    """Return the network of presets that a file fits; refuses those that have different names for its layers."""
    first, *others = (
        BaseNetwork([name]) for name in {identify.first_alike(name): name for name in found.names}.values()
    )
    for layer in sizes_of(file):
        if any(other.targets_of(layer) != first.targets_of(layer) for other in others):
            raise UserError(
                f"its layers fit several networks, whose names for them differ: {', '.join(found.names)}",
                code="lora-base-unknown",
                field="model",
                remedy=f"give --model, such as --model {found.names[0]}",
            )
    return BaseNetwork(found.names)


def _misfit(found: ClosestBase, model: str | None) -> UserError:
    """Return the error for a file whose layers are not all those of a known network."""
    known = f"; {found.names[0]} has {found.fitting:,} of its {found.total:,} layers" if found.names else ""
    return UserError(
        f"it fits {'another network' if model else 'no known network'}{known}",
        code="lora-does-not-fit",
        remedy="leave --model out, or name another model" if model else "name a file for a known model",
    )


def _named_in(header: dict[str, str]) -> Iterator[list[str]]:
    """Yield the presets that a header names, in the words of Reelworks, then of others."""
    try:
        base = json.loads(header.get(BASE, "{}")).get("model")
    except (ValueError, AttributeError):
        base = None
    if isinstance(base, str) and base in registry.PRESETS:
        yield [base]
    architecture = header.get("modelspec.architecture", "").removesuffix("/lora")
    version = header.get("ss_base_model_version")
    releases = {name: preset.release for name, preset in registry.PRESETS.items() if preset.release is not None}
    alike = [
        name
        for name, release in releases.items()
        if architecture in (name, release.architecture) or (version and version == release.base_version)
    ]
    if alike:
        yield alike


def describes_another(file: AdapterFile, other: AdapterFile) -> bool:
    """Whether the headers of two files name different base weights."""
    keys = (BASE, "modelspec.architecture", "ss_base_model_version", "ss_sd_model_hash")
    return any(file.header[key] != other.header[key] for key in keys if key in file.header and key in other.header)
