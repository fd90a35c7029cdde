"""`reelworks check` says what a recipe declares and takes, and names what does not fit together."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_families
import tiny_recipe
import torch
import transformers
from planted_attention import Arguments, Results, exact, planted
from refused import refused
from torch import nn
from typer.testing import CliRunner, Result

from reelworks.commands.main import app
from reelworks.core import gpus, machine
from reelworks.models import factory
from reelworks.models.api import Denoiser
from reelworks.training.assembly import build
from reelworks.training.memory import dry_run, estimate, memory, recomputation
from reelworks.training.memory.measurements import bucket_table
from reelworks.training.preflight import check
from reelworks.training.recipe import recipe_file
from reelworks.training.step.state import TrainState

RECIPE = tiny_recipe.least(
    bucket=[
        {"resolution": "32px", "num_frames": [1, 4], "batch_size": [4, 2]},
        {"resolution": "64px", "num_frames": 1, "batch_size": 2},
    ],
    buckets={"aspect_ratios": ["3:2", "1:1"]},
    model={"name": "stdit3-tiny", "hidden_size": 32, "depth": 1, "num_heads": 2},
    text_encoder={"dim": 16, "max_length": 6},
)


@functools.cache
def done(*arguments: str) -> Result:
    """Run the verb, once for all tests that change nothing in it."""
    return run(*arguments)


def run(*arguments: str) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.toml"
        path.write_text(recipe_file.dump(recipe_file.parse(RECIPE)), encoding="utf-8")
        return CliRunner().invoke(app, ["check", str(path), *arguments])


@pytest.mark.slow
def test_what_is_printed_fits_into_eighty_signs() -> None:
    """No dtype and no name is cut off."""
    assert done().exit_code == 0
    table = done().output.partition("denoiser: ")[0]
    assert {"bfloat16", "float32", "reduction", "autoencoder", "parameters"} <= set(table.split())
    assert "…" not in table


def test_every_stage_says_what_it_does_and_json_stays_alone() -> None:
    stages = ("loading the model", "loading the autoencoder", "checking dtypes", "forward and backward with")
    assert [stage for stage in stages if stage not in done().stderr] == []
    assert done("--json").stderr == ""


def test_a_sound_recipe_has_no_violation_and_its_figures_are_those_of_training() -> None:
    """Dtypes, casts, shapes and bytes, without a look at the data."""
    told = json.loads(done("--json").output)
    assert (done("--json").exit_code, told["violations"]) == (0, [])
    denoiser, autoencoder, _ = told["components"]
    dtypes = [denoiser[key] for key in ("storage", "compute", "master", "reduction", "output")]
    assert dtypes == ["float32", "bfloat16", "float32", "float32", "float32"]
    assert autoencoder["master"] is None
    casts = {cast["input"]: (cast["from"], cast["to"]) for cast in denoiser["casts"]}
    assert casts["latent"] == ("float32", "bfloat16")
    assert casts["time"] == ("float32", "float32")
    assert casts["frame_mask"] == ("bool", "bool")
    assert [one["bucket"].split()[0] for one in told["rehearsed"]] == ["32px", "64px"]
    assert all(one["activations_bytes"] > 0 for one in told["rehearsed"])
    recipe = recipe_file.parse(RECIPE)
    state = TrainState.start(_denoiser(recipe), recipe.train)
    memory, trained = told["memory"], 4 * sum(p.numel() for p in state.module.parameters())
    assert memory["gradients"] == memory["ema"] == trained
    assert memory["weights"] == trained + sum(value.nbytes for value in state.module.buffers())
    assert 2 * trained <= memory["optimizer"] < 2.01 * trained
    assert memory["total"] == sum(value for name, value in memory.items() if name not in ("total", "host"))


LORA = ("--json", "--set", "model.name=wan-tiny", "--set", "model.hidden_size=none", "--set", "model.depth=none")
LORA += ("--set", "model.num_heads=none", "--set", "lora.rank=2")


@pytest.mark.slow
def test_a_base_of_few_bits_is_counted_as_it_lies() -> None:
    """Half a byte for a number of nf4, and two for one of bfloat16."""
    told = {base: json.loads(run(*LORA, "--set", f"lora.base={base}").output) for base in ("bfloat16", "nf4")}
    assert [one["violations"] for one in told.values()] == [[], []]
    assert [one["components"][0]["base"] for one in told.values()] == ["bfloat16", "nf4"]
    count, same = (one["components"][0]["parameters"] for one in told.values())
    assert count == same
    wide, memory = (one["memory"] for one in told.values())
    codes = (wide["weights"] - memory["weights"]) / 2
    assert 0.5 * codes < memory["quantized base"] < 0.6 * codes


@pytest.mark.slow
def test_what_lies_in_cpu_memory_is_counted_there() -> None:
    """An offloaded network takes two blocks and what is in none; a text encoder in CPU memory takes nothing of the GPU."""
    deep = ("--json", "--set", "model.depth=3", "--set", "lora.rank=2")
    wide = json.loads(run(*deep).output)["memory"]
    offloaded = json.loads(run(*deep, "--set", "parallel.offload=true").output)
    assert offloaded["violations"] == []
    low = offloaded["memory"]
    assert low["host"] == sum(wide[part] for part in ("weights", "gradients", "optimizer", "ema"))
    assert wide["weights"] / 4 < low["weights"] < wide["weights"]
    assert low["total"] == low["weights"] + low["encoders"] + low["activations"] + low["reserve"]
    assert wide["host"] == 0


@pytest.mark.parametrize(("where", "on_gpu"), [("auto", True), ("cpu", False)])
def test_an_average_is_counted_where_it_lies(where: str, on_gpu: bool) -> None:
    module = nn.Linear(10, 10, bias=False)
    state: Any = SimpleNamespace(module=module, ema=dict(module.named_parameters()), blocks=())
    state.optimizer = SimpleNamespace(tensors=dict)
    recipe: Any = SimpleNamespace(keeps_autoencoder=False, keeps_text_encoder=False)
    recipe.train, recipe.parallel = SimpleNamespace(ema_device=where), SimpleNamespace(offload=False)
    encoder: Any = None
    told = check._memory(recipe, state, encoder, rehearsed=None, shards=1)
    assert (told.parts["ema"], told.host) == ((400, 0) if on_gpu else (0, 400))


@pytest.mark.slow
def test_the_place_of_every_part_is_told() -> None:
    """In a column of its own."""
    assert "device" in done().output
    told = json.loads(run("--json", "--set", "text_encoder.device=cpu").output)
    assert told["components"][2]["device"] == "cpu"


def _denoiser(recipe: recipe_file.Recipe) -> Denoiser:
    return factory.build_denoiser(
        recipe.model, autoencoder=recipe.autoencoder, text=recipe.text_encoder, device="cpu", seed=0
    )


@pytest.mark.slow
def test_shards_divide_what_is_sharded() -> None:
    """Weights, gradients, optimizer and average; a replica has all of them. The forecast of a plan says the same."""
    alone = json.loads(done("--json").output)["memory"]
    sharded = json.loads(run("--json", "--world", "4").output)["memory"]
    replicated = json.loads(run("--json", "--world", "4", "--set", "parallel.strategy=replicated").output)["memory"]
    parts = ("gradients", "optimizer", "ema")
    assert [sharded[part] for part in parts] == [alone[part] // 4 for part in parts]
    assert [replicated[part] for part in parts] == [alone[part] for part in parts]
    made, gpu = recipe_file.parse(RECIPE), gpus.of_name("H100")
    measured = estimate.sizes(made, estimate.network(made))
    assert sharded["weights"] - alone["weights"] // 4 == measured.in_use_bytes  # whole ones, while they are in use
    for told, world, strategy in ((alone, 1, "auto"), (sharded, 4, "auto"), (replicated, 4, "replicated")):
        one = recipe_file.parse(RECIPE | {"parallel": {"strategy": strategy}})
        forecast = recomputation.estimate(one, bucket_table(one), recomputation.cards_for(one, world, gpu))
        assert forecast.memory.total == pytest.approx(told["total"], rel=1e-3)


def test_a_violation_is_printed_with_its_remedy_and_ends_in_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that was left in another dtype: module path, both dtypes, what to do; nothing is run for real."""
    build = factory.build_denoiser

    def planted(*arguments, **options):
        denoiser = build(*arguments, **options)
        denoiser.module.spatial_blocks[0].mlp.fc2.half()
        return denoiser

    monkeypatch.setattr(factory, "build_denoiser", planted)
    result = run()
    printed = result.output
    assert result.exit_code == 1
    assert "violation: spatial_blocks.0.mlp.fc2.weight: a parameter is stored as float16, but float32" in printed
    assert "remedy: load and build it as float32" in printed
    assert "2 violations" in printed
    assert "forward and backward" not in printed
    result = run("--json")
    assert result.exit_code == 1
    first = json.loads(result.output)["violations"][0]
    assert (first["module"], first["found"], first["declared"]) == (
        "spatial_blocks.0.mlp.fc2.weight", "float16", "float32",
    )  # fmt: skip


