"""Video models that can take a source see the tokens of a reference clip behind those of the clip, clean and in its places."""

from __future__ import annotations

import dataclasses

import plain
import pytest
import torch
from torch.nn.functional import interpolate

from reelworks.models import registry
from reelworks.models.objectives import objectives
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.testing import contract


def _takes_clips(name):
    config = registry.PRESETS[name].config
    wants = config.conditioning
    in_tokens = "source" in wants.companions.takes and not (
        wants.companions.needs or wants.companions.sources_as_frames
    )
    return in_tokens and not config.pictures_only


CLIPS = pytest.mark.parametrize("name", [name for name in plain.LOSSES if _takes_clips(name)])


def case(name):
    inputs = contract.example(contract.shapes(name)[-1], name)
    assert len(inputs.sources) == 1
    assert inputs.sources[0].shape == inputs.latent.shape
    noise = torch.randn(inputs.latent.shape, generator=torch.Generator().manual_seed(3))
    return contract.build(name), inputs, noise


@torch.no_grad()
@CLIPS
@pytest.mark.parametrize("size", [None, (2, 2), (6, 4)])
def test_the_loss_is_that_of_a_plain_script(name, size):
    """Without a reference, where the network is called as without any, and with one of another size."""
    denoiser, inputs, noise = case(name)
    source = inputs.sources[0]
    sources = () if size is None else (interpolate(source, (source.shape[2], *size)),)
    inputs = dataclasses.replace(inputs, sources=sources)
    ours = contract.loss(denoiser, objectives.from_config(ObjectiveConfig()), inputs, noise)
    plainly = plain.LOSSES[name](denoiser.module, inputs.latent, noise, inputs)
    torch.testing.assert_close(ours, plainly, rtol=1e-4, atol=1e-6)


@torch.no_grad()
@CLIPS
def test_the_reference_is_seen_and_each_clip_sees_its_own(name):
    """Another reference of the second clip changes its prediction, and no bit of the first one's."""
    denoiser, inputs, _ = case(name)
    other = inputs.sources[0].clone()
    other[1] += 1
    one, two = (DtypeBoundary(denoiser)(each) for each in (inputs, dataclasses.replace(inputs, sources=(other,))))
    assert torch.equal(one[0], two[0])
    assert not torch.allclose(one[1], two[1], atol=1e-4)


@torch.no_grad()
@CLIPS
def test_given_frames_and_a_reference_go_together(name):
    """Frames that are given have time 0 in the clip, all frames of the reference have, and the rest its own."""
    denoiser, inputs, _ = case(name)
    frame_mask = inputs.frame_mask.clone()
    frame_mask[1, 0] = False
    inputs, seen = dataclasses.replace(inputs, frame_mask=frame_mask), {}

    def look(_module, args, kwargs):
        seen.update(zip(("hidden_states", "encoder_hidden_states", "timestep"), args, strict=False), **kwargs)

    denoiser.module.register_forward_pre_hook(look, with_kwargs=True)
    found = DtypeBoundary(denoiser)(inputs)
    assert found.shape == inputs.latent.shape
    places = plain.ltx_places if name == "ltx-tiny" else plain.ltx2_places(denoiser.module)
    expected, _ = plain.with_references(inputs.latent, inputs, places)
    for key, value in expected.items():
        torch.testing.assert_close(seen[key], value)
    frame = inputs.latent.shape[3] * inputs.latent.shape[4]
    assert not seen["timestep"][1, :frame].any()
    assert (seen["timestep"][:, : inputs.latent[0, 0].numel()][0] == inputs.time[0]).all()
