"""What a training takes is told without numbers, and is what it takes with them."""

from __future__ import annotations

from dataclasses import replace

import diffusers
import pytest
import tiny_recipe
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from reelworks.core.shape import Geometry, Shape
from reelworks.data.buckets import table
from reelworks.data.buckets.table import Bucket, BucketTable
from reelworks.models import registry
from reelworks.models.api import Denoiser, DenoiserInputs
from reelworks.models.components import geometry
from reelworks.models.family import IMAGE_ENCODERS
from reelworks.models.objectives import objectives
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.testing import contract
from reelworks.training.assembly import build
from reelworks.training.memory import dry_run, estimate, measurements, memory, memory_presets, meter
from reelworks.training.memory.memory import Memory, Pass
from reelworks.training.preflight import check
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe


def resize(monkeypatch: pytest.MonkeyPatch, name: str, **sizes: int) -> None:
    """Let a preset have other sizes."""
    preset = registry.PRESETS[name]
    resized = replace(preset, config=preset.config.model_copy(update=sizes))
    monkeypatch.setitem(registry.PRESETS, name, resized)


def recipe(name: str, resolution: str = "256px", **changes) -> tuple[Recipe, BucketTable]:
    values = tiny_recipe.least(
        bucket=[{"resolution": resolution, "num_frames": 1}],
        buckets={"aspect_ratios": ["1:1"], "batch_size": 2},
        model={"name": name},
        lora={"rank": 4},
        precision={"compute": "float32"},
    )
    made = recipe_file.parse(values | changes)
    return made, table.build(made.bucket, made.buckets, geometry(made.model, made.autoencoder))


@pytest.fixture
def without_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute without oneDNN, whose convolutions take memory by the number of threads, as no GPU does."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


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


def one_step(denoiser: Denoiser, clean: DenoiserInputs) -> None:
    """Compute the loss of a micro-batch and its gradients."""
    noise = torch.zeros_like(clean.latent)
    torch.autograd.backward(contract.loss(denoiser, objectives.from_config(ObjectiveConfig()), clean, noise))


@pytest.mark.usefixtures("without_scratch")
@pytest.mark.parametrize("name", ["wan-tiny", "flux-tiny"])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.quick_cases(1)
def test_estimates_are_what_a_real_pass_takes(name: str, checkpointing: bool) -> None:
    """Parameters to the last one; activations as the allocator gives them, to 5 %, and no less than what is kept."""
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
        one_step(denoiser, dry_run.blank(encoder, buckets.buckets[0], 2, cpu))

    run()  # whatever is only made once
    denoiser.module.zero_grad(set_to_none=True)
    assert found.memory.activations == pytest.approx(allocated(run), rel=0.05)
    with contract.counted() as activations:
        DtypeBoundary(denoiser)(dry_run.blank(encoder, buckets.buckets[0], 2, cpu))
    assert found.memory.activations >= activations.bytes


