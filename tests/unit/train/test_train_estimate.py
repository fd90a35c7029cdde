"""What a training takes is told without numbers, and is what it takes with them."""

from __future__ import annotations

import diffusers
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from reelworks.buckets import table
from reelworks.buckets.table import BucketTable
from reelworks.models import published
from reelworks.models.config import geometry
from reelworks.precision.boundary import Boundary
from reelworks.recipe import load
from reelworks.recipe.recipe import Recipe
from reelworks.train import build, estimate, kept, rehearsal, tiers


def recipe(name: str, resolution: str = "256px", **changes) -> tuple[Recipe, BucketTable]:
    values = {
        "version": 1,
        "output": "unused",
        "dataset": [{"path": "not-there"}],
        "bucket": [{"resolution": resolution, "num_frames": 1}],
        "buckets": {"aspect_ratios": ["1:1"], "batch_size": 2},
        "model": {"name": name},
        "lora": {"rank": 4},
        "precision": {"compute": "float32"},
        "train": {"max_steps": 1},
    }
    made = load.parse(values | changes)
    return made, table.build(made.bucket, made.buckets, geometry(made.model, made.autoencoder))


def allocated(run) -> int:
    """Most bytes that torch's allocator gave out at a time while something ran."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    now = most = 0
    events = profiled.profiler.kineto_results.events()
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


@pytest.mark.parametrize("name", ["wan-tiny", "flux-tiny"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_estimates_are_what_a_real_pass_takes(name: str, checkpointing: bool) -> None:
    """Parameters to the last one; activations as the allocator gives them, to 10 %, and no less than what is kept."""
    made, buckets = recipe(name, model={"name": name, "gradient_checkpointing": checkpointing})
    found = estimate.estimate(made, buckets)
    cpu = torch.device("cpu")
    denoiser, encoder = build.denoiser(made, cpu), build.encoder(made, cpu)
    parameters = list(denoiser.module.parameters())
    assert found.trained_parameters == sum(p.numel() for p in parameters if p.requires_grad)
    assert found.parameters == sum(p.numel() for p in parameters if not p.requires_grad)
    assert found.memory.base == 4 * found.parameters
    assert found.memory.optimizer == 2 * found.memory.trained == 8 * found.trained_parameters

    def run() -> None:
        inputs = rehearsal.blank(encoder, buckets.buckets[0], 2, cpu)
        output = Boundary(denoiser)(inputs)
        torch.autograd.backward(output, torch.zeros_like(output))

    run()  # whatever is only made once
    denoiser.module.zero_grad(set_to_none=True)
    assert found.memory.activations == pytest.approx(allocated(run), rel=0.1)
    with kept.counted() as activations:
        Boundary(denoiser)(rehearsal.blank(encoder, buckets.buckets[0], 2, cpu))
    assert found.memory.activations >= activations.bytes


def test_checkpointing_trades_memory_for_a_third_more_arithmetic() -> None:
    """Memory falls; the forward pass, a third of the work under a LoRA's two, is done once more."""
    plain, dear = (
        estimate.estimate(*recipe("stdit3-tiny", model={"name": "stdit3-tiny", "gradient_checkpointing": on}))
        for on in (False, True)
    )
    assert dear.memory.activations < plain.memory.activations / 2
    assert 1.2 < sum(dear.flops.values()) / sum(plain.flops.values()) < 1.5


def test_sizes_of_published_models_are_those_of_their_networks() -> None:
    """A full-size network is counted without a byte of it; encoders have the parameters that their classes have."""
    parts = {
        "autoencoder": {"name": "wan-2.1", "weights": "unused"},
        "text": {"name": "wan", "weights": "unused"},
    }
    made, _ = recipe("wan-2.1-1.3b", **parts)
    held = estimate.held(made)
    assert held.memory.base == 4 * 1_418_996_800
    autoencoder, text = published.AUTOENCODERS["wan-2.1"], published.TEXT_ENCODERS["wan"]
    assert held.memory.encoders == 4 * autoencoder.parameters + 2 * text.parameters
    for name in ("wan-2.1", "qwen-image", "flux2"):
        with torch.device("meta"):
            network = getattr(diffusers, published.AUTOENCODERS[name].network)()
        assert sum(p.numel() for p in network.parameters()) == published.AUTOENCODERS[name].parameters
    assert all(
        one.parameters for one in (*published.AUTOENCODERS.values(), *published.TEXT_ENCODERS.values())
    )


def test_settings_are_added_until_a_recipe_fits_and_no_further() -> None:
    """None where there is room, all where there is none, and what is told to fit does."""
    made, buckets = recipe("flux-tiny", lora=None)
    need = [estimate.estimate(made, buckets).memory.total]
    for tier in tiers.TIERS:
        changed = getattr(made, tier.table).model_copy(update={tier.key: tier.value})
        made = made.model_copy(update={tier.table: changed})
        need.append(estimate.estimate(made, buckets).memory.total)
    start = recipe("flux-tiny", lora=None)[0]
    for count, size in enumerate(need[:2]):
        choice = tiers.choose(start, size)
        assert (choice.fits, choice.tiers, choice.estimate.memory.total) == (True, tiers.TIERS[:count], size)
        assert choice.without == tuple(need[:count])
    choice = tiers.choose(start, 1)
    assert (choice.fits, choice.tiers) == (False, tiers.TIERS)
    assert tiers.choose(start, None).fits is None


def test_a_base_of_few_bits_is_counted_as_it_is_stored() -> None:
    """A base has as many numbers in any storage, and the bytes of that."""
    found = {
        base: estimate.estimate(*recipe("wan-tiny", lora={"rank": 2, "base": base}))
        for base in ("float32", "int8", "nf4")
    }
    assert len({one.parameters for one in found.values()}) == 1
    wide, int8, nf4 = (one.memory.base for one in found.values())
    numbers = (wide - int8) / 3  # in the blocks, but for scales
    assert nf4 == pytest.approx(wide - 3.44 * numbers, rel=0.02)
