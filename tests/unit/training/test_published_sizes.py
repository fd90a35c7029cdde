"""Sizes of published networks that are kept beside their families are those of the networks, built and run."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_recipe

from reelworks.core import gpus
from reelworks.models import registry
from reelworks.models.components import geometry
from reelworks.models.config import AutoencoderConfig, ModelConfig
from reelworks.training.memory import estimate, memory, published_sizes, recomputation
from reelworks.training.memory.measurements import Measurements, bucket_table
from reelworks.training.memory.memory import NetworkSizes, Pass
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe


def recipe(name: str, **changes: object) -> Recipe:
    """A LoRA on a model, in three pictures, or clips where it has sound, of a size that is not measured."""
    known, release = registry.PRESETS[name], registry.release_of(name)
    rule = geometry(ModelConfig(name=name), AutoencoderConfig(name=known.parts.autoencoder, weights="unused"))
    frames = 1 if known.sound is None else rule.nearest_frames(release.num_frames * 3 // 4)
    values: dict[str, object] = tiny_recipe.least(
        bucket=[{"resolution": f"{release.side * 3 // 4}px", "num_frames": frames}],
        buckets={"aspect_ratios": ["1:1"], "batch_size": 3},
        model={"name": name},
        objective={"name": release.objective},
        lora={},
    )
    if known.release is not None:
        values["autoencoder"] = {"name": known.parts.autoencoder, "weights": "unused"}
        values["text_encoder"] = {"name": known.parts.text, "weights": "unused"}
    if known.sound is not None:
        values["data"] = {"fps": "model"}
        values["sound"] = {} if known.release is None else {"name": known.sound, "weights": "unused"}
    return recipe_file.parse(values | changes)


def test_sizes_that_are_kept_are_of_networks_as_they_are() -> None:
    """Whoever adds or changes a preset runs `scripts/measure_networks.py`: nobody waits for what depends on it alone."""
    kept = {name for family in registry.families() for name in published_sizes.read(family.network.rpartition(".")[0])}
    assert kept == registry.PRESETS.keys()
    assert [name for name in sorted(kept) if published_sizes.of_preset(name) is None] == []


@pytest.mark.parametrize(
    ("name", "base", "checkpointing"),
    [
        # Deep networks take seconds to build and run, and import all of diffusers.
        pytest.param("ltx-2-sound-tiny", None, True, marks=pytest.mark.slow),
        pytest.param("wan-2.1-1.3b", None, False, marks=pytest.mark.slow),
        pytest.param("wan-2.1-1.3b", "nf4", True, marks=pytest.mark.slow),
        pytest.param("flux-dev", "float8", True, marks=pytest.mark.slow),
        pytest.param("wan-2.1-1.3b", None, "selective", marks=pytest.mark.slow),
        pytest.param("sdxl", None, True, marks=pytest.mark.slow),
        pytest.param("z-image", "int8", False, marks=pytest.mark.slow),
        pytest.param("ltx-2-sound", None, True, marks=pytest.mark.slow),
    ],
)
def test_sizes_are_those_of_the_network(name: str, base: str | None, checkpointing: bool | str) -> None:
    """Weights to the last byte, arithmetic to the fourth digit, and all memory to what is promised of estimates."""
    lora = {} if base is None else {"base": base}
    made = recipe(name, lora=lora, model={"name": name, "gradient_checkpointing": checkpointing})
    known, network = published_sizes.find(made), estimate.network(made)
    assert known is not None
    sizes = estimate.sizes(made, network)
    if base is not None:  # is never offloaded
        sizes = sizes._replace(in_use_bytes=known.in_use_bytes)
    assert known.network(made) == sizes
    (bucket,) = bucket_table(made).buckets
    told, real = known.one_pass(made, bucket), estimate.one_pass(made, network, bucket)
    assert told.flops == pytest.approx(real.flops, rel=1e-4)
    # One factor is that of all that is computed again, and the widening of a base of few bits is not counted.
    for own, measured, near in zip(told.work, real.work, (0.06, 0.15, 0.25), strict=True):
        assert own == pytest.approx(measured, rel=near)
    assert 0.98 * total(made, sizes, real) <= total(made, sizes, told) <= 1.12 * total(made, sizes, real)


def total(made: Recipe, sizes: NetworkSizes, one: Pass) -> int:
    """Return all memory of a training with a pass."""
    recomputed = made.model.gradient_checkpointing
    return memory.with_activations(made, memory.without_activations(made, sizes), one.peak_bytes, recomputed).total


@pytest.mark.parametrize(
    "changes",
    [
        {"lora": {"alpha": 8}},
        {"lora": {"base": "float32"}, "precision": {"compute": "float32"}},
        {"precision": {"compute": "float32"}},
        {"train": {"max_steps": 1, "optimizer": "prodigy"}},
        {"train": {"max_steps": 1, "compile": True}},
        {"train": {"max_steps": 1, "compile": True, "compile_backend": "aot_eager"}},
        {"text_encoder": {"name": "hashed"}},
        {"text_encoder": {"name": "wan", "weights": "unused", "max_length": 64}},
        {"lora": None},
    ],
)
def test_a_network_that_is_trained_in_another_way_is_measured(changes: dict[str, object]) -> None:
    assert published_sizes.find(recipe("wan-2.1-1.3b", **changes)) is None


def test_ranks_that_share_clips_hold_no_more_than_their_share() -> None:
    """The operations are those of whole clips."""
    made = recipe("wan-2.1-1.3b", model={"name": "wan-2.1-1.3b", "gradient_checkpointing": "auto"})
    known, buckets = published_sizes.find(made), bucket_table(made)
    assert known is not None
    rule = geometry(made.model, made.autoencoder)
    for way in recomputation.LADDER:
        whole, shared = (replace(buckets.shared_by(n).buckets[0], recomputation=way) for n in (1, 2))
        alone, told = known.one_pass(made, whole), known.one_pass(made, shared)
        assert told.peak_bytes == known.one_pass(made, memory.share(shared, rule)).peak_bytes < 0.7 * alone.peak_bytes
        assert told[1:] == alone[1:]


@pytest.mark.slow
@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize(
    "train",
    [
        {},
        {"gradient_accumulation_steps": 4},
        {"micro_batches_per_step": 3},
        {"compile": True},
        {"compile": True, "compile_backend": "aot_eager"},
    ],
)
def test_whatever_a_pass_is_measured_by_is_told_alike(train: dict[str, object], degree: int) -> None:
    """For all that is recomputed, within 3 % of all memory below and 12 % above, and 12 % of the time."""
    name, search = "wan-2.1-1.3b", Measurements()
    made = recipe(name, model={"name": name, "gradient_checkpointing": "auto"}, train={"max_steps": 1} | train)
    bucket, network = bucket_table(made).shared_by(degree).buckets[0], estimate.network(made)
    fixed = memory.without_activations(made, search.sizes(made))
    for way in recomputation.LADDER:
        own = replace(bucket, recomputation=way)
        both = search.one_pass(made, own), estimate.one_pass(made, network, own)
        told, real = (memory.with_activations(made, fixed, one.peak_bytes, way).total for one in both)
        assert 0.97 * real <= told <= 1.12 * real
        told, real = (one.work.seconds(gpus.USUAL, compiled=made.train.compile) for one in both)
        assert told == pytest.approx(real, rel=0.12)


def test_sizes_of_a_preset_that_changed_since_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    known = registry.PRESETS["wan-2.1-1.3b"]
    assert published_sizes.of_preset("wan-2.1-1.3b") is not None
    smaller = replace(known, config=known.config.model_copy(update={"num_layers": 2}))
    monkeypatch.setitem(registry.PRESETS, "wan-2.1-1.3b", smaller)
    assert published_sizes.of_preset("wan-2.1-1.3b") is None


@pytest.mark.slow
def test_a_recipe_for_any_model_needs_no_library_of_networks(tmp_path: Path) -> None:
    """Their imports take many seconds; people wait for the estimate."""
    program = (
        "import sys; from reelworks.models import registry\n"
        "from reelworks.quickstart.quickstart import lora\n"
        "from reelworks.quickstart.request import NewLoraRequest\n"
        "for name, preset in registry.PRESETS.items():\n"
        "    if preset.release is None or preset.release.weights is not None:\n"
        "        given = dict.fromkeys(preset.config.conditioning.companions.needs, 'given')\n"
        "        lora(NewLoraRequest(model=name, vram_gb=160, output='made.toml', force=True, **given))\n"
        "        loaded = {'torch', 'diffusers', 'transformers', 'peft'} & sys.modules.keys()\n"
        "        assert not loaded, (name, loaded)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "checkpointing"), [(4, True), (64, True), (64, False)])
def test_sizes_of_another_rank_are_those_of_the_network_and_never_less_memory(rank: int, checkpointing: bool) -> None:
    """Memory of a pass is told with what a higher rank takes at most."""
    made = recipe(
        "sd3-medium", lora={"rank": rank}, model={"name": "sd3-medium", "gradient_checkpointing": checkpointing}
    )
    known, network = published_sizes.find(made), estimate.network(made)
    assert known is not None
    sizes = estimate.sizes(made, network)
    told = known.network(made)
    assert told._replace(in_use_bytes=0) == sizes._replace(in_use_bytes=0)
    assert 0.99 * sizes.in_use_bytes <= told.in_use_bytes <= 1.3 * sizes.in_use_bytes
    (bucket,) = bucket_table(made).buckets
    real = estimate.one_pass(made, network, bucket)
    needed = total(made, sizes, real)
    assert 0.98 * needed <= total(made, sizes, known.one_pass(made, bucket)) <= 1.12 * needed