@pytest.mark.parametrize(
    "name",
    ["wan-tiny", *(pytest.param(n, marks=pytest.mark.slow) for n in ("hunyuan-video-1.5-tiny", "qwen-image-tiny"))],
)
@pytest.mark.slow
def test_ranks_that_share_clips_take_the_memory_of_their_share(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Memory is that of a clip with the share's tokens, which `check` runs; operations are those of whole clips."""
    rehearse, run = dry_run.rehearse, list[Bucket]()
    monkeypatch.setattr(dry_run, "rehearse", lambda *args, **named: run.append(args[3]) or rehearse(*args, **named))
    made, buckets = recipe(name, parallel={"sequence_degree": 2})
    whole, network = buckets.buckets[0], estimate.network(made)
    alone = estimate.estimate(made, buckets)
    for degree in (1, 2, 4):
        shared = buckets.shared_by(degree)
        found = estimate.estimate(made, shared)
        stripe = replace(whole, shape=replace(whole.shape, height=whole.shape.height // degree))
        assert found.memory.activations == estimate.one_pass(made, network, stripe).peak_bytes
        assert found.memory.total >= found.memory.base + found.memory.trained + found.memory.optimizer
        assert found.flops == alone.flops
        assert found == alone or degree > 1
    shared = buckets.shared_by(2)
    shares = [memory.share(bucket, geometry(made.model, made.autoencoder)) for bucket in check.largest_of_each(shared)]
    activations = estimate.estimate(made, shared).memory.activations
    assert check.check_recipe(made, shared, 4).memory.parts["activations"] == activations
    assert run == shares


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 9), st.integers(1, 8))
def test_a_share_has_no_fewer_tokens_than_a_rank(rows: int, columns: int, frames: int, degree: int) -> None:
    sizes = Geometry(stride=(1, 8, 8), patch=(1, 2, 2))
    shape = Shape(frames, 16 * rows, 16 * columns)
    bucket = Bucket(0, "", shape, "", 1, sizes.tokens(shape), degree)
    tokens = memory.share(bucket, sizes).tokens
    assert bucket.tokens / degree <= tokens <= bucket.tokens
    if not rows % degree or not columns % degree:
        assert tokens == bucket.tokens // degree


@pytest.mark.usefixtures("without_scratch")
@pytest.mark.parametrize("name", ["wan-tiny", "hunyuan-video-1.5-tiny"])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.slow
def test_figures_of_check_are_what_a_real_pass_takes(name: str, checkpointing: bool) -> None:
    """Where all weights are trained, under bfloat16: activations and gradients are what the allocator gives.

    A GPU widens norms to float32, and has no matrix of attention weights, so that the figures are near.
    """
    made, buckets = recipe(
        name,
        resolution="128px",
        model={"name": name, "gradient_checkpointing": checkpointing},
        lora=None,
        precision={"compute": "bfloat16"},
    )
    told = check.check_recipe(made, buckets).memory.parts
    cpu = torch.device("cpu")
    denoiser, encoder = build.denoiser(made, cpu), build.encoder(made, cpu)

    def run() -> None:
        one_step(denoiser, dry_run.blank(encoder, buckets.buckets[0], 2, cpu))

    run()  # whatever is only made once
    denoiser.module.zero_grad(set_to_none=True)
    real = allocated(run)
    assert 0.98 * real <= told["activations"] + told["gradients"] <= 1.12 * real
    assert told["gradients"] == sum(p.grad.nbytes for p in denoiser.module.parameters() if p.requires_grad)


@pytest.mark.slow
def test_checkpointing_trades_memory_for_a_third_more_arithmetic() -> None:
    """Memory falls; the forward pass, a third of the work under a LoRA's two, is done once more."""
    plain, dear = (
        estimate.estimate(
            *recipe("stdit3-tiny", model={"name": "stdit3-tiny", "depth": 6, "gradient_checkpointing": on})
        )
        for on in (False, True)
    )
    assert dear.memory.activations < plain.memory.activations / 2
    assert 1.2 < sum(dear.flops.values()) / sum(plain.flops.values()) < 1.5


@pytest.mark.slow
def test_sizes_of_published_models_are_those_of_their_networks() -> None:
    """A full-size network is counted without a byte of it; encoders have the parameters that their classes have."""
    parts = {
        "autoencoder": {"name": "wan-2.1", "weights": "unused"},
        "text_encoder": {"name": "wan", "weights": "unused"},
    }
    made, _ = recipe("wan-2.1-1.3b", **parts)
    held = memory.without_activations(made, estimate.sizes(made, estimate.network(made)))
    assert held.base == 4 * 1_418_996_800
    autoencoder, text = registry.AUTOENCODERS["wan-2.1"], registry.TEXT_ENCODERS["wan"]
    assert (held.encoders, held.host) == (4 * autoencoder.parameters + 2 * text.parameters, 0)
    low = made.model_copy(update={"text_encoder": made.text_encoder.model_copy(update={"device": "cpu"})})
    held = memory.without_activations(low, estimate.sizes(low, estimate.network(made)))
    assert (held.encoders, held.host) == (4 * autoencoder.parameters, 2 * text.parameters)
    for name in ("wan-2.1", "qwen-image", "flux2"):
        with torch.device("meta"):
            network = getattr(diffusers, registry.AUTOENCODERS[name].network)()
        assert sum(p.numel() for p in network.parameters()) == registry.AUTOENCODERS[name].parameters
    assert all(one.parameters for one in (*registry.AUTOENCODERS.values(), *registry.TEXT_ENCODERS.values()))


def test_image_encoders_are_those_that_transformers_builds() -> None:
    """Numbers and tokens of the published vision towers, counted on the meta device."""
    of_clip = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "image_size": 224}
    of_siglip = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "image_size": 384}
    with torch.device("meta"):
        networks = {
            "clip": transformers.CLIPVisionModel(
                transformers.CLIPVisionConfig(**of_clip, patch_size=14, num_attention_heads=16)
            ),
            "siglip": transformers.SiglipVisionModel(
                transformers.SiglipVisionConfig(**of_siglip, patch_size=14, num_attention_heads=16)
            ),
        }
    for name, network in networks.items():
        tokens = network.embeddings.position_embedding.num_embeddings
        parameters = sum(p.numel() for p in network.parameters())
        assert IMAGE_ENCODERS[name] == (tokens, parameters)


