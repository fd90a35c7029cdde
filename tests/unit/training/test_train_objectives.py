"""What an objective asks of training reaches the model, and its loss teaches it."""

import dataclasses

import numpy as np
import pytest
import tiny_recipe
import torch
from examples import batch_encoder, training_example, validation_example

from reelworks.core.shape import Shape
from reelworks.data.distributed.mesh import World
from reelworks.data.loader.micro_batch import MicroBatch, MicroBatchRequest
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.training.assembly import build
from reelworks.training.observers.validation import Validator
from reelworks.training.recipe import recipe_file
from reelworks.training.step.examples import Predicted

CPU = torch.device("cpu")


def recipe_of(model, objective):
    return recipe_file.parse(
        tiny_recipe.least(
            bucket=[{"resolution": "32x32", "num_frames": [1, 4]}],
            model={"name": model, "hidden_size": 48, "depth": 1, "num_heads": 2},
            text_encoder={"dim": 16, "max_length": 6},
            objective={"name": objective, "mask_ratios": {"image_head": 0.5}},
            precision={"compute": "float32"},
        )
    )


def micro_batch(uids):
    frames = np.random.default_rng(0).integers(0, 256, (len(uids), 4, 32, 32, 3), dtype=np.uint8)
    count = len(uids)
    work = MicroBatchRequest(
        epoch=0,
        plan_step=0,
        index=0,
        ends_step=True,
        is_idle=False,
        bucket=0,
        shape=Shape(4, 32, 32),
        uids=np.array(uids, dtype=np.uint64),
        copies=np.zeros(count, dtype=np.int64),
        repeat_index=np.zeros(count, dtype=np.int32),
        requests=(),
        captions=("a red circle",) * count,
        fps=(24.0,) * count,
    )
    return MicroBatch(work, torch.from_numpy(frames), torch.ones(count, dtype=torch.bool), ())


@pytest.mark.parametrize(
    ("model", "objective"), [("stdit2-tiny", "iddpm"), ("stdit3-tiny", "iddpm"), ("stdit2-tiny", "rectified-flow")]
)
@pytest.mark.quick_cases(1)
def test_any_network_learns_by_any_objective(model, objective):
    """Some steps on one micro-batch lower its loss, learned variance included where there is one."""
    recipe = recipe_of(model, objective)
    denoiser, encoder = build.denoiser(recipe, CPU), build.encoder(recipe, CPU)
    assert denoiser.module.config.pred_sigma == (objective == "iddpm")
    boundary, batch = DtypeBoundary(denoiser), micro_batch([1, 2, 3, 4])
    parameters = list(denoiser.module.parameters())
    losses = []
    for _ in range(12):
        example = training_example(batch, encoder, recipe.objective, seed=1)
        loss = example.losses(Predicted.from_inputs(boundary, example.inputs)).mean()
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= 3e-3 * gradient.sign()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_the_network_sees_perturbed_noise_and_predicts_the_other():
    """What was added to the latents is the noise of the target and more; a validation has plain noise."""
    recipe = recipe_of("stdit3-tiny", "rectified-flow")
    encoder, batch = build.encoder(recipe, CPU), micro_batch([1, 2])
    plain = recipe.objective.model_copy(update={"mask_ratios": {}})
    offset = plain.model_copy(update={"noise_offset": 0.1})
    perturbed = offset.model_copy(update={"input_perturbation": 0.2})
    without, alone, both = (training_example(batch, encoder, o, seed=1) for o in (plain, offset, perturbed))
    assert torch.equal(both.noise, alone.noise)
    more = (both.inputs.latent - alone.inputs.latent) / (both.inputs.time / 1000).view(-1, 1, 1, 1, 1)
    assert more.std() == pytest.approx(0.2, rel=0.1)
    added = alone.noise - without.noise
    assert added.std(dim=(2, 3, 4)).max() < 1e-5 < added.std() < 0.3
    of_configs = [
        validation_example(micro_batch([1]), encoder, o.for_validation(), seed=1, times=[500.0])
        for o in (perturbed, plain)
    ]
    assert torch.equal(*(one.inputs.latent for one in of_configs))


def test_a_validation_measures_alike_whatever_a_training_weighs():
    """By squared errors, so that losses of trainings with other objectives can be compared."""
    measured = []
    for objective in ({}, {"loss": "huber", "loss_weighting": "bell", "noise_offset": 0.5}):
        recipe = recipe_of("stdit3-tiny", "rectified-flow")
        recipe = recipe.model_copy(update={"objective": recipe.objective.model_copy(update=objective)})
        boundary, encoder = DtypeBoundary(build.denoiser(recipe, CPU)), batch_encoder(build.encoder(recipe, CPU))
        validator = Validator(boundary, encoder, World(0, 1, CPU), None, None, recipe)
        measured.append(validator._losses(micro_batch([1]), at_once=1)[0])
    assert torch.equal(*measured)


