"""Guided targets: a LoRA learns in the space of a base that guidance was distilled into."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import tiny_recipe
import torch
from examples import training_example
from refused import refused
from test_train_prior import perturb, preserved
from test_train_step import micro_batch, stepper, take

from reelworks.models.adapters import inject
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.api import DenoiserInputs
from reelworks.training.recipe import recipe_file
from reelworks.training.step import examples, losses
from reelworks.training.step.state import TrainState

__all__ = ["stepper"]
SCALE = 3.5


def guided(made, **objective):
    """A stepper whose LoRA is trained with guided targets."""
    inject.inject(made.boundary.denoiser, LoraConfig(rank=2), seed=0)
    state = TrainState.start(made.boundary.denoiser, made.recipe.train)
    config = made.recipe.objective.model_copy(update={"target_guidance_scale": SCALE, **objective})
    return replace(
        made, state=state, examples=replace(made.examples, recipe=made.recipe.model_copy(update={"objective": config}))
    )


@pytest.mark.parametrize("prediction", ["velocity", "sample"])
def test_the_target_is_guided_by_the_base_without_caption(stepper, monkeypatch, prediction):
    """As a plain script has it: u + s (v - u), u of the network before its LoRA; plain for the clip without caption."""
    made, base = guided(stepper(), prediction=prediction), stepper()
    perturb(made)
    batch = micro_batch(made, 1, [1, 2, 3, 4, 5, 6])
    objective = made.recipe.objective
    example = training_example(batch, made.examples.encoder.encoders, objective, seed=made.recipe.seed)
    given = {field.name: getattr(example.inputs, field.name) for field in fields(example.inputs)}
    dropped = given["drop_text"]
    assert dropped.any()
    assert not dropped.all()
    with torch.no_grad():
        output = made.boundary(example.inputs)
        u = base.boundary(DenoiserInputs(**given | {"drop_text": torch.ones_like(dropped)}))
    v = example.x0 - example.noise
    if prediction == "sample":  # v = (x0 - x_t) / t, where t counts as 0.05 at least
        share = (example.inputs.time / 1000).clamp(min=0.05).view(-1, 1, 1, 1, 1)
        output, u, v = ((each - example.inputs.latent) / share for each in (output, u, example.x0))
    target = torch.where(dropped.view(-1, 1, 1, 1, 1), v, u + SCALE * (v - u))
    wanted = (output - target).square().mean(dim=(1, 2, 3, 4))
    assert [examples.KINDS[kind] == "guided" for kind in examples.kinds_of(example)] == (~dropped).tolist()
    result, gradients = take(made, [batch], monkeypatch)
    assert result.loss == pytest.approx(float(wanted.mean()), rel=1e-4)
    assert all(gradients[name].any() for name in gradients)
    plain = replace(made, examples=replace(made.examples, recipe=base.recipe))
    other, _ = take(plain, [batch], monkeypatch)
    assert other.loss != pytest.approx(result.loss, rel=1e-2)


def test_clips_beside_those_that_preserve_the_base_are_guided(stepper):
    """Each clip of a micro-batch has the loss of its kind, as if all were of that."""
    made = guided(stepper())
    perturb(made)
    batch = preserved(made, 1, [1, 2, 3, 4], (True, False, True, False))
    example = training_example(batch, made.examples.encoder.encoders, made.recipe.objective, seed=made.recipe.seed)
    passes = losses.Passes(made.boundary, made.boundary.denoiser.module)
    both = losses.PriorLoss(passes, guided=True).of_clips(example, 4)
    torch.testing.assert_close(both[1::2], losses.GuidedLoss(passes).of_clips(example, 4)[1::2])
    torch.testing.assert_close(both[::2], losses.PriorLoss(passes, guided=False).of_clips(example, 4)[::2])


def test_what_cannot_be_guided_is_refused():
    """All weights in training have no base; IDDPM's variance has no guidance."""
    values = tiny_recipe.least(objective={"target_guidance_scale": 3.0})
    with refused("guided-target-invalid", "objective.target_guidance_scale", says="without a LoRA"):
        recipe_file.parse(values)
    with refused("guided-target-invalid", "objective.target_guidance_scale", says="IDDPM"):
        recipe_file.parse(values | {"objective": values["objective"] | {"name": "iddpm"}, "lora": {}})
    assert recipe_file.parse(values | {"lora": {}}).objective.for_validation().target_guidance_scale is None
