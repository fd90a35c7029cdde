"""Which of picture and sound is generated is drawn for each clip, and the loss is the sum over what is."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_recipe
import torch
from examples import training_example
from pydantic import ValidationError
from test_train_objectives import CPU, micro_batch

from reelworks.core import hash_rng
from reelworks.core.shape import Geometry, Shape
from reelworks.data.media.sound import SoundSpec
from reelworks.models.api import SoundInputs
from reelworks.models.objectives import objectives, timesteps
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.models.sound.config import SoundConfig
from reelworks.testing import contract
from reelworks.training.assembly import build
from reelworks.training.observers import validation
from reelworks.training.recipe import recipe_file
from reelworks.training.step import examples, sound_inputs
from reelworks.training.step.examples import Example, Predicted
from reelworks.training.step.sound_inputs import SoundTarget

WORDS = hash_rng.hash64(1, 0, np.arange(4000, dtype=np.uint64), 0)


def test_modes_have_their_shares_and_the_rest_generates_both():
    drawn = sound_inputs.draw(SoundConfig(modes={"sound": 0.3, "video": 0.2}), WORDS)
    shares = [(drawn.picture & drawn.sound).mean(), (~drawn.picture).mean(), (~drawn.sound).mean()]
    assert shares == pytest.approx([0.5, 0.3, 0.2], abs=0.03)
    assert (drawn.picture | drawn.sound).all()
    both = sound_inputs.draw(SoundConfig(), WORDS)
    assert both.picture.all()
    assert both.sound.all()


@pytest.fixture
def footage_of_loss(monkeypatch):
    monkeypatch.setattr(validation, "digest_of", lambda *_: "of the clips")
    return None, None


def of_picture():
    return hash_rng.uniform(hash_rng.extend(WORDS, hash_rng.Purpose.TIMESTEP))


def test_times_are_drawn_apart_or_shared():
    assert np.array_equal(sound_inputs.draw(SoundConfig(times="shared"), WORDS).uniform, of_picture())
    uniform = sound_inputs.draw(SoundConfig(), WORDS).uniform
    assert abs(np.corrcoef(uniform, of_picture())[0, 1]) < 0.05


@pytest.mark.parametrize("own", [None, 3.0, 30.0])
@pytest.mark.parametrize("ratio", [0.0, 12.0])
@pytest.mark.parametrize("ends", [[0.0, 1000.0], [200.0, 500.0]])
def test_sound_has_timesteps_that_are_trained_with_its_own_shift(own, ratio, ends):
    """Drawn apart, drawn with the picture, or given as in validation; a picture may be trained at timestep 0 alone."""
    config, both = ObjectiveConfig(timestep_range=ends), sound_inputs.both(5)
    picture = objectives.RectifiedFlow(config).times(torch.from_numpy(of_picture()), ratio)[1]
    given = torch.tensor(config.timesteps((1, 3, 5, 7, 9), 10))
    for times in ("independent", "shared"):
        drawn = sound_inputs.draw(SoundConfig(times=times), WORDS)
        for found in (
            sound_inputs.times(drawn, picture, ratio, own, config),
            sound_inputs.times(both, given, ratio, own, config),
        ):
            assert found.isfinite().all()
            assert ((found >= ends[0]) & (found <= ends[1])).all()
    if own is None:
        assert torch.equal(sound_inputs.times(drawn, picture, ratio, own, config), picture)
        assert torch.equal(sound_inputs.times(both, given, ratio, own, config), given)


@pytest.mark.parametrize("shift", ["none", 12.0])
def test_a_shift_of_the_sound_that_is_the_pictures_is_none_of_its_own(footage_of_loss, shift):
    own = 1.0 if shift == "none" else shift
    t, config = torch.tensor([10.0, 333.3, 990.0]), ObjectiveConfig()
    assert torch.equal(sound_inputs.times(sound_inputs.both(3), t, own, own, config), t)

    def digest(**sound):
        values = tiny_recipe.of_sounds("unused", "unused", sound=sound, objective={"timestep_shift": shift})
        return validation.digest_of_loss(recipe_file.parse(values), *footage_of_loss)

    assert digest(timestep_shift=own) == digest() != digest(timestep_shift=own + 1)


def test_a_shared_timestep_is_moved_from_the_shift_of_the_picture_to_that_of_the_sound():
    """Whether it is drawn or given."""
    t, config = torch.tensor([10.0, 500.0, 990.0]), ObjectiveConfig()
    moved = sound_inputs.times(sound_inputs.both(3), timesteps.shift(t, 12.0), 12.0, 3.0, config)
    torch.testing.assert_close(moved, timesteps.shift(t, 3.0))
    drawn = sound_inputs.draw(SoundConfig(times="shared"), WORDS)
    unshifted, picture = objectives.RectifiedFlow(config).times(torch.from_numpy(of_picture()), 12.0)
    moved = sound_inputs.times(drawn, picture, 12.0, 3.0, config)
    torch.testing.assert_close(moved, timesteps.shift(unshifted, 3.0))


@pytest.mark.parametrize(
    ("modes", "says"),
    [
        ({"both": 0.5}, "sum to 1, not 0.5"),
        ({"picture": 1.0}, "no such mode"),
        ({"sound": -1.0, "both": 2.0}, "from 0"),
    ],
)
def test_modes_that_are_no_shares_are_refused(modes, says):
    with pytest.raises(ValidationError, match=says):
        SoundConfig(modes=modes)


def test_sound_at_the_time_of_a_given_frame_is_given():
    """A causal autoencoder's first latent frame is one frame, and each further one the eight frames that follow."""
    spec, shape = SoundSpec(16_000, 2, 640, 24.0), Shape(17, 64, 64)
    found = sound_inputs.frame_of_sound(spec, Geometry((8, 32, 32), (1, 1, 1), (8, 1)), shape)
    frames = np.floor(np.arange(18) / 25 * 24 + 1e-6).astype(int).clip(max=16)
    assert found.tolist() == [0 if frame == 0 else (frame - 1) // 8 + 1 for frame in frames.tolist()]
    plain = sound_inputs.frame_of_sound(spec, Geometry((1, 8, 8), (1, 1, 1)), shape)
    assert plain.tolist() == frames.tolist()


@pytest.mark.parametrize("weighting", ["none", "min-snr"])
@pytest.mark.parametrize("given", ["neither", "picture", "sound"])
def test_the_loss_is_the_sum_over_what_is_generated(given, weighting):
    """What is given adds nothing, and its errors have no gradient, also where weights are infinite at time 0."""
    i = contract.example(contract.Shape(5, 4, 4), "ltx-2-sound-tiny")
    none = torch.zeros_like(i.time)
    if given == "picture":
        i = dataclasses.replace(i, time=none, frame_mask=torch.zeros_like(i.frame_mask))
    if given == "sound":
        i = dataclasses.replace(i, sound=SoundInputs(i.sound.latent, none, torch.zeros_like(i.sound.mask)))
    x0, noise = torch.randn_like(i.latent), torch.randn_like(i.latent)
    target = SoundTarget(torch.randn_like(i.sound.latent), torch.randn_like(i.sound.latent), loss_weight=0.25)
    config = ObjectiveConfig(loss_weighting=weighting)
    encoded = SimpleNamespace(batch=SimpleNamespace(request=SimpleNamespace(target_is_base=())))
    example = Example(
        encoded, config, i, x0, noise, noise, torch.ones(2), torch.ones(2).bool(), i.frame_mask, sound=target
    )
    assert {examples.KINDS[kind] for kind in examples.kinds_of(example).tolist()} == {
        {"neither": "", "picture": "sound only", "sound": "picture only"}[given]
    }
    out = Predicted(torch.randn_like(i.latent).requires_grad_(), torch.randn_like(i.sound.latent).requires_grad_())
    losses = example.losses(out)
    torch.autograd.backward(losses.sum())
    assert bool(out.picture.grad.any()) == (given != "picture")
    assert bool(out.sound.grad.any()) == (given != "sound")
    assert out.picture.grad.isfinite().all()
    assert out.sound.grad.isfinite().all()
    if weighting == "none":
        picture = (out.picture - (x0 - noise)).square().mean((1, 2, 3, 4)) * (given != "picture")
        heard = (out.sound - (target.x0 - target.noise)).square().mean((1, 2, 3, 4)) * (given != "sound")
        torch.testing.assert_close(losses, picture + 0.25 * heard)
    assert sound_inputs.trained_times(i).tolist() == (i.sound.time if given == "picture" else i.time).tolist()


MASKS = {"white": slice(None), "first frame": slice(1), "last frame": slice(3, None), "none": None}


@pytest.mark.parametrize("ratios", [{}, {"image_head": 1.0}, {"random": 1.0}], ids=["", "head", "random"])
@pytest.mark.parametrize("follow", [True, False])
def test_a_clip_counts_exactly_if_something_of_it_is_trained(follow, ratios):
    """Of picture or sound: a mask of what is given leaves the other one trained."""
    values = tiny_recipe.of_sounds(
        "unused",
        "unused",
        sound={"modes": {"sound": 0.4, "video": 0.3}, "follow_frames": follow},
        objective={"mask_ratios": ratios},
    )
    recipe = recipe_file.parse(values)
    encoder, batch = build.encoder(recipe, CPU), micro_batch(range(24))
    samples = encoder.sound.spec.samples(4)
    batch = dataclasses.replace(batch, sound=torch.zeros(24, samples, encoder.sound.spec.channels, dtype=torch.int16))
    for frames in MASKS.values():
        shown = torch.zeros_like(batch.frames)
        shown[:, frames or slice(0)] = 255
        companions = {} if frames is None else {"loss_mask": shown}
        example = training_example(dataclasses.replace(batch, companions=companions), encoder, recipe.objective, seed=1)
        out = Predicted(*(torch.randn_like(x0).requires_grad_() for x0 in (example.x0, example.sound.x0)))
        torch.autograd.backward(example.losses(out).sum())
        trained = out.picture.grad.flatten(1).any(dim=1) | out.sound.grad.flatten(1).any(dim=1)
        assert torch.equal(example.valid_mask, trained)
        assert trained.any()


SHIFTED = {"times": "shared", "timestep_shift": 3.0}


@pytest.mark.parametrize("follow", [True, False])
def test_the_network_gets_each_sound_between_clip_and_noise_at_its_own_time(follow):
    """Rectified flow: a share of noise that is the timestep's; what is given of picture or sound is at time 0 without noise."""
    values = tiny_recipe.of_sounds(
        "unused",
        "unused",
        sound={"modes": {"sound": 0.4, "video": 0.3}, "follow_frames": follow, "loss_weight": 0.25, **SHIFTED},
        objective={"mask_ratios": {"image_head": 1.0}, "timestep_shift": 12.0},
    )
    recipe = recipe_file.parse(values)
    encoder, batch = build.encoder(recipe, CPU), micro_batch(range(24))
    spec, generator = encoder.sound.spec, torch.Generator().manual_seed(2)
    heard = torch.randint(-(2**15), 2**15, (24, spec.samples(4), spec.channels), generator=generator).short()
    example = training_example(dataclasses.replace(batch, sound=heard), encoder, recipe.objective, seed=1)
    kinds = [examples.KINDS[kind] for kind in examples.kinds_of(example).tolist()]
    assert set(kinds) == {"", "sound only", "picture only"}
    of_sound, picture_time, target = example.inputs.sound, example.inputs.time, example.sound
    assert [time == 0 for time in of_sound.time.tolist()] == [kind == "picture only" for kind in kinds]
    assert [time == 0 for time in picture_time.tolist()] == [kind == "sound only" for kind in kinds]
    both = torch.tensor([kind == "" for kind in kinds])
    torch.testing.assert_close(timesteps.shift(of_sound.time[both], 4.0), picture_time[both])
    noise = (of_sound.time / 1000).view(-1, 1, 1, 1, 1)
    between = target.x0 + noise * (target.noise - target.x0)
    torch.testing.assert_close(of_sound.latent, torch.where(of_sound.mask[:, None, :, None, None], between, target.x0))
    generated = [kind != "picture only" for kind in kinds]
    assert of_sound.mask.any(dim=1).tolist() == generated
    assert of_sound.mask.all(dim=1).tolist() == [one and not follow for one in generated]
    assert example.inputs.frame_mask.any(dim=1).tolist() == [kind != "sound only" for kind in kinds]
    assert target.loss_weight == 0.25
    assert len({tuple(one) for one in target.noise.flatten(1).tolist()}) == 24
    assert target.noise.std() == pytest.approx(1.0, abs=0.1)
    torch.testing.assert_close(target.x0, encoder.sound.latents(heard, CPU))
