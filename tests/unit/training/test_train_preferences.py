"""Preferences: a LoRA learns to prefer clips to rejected ones, compared with its base."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
import tiny_recipe
import torch
from examples import training_example, validation_example
from refused import refused
from test_train_objectives import CPU
from test_train_objectives import micro_batch as objective_batch
from test_train_prior import perturb
from test_train_step import micro_batch, run_step, stepper, take

from reelworks.models.adapters import inject
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.api import DenoiserInputs
from reelworks.training.assembly import build
from reelworks.training.recipe import recipe_file
from reelworks.training.step import losses
from reelworks.training.step.examples import Predicted
from reelworks.training.step.nonfinite import NonFiniteSource
from reelworks.training.step.state import TrainState

__all__ = ["stepper"]
BETA = 3.0


@pytest.fixture
def preferring(stepper):
    """A stepper whose LoRA learns from pairs, and the network without it."""
    made, base = stepper(), stepper()
    inject.inject(made.boundary.denoiser, LoraConfig(rank=2), seed=0)
    state = TrainState.start(made.boundary.denoiser, made.recipe.train)
    config = made.recipe.objective.model_copy(update={"dpo_beta": BETA})
    dataset = [made.recipe.dataset[0].model_copy(update={"rejected": "unused"})]
    recipe = made.recipe.model_copy(update={"objective": config, "dataset": dataset})
    return replace(made, state=state, examples=replace(made.examples, recipe=recipe)), base


def pairs(made, bucket=1, uids=(1, 2)):
    """A micro-batch with rejected clips, which are noise too."""
    batch = micro_batch(made, bucket, list(uids))
    generator = torch.Generator().manual_seed(9)
    rejected = torch.randint(0, 256, batch.frames.shape, generator=generator, dtype=torch.uint8)
    return replace(batch, companions={"rejected": rejected})


@pytest.mark.parametrize("perturbation", [0.0, 1.0])
def test_the_loss_is_that_of_the_paper(preferring, monkeypatch, perturbation):
    """As a plain script has it: four mean squared errors, one noise and timestep for both clips of a pair.

    A perturbed input has more noise than is trained on, in both clips.
    """
    made, base = preferring
    config = made.recipe.objective.model_copy(update={"input_perturbation": perturbation})
    recipe = made.recipe.model_copy(update={"objective": config})
    made = replace(made, examples=replace(made.examples, recipe=recipe))
    perturb(made)
    batch = pairs(made)
    example = training_example(batch, made.examples.encoder.encoders, made.recipe.objective, seed=made.recipe.seed)
    given = {field.name: getattr(example.inputs, field.name) for field in fields(example.inputs)}
    share = (example.inputs.time / 1000).view(-1, 1, 1, 1, 1)
    added = (example.inputs.latent - (1 - share) * example.x0) / share
    assert float((added - example.noise).std()) == pytest.approx(perturbation, rel=0.1, abs=1e-4)
    errors = {}
    for which, x0 in (
        ("w", made.examples.encoder.encoders.latents(batch.frames)),
        ("l", made.examples.encoder.encoders.latents(batch.companions["rejected"])),
    ):
        noised = (1 - share) * x0 + share * added
        for name, network in (("own", made.boundary), ("reference", base.boundary)):
            with torch.no_grad():
                output = network(DenoiserInputs(**given | {"latent": noised}))
            errors[which, name] = (output - (x0 - example.noise)).square().mean(dim=(1, 2, 3, 4))
    better = errors["w", "own"] - errors["w", "reference"] - (errors["l", "own"] - errors["l", "reference"])
    wanted = -torch.log(1 / (1 + torch.exp(BETA / 2 * better)))
    assert not torch.allclose(wanted, torch.full_like(wanted, math.log(2)), atol=1e-2)
    result, gradients = take(made, [batch], monkeypatch)
    assert result.loss == pytest.approx(float(wanted.mean()), rel=1e-4)
    assert result.clips == 2
    assert all(gradients[name].any() for name in gradients)


@pytest.mark.parametrize("name", ["stdit3-tiny", "wan-tiny", "ltx-tiny", "opensora2-tiny"])
def test_what_is_given_is_the_same_in_both_clips_of_a_pair(name):
    """Of the preferred one, whether a network has given frames among its latents or beside them."""
    recipe = recipe_file.parse(
        tiny_recipe.of_family(
            *(name, "unused", {"path": "a", "rejected": "worse"}),
            bucket=[{"resolution": "32x32", "num_frames": 1}],
            autoencoder={},
            lora={},
            objective={"mask_ratios": {"image_head": 1.0}},
        )
    )
    batch, encoder = objective_batch(range(3)), build.encoder(recipe, CPU)
    batch = replace(batch, companions={"rejected": 255 - batch.frames})
    example = training_example(batch, encoder, recipe.objective, seed=1)
    doubled = losses._pairs(example)
    of_both = {field.name: getattr(doubled.inputs, field.name) for field in fields(doubled.inputs)}
    given = {key: value for key, value in of_both.items() if isinstance(value, torch.Tensor) and key != "latent"}
    assert not given["frame_mask"].all()
    if doubled.trained_frames is not None:
        given["frames"] = doubled.inputs.latent.movedim(2, 1)[~doubled.trained_frames]
    for value in given.values():
        assert torch.equal(*value.chunk(2))
    made = doubled.inputs.latent[:, :, 1:]
    assert not torch.isclose(*made.chunk(2)).any()


def test_it_begins_at_log_2_and_learns_to_prefer(preferring):
    """A fresh LoRA prefers nothing; steps on the same pairs lower the loss, and the error on preferred clips alone."""
    made, _ = preferring
    batch = pairs(made)
    found = [run_step(made, [batch], step=step).loss for step in range(15)]
    assert found[0] == pytest.approx(math.log(2), rel=1e-5)
    assert found[-1] < 0.9 * found[0]


def test_the_module_that_breaks_for_a_rejected_clip_is_named(preferring):
    """The cause is looked for in the passes that the loss is made of, and not in that of the preferred clips alone."""
    made, _ = preferring
    batch = pairs(made)
    made.state.module.spatial_blocks[0].mlp.register_forward_hook(
        lambda _module, _args, out: out / 0.0 if len(out) > len(batch.captions) * batch.frames.shape[1] else out
    )
    blame = run_step(made, [batch]).blame
    assert blame.origin == NonFiniteSource("activation", "spatial_blocks.0.mlp")


def test_held_out_clips_are_measured_without_their_rejected_ones(preferring):
    """Validation is the plain loss of the preferred clips, as without any preferences."""
    made, _ = preferring
    batch = pairs(made, uids=[1])
    plain = replace(batch, companions={})
    one, other = (
        validation_example(each, made.examples.encoder.encoders, made.recipe.objective, seed=1, times=[300.0, 700.0])
        for each in (batch, plain)
    )
    assert torch.equal(one.inputs.latent, other.inputs.latent)
    with torch.no_grad():
        output = Predicted.from_inputs(made.boundary, one.inputs)
    assert torch.equal(one.losses(output), other.losses(output))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"lora": None}, "without a LoRA"),
        ({"dataset": [{"path": "a", "rejected": "worse"}, {"path": "b"}]}, "only some datasets"),
        (
            {"dataset": [{"path": "a", "rejected": "w"}, {"path": "b", "rejected": "v", "prior_prediction": True}]},
            "base",
        ),
        ({"objective": {"target_guidance_scale": 2.0}}, "plain targets"),
        ({"objective": {"name": "iddpm"}}, "learned variance"),
    ],
)
def test_what_cannot_be_preferred_is_refused(changes, says):
    values = tiny_recipe.least(dataset=[{"path": "a", "rejected": "worse"}], lora={})
    assert recipe_file.parse(values).clips_per_place == 2
    with refused("preferences-invalid", "dataset.rejected", says=says):
        recipe_file.parse({key: value for key, value in (values | changes).items() if value is not None})
    with refused("key-without-effect", "objective.dpo_beta"):
        recipe_file.parse(values | {"dataset": [{"path": "a"}], "objective": {"dpo_beta": 3.0}})
