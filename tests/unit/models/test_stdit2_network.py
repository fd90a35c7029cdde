"""STDiT2 as a denoiser: what it is told, what it trains with, and what it refuses."""

import dataclasses

import torch
from refused import refused
from test_stdit3_network import inputs, stir

from reelworks.models import factory
from reelworks.models.config import AutoencoderConfig, ModelConfig, TextEncoderConfig
from reelworks.models.precision import audit
from reelworks.models.precision.boundary import DtypeBoundary

TINY = ModelConfig(name="stdit2-tiny", hidden_size=48, depth=2, num_heads=2)


def build(model=TINY, **options):
    options = {"device": "cpu", "learns_variance": True, **options}
    return factory.build_denoiser(
        model, autoencoder=AutoencoderConfig(stride=2), text=TextEncoderConfig(dim=8, max_length=4), seed=3, **options
    )


def test_it_returns_a_half_for_the_variance_where_the_objective_reads_it():
    """Output channels are doubled for a learned variance, and only then."""
    assert build().predict(inputs()).shape == (2, 24, 3, 4, 5)
    assert build(learns_variance=False).predict(inputs()).shape == (2, 12, 3, 4, 5)


@torch.no_grad()
def test_it_is_told_length_sizes_and_frame_rate():
    """The network's inputs that the adapter makes are latent frames and height / width."""
    denoiser, i = stir(build()), inputs()
    B = len(i.time)
    direct = denoiser.module(
        i.latent, i.time, i.text[:, None], mask=i.text_mask, x_mask=i.frame_mask, fps=i.fps, height=i.height,
        width=i.width, num_frames=torch.full((B,), 3.0), ar=torch.full((B,), 0.8),
    )  # fmt: skip
    assert torch.equal(denoiser.predict(i), direct)
    for change in ({"fps": i.fps / 2}, {"width": i.width * 2}, {"height": i.height * 2}):
        assert not torch.allclose(denoiser.predict(dataclasses.replace(i, **change)), direct)


@torch.no_grad()
def test_a_fresh_model_treats_frames_as_pictures():
    """Without training, a frame's output does not depend on the other frames."""
    denoiser, i = build(), inputs(B=1)
    other = i.latent.clone()
    other[:, :, 1:] = 0
    changed = denoiser.predict(dataclasses.replace(i, latent=other))
    assert torch.equal(denoiser.predict(i)[:, :, 0], changed[:, :, 0])


def test_dtypes_fit_at_every_shape_and_bfloat16_trains():
    """The audit passes without numbers, and a step in bfloat16 gives every parameter a gradient."""
    denoiser = stir(build(compute=torch.bfloat16))
    assert audit.audit(denoiser, [inputs(), inputs(T=1, H=3)]) == 2
    out = DtypeBoundary(denoiser)(inputs())
    assert out.dtype == torch.float32
    out.square().mean().backward()
    assert all(p.grad is not None and p.grad.any() for p in denoiser.module.parameters())


def test_sharding_names_blocks_and_lora_the_layers_of_attention():
    """Units are the blocks in order; adapted layers are those of its three attentions."""
    denoiser = build()
    assert list(denoiser.sharding().blocks) == list(denoiser.module.blocks)
    assert len(denoiser.lora_targets()) == 2 * (2 + 2 + 3)
    assert "blocks.1.attn_temp.proj" in denoiser.lora_targets()


def test_a_width_that_three_sizes_cannot_share_is_refused():
    """Height, width and aspect ratio take a third of the width each."""
    with refused("sizes-do-not-divide", "model.hidden_size"):
        build(ModelConfig(name="stdit2-tiny", hidden_size=32, num_heads=2))
