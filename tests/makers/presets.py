"""Sizes and networks of presets, apart from their weights."""

import pytest
from torch import nn

from reelworks.models import registry
from reelworks.models.api import FamilyNetwork
from reelworks.models.family import FamilyConfig
from reelworks.testing import contract

# For what is the same in all networks of a class.
every_class = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in contract.CLASSES else pytest.mark.slow) for n in contract.FAMILIES]
)


def config_of(name: str) -> FamilyConfig:
    return registry.PRESETS[name].config


def family_network(config: FamilyConfig) -> FamilyNetwork:
    name = next(n for n, preset in registry.PRESETS.items() if type(preset.config) is type(config))
    return registry.load_network(registry.family_of(name))


def network_of(config: FamilyConfig) -> nn.Module:
    """A network of these sizes, with fresh weights on the default device."""
    return family_network(config).build(config)
