"""STDiT3 keeps its promises apart from the golden numbers: masks, captions, dtypes, sharding, bounds."""

import dataclasses

import pytest
import torch
from refused import refused
from torch import distributed
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from reelworks.models import factory
from reelworks.models.api import DenoiserInputs
from reelworks.models.config import AutoencoderConfig, ModelConfig, TextEncoderConfig
from reelworks.models.precision.boundary import DtypeBoundary

TINY = ModelConfig(name="stdit3-tiny", hidden_size=32, depth=1, num_heads=2)
PIXEL = AutoencoderConfig(stride=2)
TEXT = TextEncoderConfig(dim=8, max_length=4)


def build(model=TINY, **kwargs):
    return factory.build_denoiser(
        model, autoencoder=PIXEL, text=TEXT, device=kwargs.pop("device", "cpu"), seed=3, **kwargs
    )


def stir(denoiser):
    """Give weights that start at zero a value, so that every path counts."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in denoiser.module.parameters():
            if not p.any():
                p.normal_(std=0.1, generator=generator)
    return denoiser


def inputs(B=2, T=3, H=4, W=5, **changes):
    g = torch.Generator().manual_seed(7)
    values = DenoiserInputs(
        latent=torch.randn(B, 12, T, H, W, generator=g),
        time=torch.linspace(100.0, 999.0, B),
        text=torch.randn(B, 4, 8, generator=g),
        text_mask=torch.arange(4) < torch.arange(1, B + 1)[:, None],
        pooled=torch.zeros(B, 0),
        guidance=torch.ones(B),
        frame_mask=torch.ones(B, T, dtype=torch.bool),
        fps=torch.full((B,), 24.0),
        height=torch.full((B,), 8.0),
        width=torch.full((B,), 10.0),
        drop_text=torch.zeros(B, dtype=torch.bool),
    )
    return dataclasses.replace(values, **changes)


@pytest.fixture(scope="module")
def denoiser():
    return stir(build())


@torch.no_grad()
def test_a_mask_that_is_all_true_equals_no_mask_bit_for_bit(denoiser):
    i = inputs()
    without = denoiser.module(
        i.latent, i.time, i.text[:, None], mask=i.text_mask, fps=i.fps, height=i.height, width=i.width
    )
    assert torch.equal(denoiser.predict(i), without)


@torch.no_grad()
def test_rows_that_are_all_true_do_not_feel_their_neighbours_mask(denoiser):
    mask = torch.tensor([[True, True, True], [False, True, True]])
    both, none = denoiser.predict(inputs(frame_mask=mask)), denoiser.predict(inputs())
    assert torch.equal(both[0], none[0])
    assert not torch.allclose(both[1], none[1])


@torch.no_grad()
def test_dropped_captions_are_the_empty_caption_and_others_stay(denoiser):
    i = inputs()
    empty = denoiser.module.y_embedder.y_embedding
    swapped = dataclasses.replace(i, text=torch.stack([i.text[0], empty]))
    dropped = dataclasses.replace(i, drop_text=torch.tensor([False, True]))
    assert torch.equal(denoiser.predict(dropped), denoiser.predict(swapped))
    assert not torch.allclose(denoiser.predict(dropped)[1], denoiser.predict(i)[1])


@torch.no_grad()
def test_text_beyond_the_mask_does_not_matter(denoiser):
    i = inputs()
    noisy = torch.where(i.text_mask[..., None], i.text, 100.0)
    torch.testing.assert_close(denoiser.predict(dataclasses.replace(i, text=noisy)), denoiser.predict(i))


def test_nothing_in_it_is_random_in_training_mode(denoiser):
    assert denoiser.module.training
    assert torch.equal(denoiser.predict(inputs()), denoiser.predict(inputs()))


def test_captions_longer_than_the_model_knows_are_refused(denoiser):
    long = inputs(text=torch.zeros(2, 5, 8), text_mask=torch.ones(2, 5, dtype=torch.bool))
    with refused("caption-too-long", "text_encoder.max_length", says="5 tokens, the model takes 4"):
        denoiser.predict(long)


def test_captions_may_be_shorter(denoiser):
    i = inputs()
    short = dataclasses.replace(i, text=i.text[:, :2], text_mask=i.text_mask[:, :2])
    cut = dataclasses.replace(i, text_mask=i.text_mask & (torch.arange(4) < 2))
    torch.testing.assert_close(denoiser.predict(short), denoiser.predict(cut))


def test_sharding_names_blocks_in_order_of_use():
    denoiser = build(TINY.model_copy(update={"depth": 2}))
    called, names = [], {module: name for name, module in denoiser.module.named_modules()}
    for block in denoiser.sharding().blocks:
        block.register_forward_hook(lambda module, *_: called.append(names[module]))
    denoiser.predict(inputs())
    assert called == [names[block] for block in denoiser.sharding().blocks]
    assert called == ["spatial_blocks.0", "temporal_blocks.0", "spatial_blocks.1", "temporal_blocks.1"]


def test_lora_targets_are_the_linear_layers_of_attention(denoiser):
    modules = dict(denoiser.module.named_modules())
    assert all(isinstance(modules[name], torch.nn.Linear) for name in denoiser.lora_targets())
    assert len(denoiser.lora_targets()) == 2 * 5


def test_casting_the_module_leaves_rotary_frequencies_exact(denoiser):
    rope = build().module.to(torch.bfloat16).rope
    assert torch.equal(rope.freqs, denoiser.module.rope.freqs)
    assert rope.to("meta").freqs.is_meta


def test_it_runs_on_the_meta_device():
    denoiser = build(device="meta")
    i = inputs()
    assert denoiser.predict(i.each(lambda tensor: tensor.to("meta"))).shape == i.latent.shape


@pytest.fixture
def one_rank(tmp_path):
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("checkpointing", [False, True])
def test_sharded_in_bfloat16_it_trains_and_keeps_its_key_names(checkpointing):
    plain = stir(build(compute=torch.bfloat16))
    want = DtypeBoundary(plain)(inputs())
    want.square().mean().backward()
    sharded = stir(build(TINY.model_copy(update={"gradient_checkpointing": checkpointing}), compute=torch.bfloat16))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    mesh = distributed.init_device_mesh("cpu", (1,))
    for block in (*sharded.sharding().units, sharded.module):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    out = DtypeBoundary(sharded)(inputs())
    out.square().mean().backward()
    assert (out - want).abs().max() < 0.05 * want.abs().max()
    assert list(sharded.module.state_dict()) == list(plain.module.state_dict())
    for own, other in zip(sharded.module.parameters(), plain.module.parameters(), strict=True):
        grad = own.grad.full_tensor()
        assert grad.dtype == torch.float32
        assert (grad - other.grad).norm() <= 0.1 * other.grad.norm() + 1e-6
