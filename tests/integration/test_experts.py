"""Wan 2.2's two experts in whole trainings: steps share them, kills cost nothing, files and clips are the pipeline's."""

from __future__ import annotations

import children
import diffusers
import killing
import numpy as np
import pytest
import tiny_families
import torch
from test_kill_and_resume import losses

from reelworks.core.shape import Shape
from reelworks.data.checkpoint import load
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.inference.generate.load_run import LoadedModel
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.training.assembly import build
from reelworks.training.loop import replay
from reelworks.training.recipe import recipe_file
from reelworks.training.step.state import TrainState

PROMPT = "two cats sit on a wall in the sun"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    return tiny_families.write("wan-2.2-tiny", tmp_path_factory.mktemp("family"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def experts(tiny_in, family, runs):
    """Make a recipe of a LoRA on the family."""

    def make(output, which="both"):
        values = tiny_in(runs, output, lora={"rank": 2}, exports={"weights": "ema", "dtype": "float32"})
        values |= tiny_families.recipe_of("wan-2.2-tiny", family)
        values["model"] |= {"experts": which}
        # Large enough that some third of the steps has much noise.
        values["objective"] = {"timestep_shift": 6.0}
        values["validation"] |= {"timesteps": [200.0, 950.0]}  # in one batch
        values["train"] |= {"max_steps": 6, "ema_decay": 0.5, "learning_rate": 0.05}
        values["checkpoints"] = {"every_steps": 1, "keep_last": 6}
        values["train"] |= {"micro_batches_per_step": 2, "same_bucket_run": 2}
        return values

    return make


@pytest.fixture(scope="module")
def calm(experts, runs):
    """A run of both that went to its end."""
    assert children.train(experts("calm")) == [0]
    return runs / "calm"


def loaded(run, place):
    recipe = recipe_file.load(run / "recipe.toml")
    state = TrainState.start(build.denoiser(recipe, CPU), recipe.train).state_dict()
    load.load(CheckpointFolder(run / "checkpoints").list()[place].path, state)
    return state


def state_of(run, place=-1):
    state = loaded(run, place)
    moments = {f"{n}.{k}": v for n, one in state["optimizer"]["state"].items() for k, v in one.items()}
    return {**{f"model.{n}": v for n, v in state["model"].items()}, **state["ema"], **moments}


def sides(run):
    """The steps of each side, as a replay tells them: True for the expert for much noise."""
    found = []
    for step in range(1, 7):
        told = replay.replay_step(RunFolder(run), step)
        times = [clip.timestep for batch in told.summary().micro_batches for clip in batch.clips]
        assert len({time >= 875 for time in times}) == 1
        found.append(times[0] >= 875)
    return found


@pytest.mark.slow
def test_each_step_trains_one_and_a_kill_costs_nothing(experts, runs, calm):
    """All clips of a step lie on one side; each expert's optimizer counts its steps; a resume is bit-equal."""
    fault = ("after the average moved", 3)
    assert children.train(experts("killed"), fault=fault) == [killing.SELF_KILLED]
    assert children.train(experts("killed")) == [0]
    one, other = state_of(calm), state_of(runs / "killed")
    assert losses(calm) == losses(runs / "killed")
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    high = sides(calm)
    assert 0 < sum(high) < 6
    for done in range(1, 7):
        state = state_of(calm, done - 1)
        for part, steps in (("transformer", sum(high[:done])), ("transformer_2", done - sum(high[:done]))):
            counted = (n for n in state if n.startswith(f"{part}.") and n.endswith(".step"))
            assert {float(state[name]) for name in counted} == {steps}


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "rate"), [("prodigy", 1.0), ("schedulefree", 0.05)])
def test_what_an_optimizer_finds_is_that_of_each_expert(experts, runs, optimizer, rate):
    """It counts the expert's own steps; the rate that acts in its step is told, and a kill costs nothing."""

    def made(output):
        recipe = experts(f"{output}-{optimizer}")
        recipe["train"] |= {"optimizer": optimizer, "learning_rate": rate}
        if optimizer == "schedulefree":
            del recipe["train"]["ema_decay"]
        return recipe, runs / f"{output}-{optimizer}"

    (whole, calm), (broken, killed) = made("whole"), made("broken")
    assert children.train(whole) == [0]
    assert children.train(broken, fault=("after the average moved", 3)) == [killing.SELF_KILLED]
    assert children.train(broken) == [0]
    assert losses(calm) == losses(killed)
    rates, other = (
        [event["learning_rate"] for event in events.timeline(RunFolder(run).events_file, "step")]
        for run in (calm, killed)
    )
    assert rates == other
    high, d = sides(calm), dict.fromkeys(("transformer", "transformer_2"), 1e-6)
    for done in range(1, 7):
        expert = "transformer" if high[done - 1] else "transformer_2"
        assert rates[done - 1] == pytest.approx(rate if optimizer == "schedulefree" else d[expert])
        found = loaded(calm, done - 1)["optimizer"]["found"]
        assert found["transformer.k"] == sum(high[:done])
        assert found["transformer_2.k"] == done - sum(high[:done])
        d = {expert: found.get(f"{expert}.d") for expert in d}
    assert found == loaded(killed, -1)["optimizer"]["found"]


