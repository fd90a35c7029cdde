"""Find the network that a file of updates belongs to, which its header names or the shapes of its layers tell."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from reelworks.annexes.lora.adapter_file import AdapterFile
from reelworks.core import user_files
from reelworks.core.errors import UserError
from reelworks.models import identify, registry
from reelworks.models.adapters import closest, key_mapping, release_layers
from reelworks.models.adapters.closest import ClosestBase
from reelworks.models.adapters.files import BASE
from reelworks.models.adapters.release_layers import Place, TargetLayer
from reelworks.models.family import FamilyConfig


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
    def has_one_text_encoder(self) -> bool:
        """Whether its model has one text encoder."""
        return registry.has_one_text_encoder(self.names[0])

    def place_of(self, layer: str) -> Place:
        """Return the place of one of its layers in the release."""
        return release_layers.place(self.config, layer)

    def kernel_of(self, layer: str) -> tuple[int, ...]:
        """Return the sides of the kernel of one of its layers; none of a linear one."""
        return tuple(self.layers[layer].get_parameter("weight").shape[2:])

    def targets_of(self, name: str) -> list[TargetLayer]:
        """Return the layers that a layer's name in a file means, in the order of their rows; none for an unknown one."""
        return self._homes.get(name, [])


def sizes_of(file: AdapterFile) -> dict[str, tuple[int, int]]:
    """Return outputs and inputs of the network's layers by name."""
    return {layer.name: layer.shape for layer in file.layers if layer.text_encoder is None}


def closest_to(file: AdapterFile, model: str | None = None) -> ClosestBase:
    """Return the presets that a file fits: by names of layers that of `model` or of its header, else by shapes too."""
    sizes = sizes_of(file)
    if not sizes:
        return ClosestBase((), 0, 0)
    named = registry.preset_name(model) if model else _base_in(file.header)
    if named:
        # Widths of a run's own encoders may differ from the published ones.
        found = closest.closest(sizes, [named], of_any_width=True)
        if found.is_whole or model:
            return found
    found = closest.closest(sizes, _alike(file.header))
    return found if found.is_whole else closest.closest(sizes)


def require(file: AdapterFile, model: str | None) -> BaseNetwork:
    """Return the network of a file.

    Raises:
        UserError: Some layers fit no known network, or several networks fit that have different names for them, or a layer
            has several updates.
    """
    found = closest_to(file, model)
    if not found.is_whole:
        known = f"; {found.names[0]} has {found.fitting:,} of its {found.total:,} layers" if found.names else ""
        raise UserError(
            f"it fits {'another network' if model else 'no known network'}{known}",
            code="lora-does-not-fit",
            remedy="leave --model out, or name another model" if model else "name a file for a known model",
        )
    network = resolve(found, file)
    key_mapping.require_once(target.layer for layer in sizes_of(file) for target in network.targets_of(layer))
    return network


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


def _base_in(header: dict[str, str]) -> str | None:
    """Return the preset that a header of Reelworks names."""
    with suppress(ValueError, AttributeError):
        base = user_files.parse_json(header.get(BASE, "{}")).get("model")
        return base if isinstance(base, str) and base in registry.PRESETS else None
    return None


def _alike(header: dict[str, str]) -> list[str]:
    """Return the presets that a header means in the words of ModelSpec or of kohya's scripts."""
    architecture = header.get("modelspec.architecture", "").removesuffix("/lora")
    version = header.get("ss_base_model_version")
    return [
        name
        for name, release in ((name, registry.release_of(name)) for name in registry.PRESETS)
        if architecture in (name, release.architecture) or (version and version == release.base_version)
    ]


def describes_another(file: AdapterFile, other: AdapterFile) -> bool:
    """Whether the headers of two files name different base weights."""
    keys = (BASE, "modelspec.architecture", "ss_base_model_version", "ss_sd_model_hash")
    return any(file.header[key] != other.header[key] for key in keys if key in file.header and key in other.header)
