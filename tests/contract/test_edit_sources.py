"""A model that takes several sources of an edit takes any number of them, in order, each of its own size."""

from __future__ import annotations

import dataclasses

import plain
import pytest
import torch

from reelworks.models import registry
from reelworks.models.objectives import objectives
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.testing import contract


def _takes_several(name):
    wants = registry.PRESETS[name].config.conditioning
    return (
        wants.companions.most_sources > 1 and not wants.companions.sources_as_frames
    )  # which are frames of all that the network gets


SEVERAL = [name for name in plain.LOSSES if _takes_several(name)]


def case(name, count):
    shape = dataclasses.replace(contract.shapes(name)[-1], height=4, width=12)
    inputs = contract.example(shape, name)
    noise = torch.randn(inputs.latent.shape, generator=torch.Generator().manual_seed(3))
    return dataclasses.replace(
        inputs, sources=inputs.sources[:count], source_sounds=inputs.source_sounds[:count]
    ), noise


@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("name", SEVERAL)
def test_the_loss_is_that_of_a_plain_script_for_any_number_of_sources(name, count):
    """Also without a source, where the model can do without; the second one has other sizes than the picture."""
    if count == 0 and registry.PRESETS[name].config.conditioning.companions.needs:
        pytest.skip("it needs a source")
    denoiser, (inputs, noise) = contract.build(name), case(name, count)
    assert len(inputs.sources) == count
    assert count < 2 or inputs.sources[1].shape != inputs.latent.shape
    with torch.no_grad():
        ours = contract.loss(denoiser, objectives.from_config(ObjectiveConfig()), inputs, noise)
        plainly = plain.LOSSES[name](denoiser.module, inputs.latent, noise, inputs)
    torch.testing.assert_close(ours, plainly, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", SEVERAL)
def test_the_order_of_sources_counts(name):
    """Two sources that change places give another loss: captions refer to the first and the second picture."""
    denoiser, (inputs, noise) = contract.build(name), case(name, 3)
    turned = dataclasses.replace(inputs, sources=inputs.sources[::-1], source_sounds=inputs.source_sounds[::-1])
    objective = objectives.from_config(ObjectiveConfig())
    with torch.no_grad():
        ours, other = (contract.loss(denoiser, objective, each, noise) for each in (inputs, turned))
    assert not torch.allclose(ours, other, rtol=1e-5)