@pytest.mark.slow
def test_what_i2v_models_are_told_by_is_counted(monkeypatch) -> None:
    """The encoder's weights lie on the GPU, in float32, wherever texts are embedded; its tokens pass through the network."""
    models = {
        name: {"name": name, "image_encoder": None if name == "wan-2.1-14b" else "unused"}
        for name in ("wan-2.1-14b", "wan-2.1-i2v-14b")
    }
    for name in models:
        resize(monkeypatch, name, num_layers=4)
    plain, told = (
        estimate.estimate(
            *recipe(name, model=model, text_encoder={"name": "wan", "weights": "unused", "device": "cpu"})
        )
        for name, model in models.items()
    )
    assert told.memory.encoders - plain.memory.encoders == 4 * IMAGE_ENCODERS["clip"].parameters
    assert told.memory.host == plain.memory.host
    # Keys and values of 257 tokens, of two clips, in 4 blocks.
    assert told.memory.activations - plain.memory.activations > 2 * 257 * 2 * 5120 * 4 * 2


def test_companions_that_a_network_is_shown_are_counted() -> None:
    """A source doubles the tokens of the picture, and what they take in the network."""
    alone, edited = (
        estimate.estimate(*recipe("flux-kontext-tiny", resolution="512px", dataset=[{"path": "not-there"} | more]))
        for more in ({}, {"source": "not-there-either"})
    )
    assert edited.memory.activations > 1.2 * alone.memory.activations


def test_a_setting_that_a_recipe_has_or_has_no_place_for_saves_nothing() -> None:
    """Of hashed words and lossless pixels nothing lies in memory."""
    whole = {"lora": None, "buckets": {"aspect_ratios": ["1:1"], "batch_size": 1}}
    offloaded = {"parallel": {"offload": True}}
    saving, search = [], measurements.Measurements()
    for changes in ({}, whole, whole | offloaded):
        made, _ = recipe("wan-tiny", **changes)
        saving.append([tier.to_text() for tier in memory_presets.TIERS if memory_presets._saves(made, tier, search)])
    one, few = "buckets.batch_size = 1", ['lora.base = "int8"', 'lora.base = "nf4"']
    assert saving == [[one, *few, "parallel.offload = true"], ["parallel.offload = true"], []]


@pytest.mark.slow
def test_settings_are_added_until_a_recipe_fits_and_no_further(monkeypatch) -> None:
    """None where there is room, all that save where there is none, and what is told to fit does."""
    resize(monkeypatch, "wan-tiny", num_layers=3)
    start, _ = recipe("wan-tiny", model={"name": "wan-tiny", "gradient_checkpointing": "auto"})
    roomy = memory_presets.choose(start, 10**12)
    assert (roomy.fits, roomy.tiers, roomy.recipe) == (True, (), start)
    tight = memory_presets.choose(start, 1)
    # Hashed words and lossless pixels take no memory; blocks of few bits are not fetched.
    first = ["buckets.batch_size = 1"]
    assert [tier.to_text() for tier in tight.tiers] == [*first, "parallel.offload = true"]
    assert (roomy.recomputation, tight.recomputation) == ({"256px ×1": False}, {"256px ×1": True})
    assert (tight.fits, tight.recipe.lora.base) == (False, None)
    network = estimate.network(start)
    block, whole = (estimate.size(list(m.parameters())) for m in (network.sharding().blocks[0], network.module))
    assert tight.estimate.memory.base == whole - block  # two of three lie on the GPU at a time
    few = start.model_copy(update={"lora": start.lora.model_copy(update={"base": "nf4"})})
    few = few.model_copy(update={"buckets": few.buckets.model_copy(update={"batch_size": 1})})
    size = estimate.estimate(few, measurements.bucket_table(few)).memory.total
    choice = memory_presets.choose(start, size)
    assert choice.recomputation == {"256px ×1": True}
    assert [tier.to_text() for tier in choice.tiers] == [*first, 'lora.base = "nf4"']
    assert (choice.fits, choice.recipe, choice.estimate.memory.total) == (True, few, size)
    assert tight.estimate.memory.total < size < min(choice.without)
    assert memory_presets.choose(start, None).fits is None