def test_times_of_diffusion_are_whole_steps_and_given_frames_have_the_noise_of_the_first():
    """What the model is fed of a clip follows from the objective's own schedule."""
    recipe = recipe_of("stdit2-tiny", "iddpm")
    encoder = build.encoder(recipe, CPU)
    example = training_example(micro_batch(list(range(8))), encoder, recipe.objective, seed=1)
    time, mask = example.inputs.time, example.inputs.frame_mask
    assert torch.equal(time, time.floor())
    given = ~mask
    assert given.any()
    off = (example.inputs.latent - example.x0).abs().movedim(2, 1).flatten(2).mean(-1)
    assert (off[given] < 0.03).all()
    assert (off[given] > 0).all()
    held_out = validation_example(micro_batch([1]), encoder, recipe.objective, seed=1, times=[1.0, 1000.0])
    assert torch.isfinite(held_out.inputs.latent).all()


def test_a_clip_whose_mask_shows_given_frames_alone_has_no_weight():
    """Nothing is left to learn of it; a clip beside it counts as ever."""
    recipe = recipe_of("stdit3-tiny", "rectified-flow")
    encoder, uids = build.encoder(recipe, CPU), list(range(16))
    batch = micro_batch(uids)
    masks = torch.zeros_like(batch.frames)
    masks[:, 0] = 255
    example = training_example(
        dataclasses.replace(batch, companions={"loss_mask": masks}), encoder, recipe.objective, seed=1
    )
    first_is_made = example.inputs.frame_mask[:, 0]
    assert first_is_made.any()
    assert not first_is_made.all()
    assert torch.equal(example.valid_mask, first_is_made)
    losses = example.losses(Predicted(torch.zeros_like(example.x0)))
    assert torch.equal(losses > 0, first_is_made)


def recipe_of_opensora2(name, mask_ratios):
    values = recipe_of("stdit3-tiny", "rectified-flow").model_dump()
    text = values["text_encoder"] | {"pooled_dim": 8}
    return recipe_file.parse(
        {key: values[key] for key in ("version", "output", "dataset")}
        | {
            "bucket": [{"resolution": "32x32", "num_frames": [1, 4]}],
            "model": {"name": name},
            "text_encoder": {key: text[key] for key in ("dim", "max_length", "pooled_dim")},
            "objective": {"mask_ratios": mask_ratios, "timestep_shift": "opensora-2.0"},
            "precision": {"compute": "float32"},
            "train": {"max_steps": 1},
        }
    )


def test_frames_beside_the_noise_are_noised_and_trained_like_the_others():
    """As in Open-Sora 2.0: given frames are told by the mask and shown clean, and the loss is that of all frames."""
    recipe = recipe_of_opensora2("opensora2-tiny", {"image_head": 0.5})
    encoder = build.encoder(recipe, CPU)
    example = training_example(micro_batch(list(range(8))), encoder, recipe.objective, seed=1)
    inputs, share = example.inputs, (example.inputs.time / 1000)[:, None, None, None, None]
    assert (~inputs.frame_mask).any()
    assert torch.equal(inputs.condition, example.x0)
    torch.testing.assert_close(inputs.latent, (1 - share) * example.x0 + share * example.noise)
    plainly = (example.x0 - example.noise).square().mean(dim=(1, 2, 3, 4))
    torch.testing.assert_close(example.losses(Predicted(torch.zeros_like(example.x0))), plainly)
    assert (example.generated_share == 1).all()


class Averaging:
    """The pixels of the recipe's autoencoder, each frame averaged with the next: an autoencoder that is not causal."""

    def __init__(self, pixels):
        self.geometry, self.latent_channels, self.contract = pixels.geometry, pixels.latent_channels, pixels.contract
        self._pixels = pixels

    def encode(self, video):
        latent = self._pixels.encode(video)
        return (latent + torch.cat([latent[:, :, 1:], latent[:, :, -1:]], dim=2)) / 2


def test_a_given_picture_is_shown_in_training_as_in_generation():
    """Where the first frame alone is given, its latents are those of a picture; of more frames, those of the clip."""
    recipe = recipe_of_opensora2("opensora2-dc-ae-tiny", {"image_head": 0.3, "quarter_head": 0.3})
    built = build.encoder(recipe, CPU).loaded()
    encoder = dataclasses.replace(built, autoencoder=Averaging(built.autoencoder))
    batch = micro_batch(list(range(16)))
    batch = dataclasses.replace(batch, request=dataclasses.replace(batch.request, shape=Shape(8, 32, 32)))
    frames = np.random.default_rng(0).integers(0, 256, (16, 8, 32, 32, 3), dtype=np.uint8)
    batch = dataclasses.replace(batch, frames=torch.from_numpy(frames))
    example = training_example(batch, encoder, recipe.objective, seed=1)
    given = ~example.inputs.frame_mask
    alone, more = given[:, 0] & ~given[:, 1], given[:, :2].all(dim=1)
    assert alone.any()
    assert more.any()
    assert not (alone | more).all()
    pictures = encoder.latents(batch.frames[:, :1])
    assert not torch.equal(pictures, example.x0[:, :, :1])
    wanted = torch.where(alone.view(-1, 1, 1, 1, 1), pictures, example.x0[:, :, :1])
    assert torch.equal(example.inputs.condition[:, :, :1], wanted)
    assert torch.equal(example.inputs.condition[:, :, 1:], example.x0[:, :, 1:])