@pytest.mark.slow
def test_two_ranks_train_what_one_does(experts, runs, calm):
    """Sharded over two ranks, which call the same expert in each step, losses are those of one."""
    recipe = experts("two") | {"parallel": {"strategy": "fsdp"}}
    assert children.train(recipe, world=2) == [0, 0]
    one, two = ([float.fromhex(v) for v in losses(run).values()] for run in (calm, runs / "two"))
    np.testing.assert_allclose(one, two, rtol=1e-3)
    assert sides(calm) == sides(runs / "two")


@torch.no_grad()
def by_hand(family, files):
    """A clip by the family's pipeline with LoRA files: (file, for the second expert)."""
    encoders = {"default": torch.float32, "text_encoder": torch.bfloat16}
    pipeline = diffusers.WanPipeline.from_pretrained(family, dtype=encoders)
    pipeline.set_progress_bar_config(disable=True)
    for file, second in files:
        pipeline.load_lora_weights(file, load_into_transformer_2=second)
    prompt, none = pipeline.encode_prompt(PROMPT, "", max_sequence_length=12)
    frames = pipeline(
        prompt_embeds=prompt.float(),
        negative_prompt_embeds=none.float(),
        height=32,
        width=48,
        num_frames=5,
        num_inference_steps=8,
        guidance_scale=2.0,
        generator=torch.Generator().manual_seed(0),
        output_type="np",
    ).frames[0]
    return (frames * 255).round().astype(int)


OPTIONS = GenerateOptions(Shape(5, 32, 48), 24.0, 8, 2.0, seed=0)


@pytest.mark.slow
def test_files_of_both_draw_in_the_pipeline_what_generate_does(family, calm):
    """One file for each expert; the pipeline that loads both draws our clip, and another without either."""
    files = [
        (calm / "exports" / f"step-000000006-ema-lora-diffusers-{part}.safetensors", part == "transformer_2")
        for part in ("transformer", "transformer_2")
    ]
    made = LoadedModel.load(calm).generate([PROMPT], OPTIONS)
    assert made.by == "WanPipeline with FlowMatchEulerDiscreteScheduler of the weights"
    assert np.abs(made.clips[0] - by_hand(family, files)).max() <= 1
    for left_out in files:
        assert np.abs(made.clips[0] - by_hand(family, [left_out])).max() > 2


@pytest.mark.slow
def test_a_run_of_one_is_generated_with_both(experts, family, runs):
    """The other expert is the published one, beside it."""
    assert children.train(experts("low", which="low")) == [0]
    made = LoadedModel.load(runs / "low").generate([PROMPT], OPTIONS)
    file = runs / "low" / "exports" / "step-000000006-ema-lora-diffusers.safetensors"
    assert np.abs(made.clips[0] - by_hand(family, [(file, True)])).max() <= 1
    assert np.abs(made.clips[0] - by_hand(family, [(file, False)])).max() > 2