@pytest.mark.parametrize(
    ("name", "depth", "checkpointing"),
    [
        pytest.param("flux-tiny", {"num_layers": 5, "num_single_layers": 6}, True, marks=pytest.mark.slow),
        ("qwen-image-tiny", {"num_layers": 6}, False),
        pytest.param("stdit3-tiny", {"depth": 5}, True, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_few_blocks_tell_what_all_do(name: str, depth: dict[str, int], checkpointing: bool, monkeypatch) -> None:
    """To the last byte and multiplication: lists of other lengths, side by side, and with a last block that differs."""
    monkeypatch.setattr(meter, "_LONG", 4)
    resize(monkeypatch, name, **depth)
    made, buckets = recipe(name, model={"name": name, "gradient_checkpointing": checkpointing})
    denoiser, sizes = estimate.network(made), build.encoder(made, torch.device("cpu"))

    def whole() -> Pass:
        return meter.measure(denoiser, dry_run.blank(sizes, buckets.buckets[0], 2, torch.device("meta")))

    whole()  # whatever is only made once
    inputs = dry_run.blank(sizes, buckets.buckets[0], 2, torch.device("meta"))
    runs = []
    monkeypatch.setattr(meter, "_peaks", lambda *a, real=meter._peaks: runs.append(1) or real(*a))
    found = meter.measure_few_blocks(denoiser, inputs)
    assert len(runs) > 1
    monkeypatch.undo()
    assert found == whole()


@pytest.mark.slow
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


def test_weights_in_cpu_memory_cost_the_time_in_which_they_are_moved() -> None:
    """All weights twice and gradients once, over the bus; nothing where they stay on the GPU."""
    stays, moves = (estimate.estimate(*recipe("wan-tiny", parallel={"offload": on})) for on in (False, True))
    assert (stays.moved_bytes, stays.moving_seconds) == (0, 0)
    assert moves.moved_bytes == 4 * (2 * moves.parameters + 3 * moves.trained_parameters)
    assert moves.moved_bytes < 2 * moves.memory.host
    (bucket,) = moves.flops
    more = moves.seconds(bucket) - stays.seconds(bucket)
    assert more == pytest.approx(moves.moved_bytes / 25e9)


@pytest.mark.slow
def test_stored_latents_leave_no_encoder_in_memory() -> None:
    """Previews keep the autoencoder; besides, what encoding needs beyond the memory of training counts."""
    values = tiny_recipe.least(
        bucket=[{"resolution": "64px", "num_frames": 1}],
        model={"name": "wan-tiny"},
        autoencoder={"name": "wan-2.1", "weights": "-"},
        text_encoder={"name": "wan", "weights": "-"},
        lora={"rank": 4},
    )

    def parsed(**changes: object) -> Recipe:
        return recipe_file.parse({**values, **changes})

    def needed(**changes: object) -> Memory:
        recipe = parsed(**changes)
        return estimate.estimate(recipe, measurements.bucket_table(recipe)).memory

    live, stored = needed(), needed(encode={"store": True})
    encoders = live.encoders
    assert stored.total == max(live.total - encoders, encoders + stored.reserve)
    with_previews = needed(encode={"store": True}, samples={"prompts": ["a"], "every_steps": 1})
    autoencoder = needed(text_encoder={"name": "hashed"}).encoders
    assert 0 < autoencoder < encoders
    assert with_previews.total == max(live.total - encoders + autoencoder, encoders + stored.reserve)
    # Encoding takes more than training: only what encodes can help.
    fitted = memory_presets.choose(parsed(encode={"store": True}), encoders)
    assert fitted.fits
    assert fitted.recipe.text_encoder.device == "cpu"
    assert "parallel.offload = true" not in [tier.to_text() for tier in fitted.tiers]


def test_what_is_computed_again_is_as_narrow_as_it_was() -> None:
    """Under bfloat16: backward passes have the autocast of forward passes."""
    passes, meta = [], torch.device("meta")
    for on in (False, True):
        made, buckets = recipe(
            "stdit3-tiny",
            "128px",
            model={"name": "stdit3-tiny", "depth": 2, "gradient_checkpointing": on},
            precision={"compute": "bfloat16"},
        )
        encoder = build.encoder(made, torch.device("cpu"))
        inputs = dry_run.blank(encoder, buckets.buckets[0], 1, meta)
        passes.append(meter.measure(build.denoiser(made, meta), inputs))
    plain, dear = passes
    assert dear.peak_bytes < plain.peak_bytes
    assert 1.2 < dear.flops / plain.flops < 1.5