def test_a_violation_that_only_a_real_pass_shows_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what was found without numbers being nothing."""
    build = factory.build_denoiser

    def planted(*arguments, **options):
        denoiser = build(*arguments, **options)
        block = denoiser.module.spatial_blocks[0]
        block.mlp.register_forward_hook(lambda _m, _a, out: out if out.is_meta else out.double())
        return denoiser

    monkeypatch.setattr(factory, "build_denoiser", planted)
    result = run()
    assert result.exit_code == 1
    assert "violation: spatial_blocks.0.mlp: MLP returns float64" in result.output
    assert "1 violation\n" in result.output


def test_the_largest_micro_batch_of_each_resolution_counts() -> None:
    """By tokens of the whole micro-batch, whatever the frames."""
    from reelworks.data.buckets import table
    from reelworks.models.components import geometry
    from reelworks.training.preflight import check as checking

    recipe = recipe_file.parse(RECIPE)
    built = table.build(recipe.bucket, recipe.buckets, geometry(recipe.model, recipe.autoencoder))
    chosen = checking.largest_of_each(built)
    for resolution, bucket in zip(("32px", "64px"), chosen, strict=True):
        same = [b for b in built.buckets if built.entries[b.entry].resolution == resolution]
        assert bucket.tokens * bucket.batch_size == max(b.tokens * b.batch_size for b in same)
    (largest,) = memory.largest(("", bucket) for bucket in built.buckets).values()
    assert largest in chosen


@pytest.mark.slow
def test_an_image_encoder_is_audited_and_counted_as_the_others_are(tmp_path: Path) -> None:
    """It computes in float32 whatever its file holds; its weights are on the model's device; four fit into 80 signs."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(image_size=8, patch_size=4, **sizes))
    vision.bfloat16().save_pretrained(tmp_path / "image_encoder")
    small = {"height": 8, "width": 8}
    transformers.CLIPImageProcessor(size=small, crop_size=small).save_pretrained(tmp_path / "image_processor")
    values = {
        "model": {"name": "wan-i2v-tiny", "image_encoder": str(tmp_path)},
        "autoencoder": {"stride": 4},
        "bucket": [{"resolution": "32px", "num_frames": 5, "batch_size": 1}],
        "buckets": {"aspect_ratios": ["1:1"]},
    }
    path = tmp_path / "recipe.toml"
    path.write_text(recipe_file.dump(recipe_file.parse(RECIPE | values)), encoding="utf-8")
    done = CliRunner().invoke(app, ["check", str(path), "--json"])
    told = json.loads(done.output)
    assert (done.exit_code, told["violations"]) == (0, [])
    *_, image = told["components"]
    assert (image["component"], image["name"], image["storage"]) == ("image encoder", "clip", "float32")
    assert (image["device"], image["parameters"]) == (str(machine.default_device()), vision.num_parameters())
    assert told["memory"]["encoders"] == 4 * vision.num_parameters()  # the others have no weights
    printed = CliRunner().invoke(app, ["check", str(path)]).output.partition("denoiser: ")[0]
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_encoders_in_another_dtype_than_they_declare_stop_a_start(tmp_path: Path) -> None:
    """A text encoder that somebody halved is named by its parameter; as it was loaded it passes."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 80, "d_model": 16, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    transformers.T5EncoderModel(transformers.T5Config(**sizes)).save_pretrained(tmp_path)
    tiny_families.tokenizer().save_pretrained(tmp_path)
    text = {"name": "t5", "weights": str(tmp_path), "dim": 16, "max_length": 6}
    encoder = build.encoder(recipe_file.parse(RECIPE | {"text_encoder": text}), torch.device("cpu"))
    assert not list(dry_run.faults_of_encoders(encoder))
    (network,) = dry_run.networks(encoder.text_encoder)
    network.half()
    with refused(
        "dtype-mismatch", "shared.weight", says="weight: a parameter is stored as float16, but bfloat16 is declared"
    ):
        raise next(dry_run.faults_of_encoders(encoder))


@pytest.mark.slow
def test_a_wrong_kernel_is_a_warning_and_changes_no_estimate() -> None:
    def garbage(given: Arguments) -> Results:
        found = exact(given)
        return found if given.gradient is None else (found[0] * 1e31, *found[1:])

    with planted(garbage):
        told = json.loads(run("--json").output)
    assert told["violations"] == []
    assert {fault["instead"] for fault in told["attention"]["faults"]} == {"math"}
    assert all("takes its place" in line for line in told["warnings"])
    assert told["memory"] == json.loads(done("--json").output)["memory"]
