"""Sizes and networks of presets, apart from their weights."""

from torch import nn

from reelworks.models import registry
from reelworks.models.api import FamilyNetwork
from reelworks.models.family import FamilyConfig


def config_of(name: str) -> FamilyConfig:
    return registry.PRESETS[name].config


def family_network(config: FamilyConfig) -> FamilyNetwork:
    name = next(n for n, preset in registry.PRESETS.items() if type(preset.config) is type(config))
    return registry.load_network(registry.family_of(name))


def network_of(config: FamilyConfig) -> nn.Module:
    """A network of these sizes, with fresh weights on the default device."""
    return family_network(config).build(config)
