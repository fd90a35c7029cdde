"""Prior preservation: some clips teach a LoRA what the base says of them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import tiny_recipe
import torch
from examples import training_example
from refused import refused
from test_train_step import micro_batch, run_step, stepper, take

from reelworks.core.errors import UserError
from reelworks.models.adapters import inject
from reelworks.models.adapters.config import LoraConfig
from reelworks.training.recipe import recipe_file
from reelworks.training.step import losses
from reelworks.training.step.examples import Predicted
from reelworks.training.step.state import TrainState

__all__ = ["stepper"]


@pytest.fixture(params=[False, True], ids=["lora", "dora"])
def adapted(stepper, request):
    """A stepper that trains a LoRA, and the same network without one."""
    made, base = stepper(), stepper()
    inject.inject(made.boundary.denoiser, LoraConfig(rank=2, dora=request.param), seed=0)
    state = TrainState.start(made.boundary.denoiser, made.recipe.train)
    dataset = [d.model_copy(update={"prior_prediction": True}) for d in made.recipe.dataset]
    recipe = made.recipe.model_copy(update={"dataset": dataset})
    return replace(made, state=state, examples=replace(made.examples, recipe=recipe)), base


def preserved(stepper, bucket, uids, which):
    batch = micro_batch(stepper, bucket, uids)
    return replace(batch, request=replace(batch.request, target_is_base=which))


def perturb(stepper):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in stepper.state.module.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)


def test_a_fresh_lora_has_nothing_to_learn_of_them(adapted):
    """It says what the base says: their loss and gradient are 0."""
    made, _ = adapted
    batch = preserved(made, 1, [1, 2], (True, True))
    result = run_step(made, [batch])
    assert (result.applied, result.clips) == (True, 2)
    # A DoRA's row lengths are rounded where they are made and where they divide.
    assert result.loss == pytest.approx(0, abs=1e-9)
    assert result.grad_norm == pytest.approx(0, abs=1e-4)


def test_their_target_is_the_base_and_that_of_others_is_not(adapted, monkeypatch):
    """In one micro-batch: the distance from the base's output for one clip, the objective's loss for the other."""
    made, base = adapted
    perturb(made)
    batch = preserved(made, 1, [1, 2], (True, False))
    objective = made.recipe.objective
    example = training_example(batch, made.examples.encoder.encoders, objective, seed=made.recipe.seed)
    with torch.no_grad():
        output, said = made.boundary(example.inputs), base.boundary(example.inputs)
    assert not torch.allclose(output, said, atol=0.01)
    plain = example.losses(Predicted(output))
    wanted = torch.stack([(output[0] - said[0]).square().mean(), plain[1]])
    assert wanted[0] > 1e-3
    result, gradients = take(made, [batch], monkeypatch)
    assert result.loss == pytest.approx(float(wanted.mean()), rel=1e-5)
    assert all(gradients[name].any() for name in gradients)


@pytest.mark.parametrize("channels", [1, 2], ids=["", "with a variance"])
@pytest.mark.parametrize("prediction", ["velocity", "sample"])
def test_the_base_is_kept_in_what_the_objective_measures(adapted, prediction, channels):
    """Velocities, as of the clips beside them, whatever the network predicts; nobody reads a variance."""
    made, _ = adapted
    objective = made.recipe.objective.model_copy(update={"prediction": prediction})
    batch = preserved(made, 1, [1, 2], (True, True))
    example = training_example(batch, made.examples.encoder.encoders, objective, seed=made.recipe.seed)
    x_t, generator = example.inputs.latent.double(), torch.Generator().manual_seed(2)
    shape = (2, channels * x_t.shape[1], *x_t.shape[2:])
    output, said = (torch.randn(shape, generator=generator) for _ in range(2))
    difference = (output - said).double()[:, : x_t.shape[1]]
    if prediction == "sample":
        difference /= (example.inputs.time.double() / 1000).clamp(min=0.05).view(-1, 1, 1, 1, 1)
    losses = example.losses(Predicted(output), Predicted(said))
    torch.testing.assert_close(losses.double(), difference.square().mean(dim=(1, 2, 3, 4)), rtol=1e-4, atol=0)


def test_running_the_base_leaves_what_is_trained_marked(adapted):
    """Where a unit of FSDP runs for the first time, it decides what has gradients; also behind an error."""
    made, _ = adapted
    module = made.state.module
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    with inject.disable_adapters(module):
        assert {name for name, p in module.named_parameters() if p.requires_grad} == trained
    with refused("x"), inject.disable_adapters(module):
        raise UserError("inside", code="x", remedy="none")
    assert {name for name, p in module.named_parameters() if p.requires_grad} == trained
    module.requires_grad_(False)
    with inject.disable_adapters(module):
        pass
    assert not any(p.requires_grad for p in module.parameters())


def test_losses_are_compared_with_those_of_the_same_target(adapted):
    """Errors against the base lie far below those against clips, in whichever micro-batch they come: neither is a spike."""
    made, _ = adapted
    for step in range(60):
        result = run_step(made, [preserved(made, 0, [1 + step % 3, 4], (step % 4 > 0, True))], step=step)
        assert result.spike is None, step


def test_learning_from_them_alone_leads_back_to_the_base(adapted):
    """Steps on nothing else bring a LoRA's answers nearer to those of the base."""
    made, _ = adapted
    perturb(made)
    batch = preserved(made, 1, [1, 2], (True, True))
    found: list[float] = []
    while len(found) < 60 and (not found or found[-1] >= 0.7 * found[0]):
        found.append(run_step(made, [batch], step=len(found)).loss)
    assert found[-1] < 0.7 * found[0]


@pytest.mark.parametrize(
    ("lora", "datasets", "problem"),
    [(None, [True, False], "no frozen base to predict the target"), ({}, [True, True], "the LoRA would learn nothing")],
)
def test_what_cannot_work_is_refused(lora, datasets, problem):
    """All weights in training have no base, and a LoRA of nothing but the base is none."""
    values = tiny_recipe.least(dataset=[{"path": f"d{i}", "prior_prediction": on} for i, on in enumerate(datasets)]) | (
        {} if lora is None else {"lora": lora}
    )
    with pytest.raises(UserError, match=problem) as caught:
        recipe_file.parse(values)
    assert caught.value.field == "dataset.prior_prediction"


@pytest.mark.parametrize(("scale", "prior"), [(None, False), (None, True), (3.0, False), (3.0, True)])
def test_the_loss_is_that_of_all_that_a_recipe_asks_for(scale, prior):
    recipe = SimpleNamespace(
        objective=SimpleNamespace(target_guidance_scale=scale),
        learns_preferences=False,
        dataset=[SimpleNamespace(prior_prediction=False), SimpleNamespace(prior_prediction=prior)],
    )
    loss = losses.loss_of(recipe, None)
    assert isinstance(loss, losses.PriorLoss) == prior
    assert (loss.guided if prior else isinstance(loss, losses.GuidedLoss)) == (scale is not None)
