"""What is given stays: references, clips that go on from each other, and either objective."""

import dataclasses

import numpy as np
import pytest
import tiny_recipe
import torch
from PIL import Image
from refused import refused

from reelworks.core.errors import UserError
from reelworks.core.shape import Geometry, Shape
from reelworks.data.media.config import DataConfig
from reelworks.inference.generate import conditions, defaults, pipeline, writers
from reelworks.inference.generate.conditions import Conditions
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.inference.generate.writers import Sound
from reelworks.models import registry
from reelworks.models.config import AutoencoderConfig, ModelConfig
from reelworks.models.family import LEARNED, Companions, Conditioning, ShownFrames
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.training.assembly import build
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe

CPU = torch.device("cpu")
OPTIONS = GenerateOptions(Shape(6, 16, 24), 24.0, 4, 2.0, 0)


def made(model="stdit3-tiny", objective="rectified-flow"):
    """A fresh model whose every layer reaches its output, and what generating needs beside it."""
    recipe = recipe_file.parse(
        tiny_recipe.least(
            model={"name": model, "hidden_size": 48, "depth": 1, "num_heads": 2},
            text_encoder={"dim": 16, "max_length": 6},
            objective={"name": objective},
            precision={"compute": "float32"},
        )
    )
    torch.manual_seed(3)
    denoiser = build.denoiser(recipe, CPU)
    for parameter in denoiser.module.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return DtypeBoundary(denoiser), build.encoder(recipe, CPU), recipe.objective


@pytest.fixture(scope="module")
def model():
    return made()


def run(model, given, **changes):
    options = dataclasses.replace(OPTIONS, conditions=given, **changes)
    return pipeline.generate(*model, ["a red circle"], options)[0][0]


def frames(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 16, 24, 3), dtype=np.uint8)


def test_a_clip_begins_with_its_reference_and_the_rest_is_its_own(model):
    """Given frames come back to the byte, those behind them are generated, and in their light."""
    one, two = frames(2), frames(2, seed=1)
    clip, other, free = (run(model, Conditions(given)) for given in (one, two, None))
    assert clip.shape == (6, 16, 24, 3)
    assert np.array_equal(clip[:2], one)
    assert not np.array_equal(clip[2:], other[2:])
    assert not np.array_equal(clip[2:], free[2:])


def test_a_clip_ends_with_its_last_frame_and_leads_to_it(model):
    """Both ends come back to the byte, what lies between is in the light of the end, and the network is told of it."""
    boundary, encoder, objective = model
    first, one, two = frames(2), frames(1, seed=1), frames(1, seed=2)
    clip, other = (run(model, Conditions(first, last_frame=last)) for last in (one, two))
    assert np.array_equal(clip[:2], first)
    assert np.array_equal(clip[-1:], one)
    assert np.array_equal(other[-1:], two)
    assert not np.array_equal(clip[2:-1], other[2:-1])
    seen = []

    def watch(inputs):
        seen.append(inputs.frame_mask)
        return boundary(inputs)

    given = dataclasses.replace(OPTIONS, conditions=Conditions(last_frame=one))
    pipeline.generate(watch, encoder, objective, ["x"], given)
    assert all((mask == torch.tensor([True] * 5 + [False])).all() for mask in seen)
    assert len(seen) == OPTIONS.num_inference_steps


def test_joined_clips_go_on_from_each_other(model):
    """Each adds what is not shared, and the first is the clip that would have been generated alone."""
    joined = run(model, Conditions(loop=3, condition_frames=2))
    assert len(joined) == 6 + 4 + 4
    alone = run(model, Conditions())
    assert np.array_equal(joined[:6], alone)
    assert not np.array_equal(joined[6:10], joined[10:])
    again = run(model, Conditions(loop=3, condition_frames=2))
    assert np.array_equal(joined, again)


@pytest.mark.parametrize(("loop", "shared"), [(1, 2), (3, 1), (3, 2)])
def test_the_sound_of_joined_clips_goes_on_where_their_frames_do(loop, shared):
    """Each clip has a piece of one long sound, which begins with its first frame: joined, they are that sound."""
    rate, num_frames = 2400, OPTIONS.shape.num_frames
    whole = np.arange(rate, dtype=np.int16)[:, None]
    begins = [round(i * (num_frames - shared) / OPTIONS.fps * rate) for i in range(loop)]
    pieces = [Sound(whole[at : at + round(num_frames / OPTIONS.fps * rate)], rate) for at in begins]
    given = Conditions(loop=loop, condition_frames=shared)
    joined = pipeline._joined(pieces, dataclasses.replace(OPTIONS, conditions=given))
    frames_of_all = loop * num_frames - (loop - 1) * shared
    assert joined.rate == rate
    assert np.array_equal(joined.samples, whole[: round(frames_of_all / OPTIONS.fps * rate)])


def test_the_network_is_told_which_frames_are_given(model):
    """The mask that it gets is False for latents of the reference alone, at every step."""
    boundary, encoder, objective = model
    seen = []

    def watch(inputs):
        seen.append(inputs.frame_mask)
        return boundary(inputs)

    pipeline.generate(watch, encoder, objective, ["x"], dataclasses.replace(OPTIONS, conditions=Conditions(frames(2))))
    assert len(seen) == OPTIONS.num_inference_steps
    assert all((mask == torch.tensor([False, False, True, True, True, True])).all() for mask in seen)


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_a_clip_is_drawn_at_the_timesteps_of_the_recipes_shift(model, shift):
    """As it was trained: with another shift the network would be asked about other noise than it is given."""
    boundary, encoder, objective = model
    seen = []

    def watch(inputs):
        seen.append(float(inputs.time[0]))
        return boundary(inputs)

    pipeline.generate(watch, encoder, objective.model_copy(update={"timestep_shift": shift}), ["x"], OPTIONS)
    t = np.linspace(1, 0, OPTIONS.num_inference_steps + 1)[:-1]
    assert seen == pytest.approx(1000 * shift * t / (1 + (shift - 1) * t))


def test_diffusion_with_learned_variance_generates_and_is_a_function_of_the_seed():
    """The other objective and its network go the same way, with and without what is given."""
    model = made("stdit2-tiny", "iddpm")
    assert model[0].denoiser.module.config.pred_sigma
    clip = run(model, Conditions(frames(1)))
    assert np.array_equal(clip, run(model, Conditions(frames(1))))
    assert not np.array_equal(clip, run(model, Conditions(frames(1)), seed=1))
    # v1.1 gives its conditions the noise of the last step, which is little.
    assert np.abs(clip[0].astype(int) - frames(1)[0]).mean() < 8


def test_a_picture_and_the_end_of_a_clip_are_read_at_the_size_of_the_clip(tmp_path):
    """References are files: a picture is one frame, a clip gives its last ones."""
    Image.fromarray(frames(1)[0]).save(tmp_path / "a.png")
    assert conditions.read(tmp_path / "a.png", OPTIONS.shape, 17, DataConfig()).shape == (1, 16, 24, 3)
    ramp = np.repeat(np.arange(12, dtype=np.uint8) * 20, 16 * 24 * 3).reshape(12, 16, 24, 3)
    writers.write(tmp_path / "a.mp4", ramp, 24.0)
    read = conditions.read(tmp_path / "a.mp4", OPTIONS.shape, 3, DataConfig()).mean(axis=(1, 2, 3))
    assert np.abs(read - [180, 200, 220]).max() < 8
    with refused("condition-unreadable", "--reference", says="the file has 12 frames"):
        conditions.read(tmp_path / "a.mp4", OPTIONS.shape, 13, DataConfig())


def test_transparency_lies_on_the_ground_that_training_gave_it(tmp_path):
    Image.new("RGBA", (24, 16), (200, 0, 0, 0)).save(tmp_path / "a.png")
    config = DataConfig(alpha_color=[0, 128, 255])
    assert (conditions.read(tmp_path / "a.png", OPTIONS.shape, 1, config) == (0, 128, 255)).all()
    assert not conditions.companion(tmp_path / "a.png", OPTIONS.shape, "--mask", config, nearest=True).any()


@pytest.mark.parametrize(("data", "step"), [({}, 1), ({"fps": 24.0}, 3), ({"frame_interval": 2}, 3)])
def test_given_clips_are_read_at_the_rate_of_the_generated_one(tmp_path, data, step):
    """If training leaves out frames, at 16 of a film of 48 frames a second; a last frame is the last.

    Clips that were generated have that rate already, and are read frame by frame.
    """
    ramp = np.repeat(np.arange(48, dtype=np.uint8) * 5, 16 * 24 * 3).reshape(48, 16, 24, 3)
    path, shape = tmp_path / "a.mp4", dataclasses.replace(OPTIONS.shape, num_frames=5)
    writers.write(path, ramp, 48.0)

    def shown(found):
        return (found.mean(axis=(1, 2, 3)) / 5).round().astype(int).tolist()

    wanted = [step * i for i in range(5)]
    recipe = recipe_file.parse(tiny_recipe.least(data=data))
    config = conditions.as_read(recipe, 16.0)
    assert shown(conditions.companion(path, shape, "--inpaint", config)) == wanted
    assert shown(conditions.companions({"control": str(path)}, shape, "--", recipe, 16.0)["control"]) == wanted
    last = shown(conditions.read(path, shape, 5, config))
    assert np.diff(last).tolist() == [step] * 4
    assert 48 - step <= last[-1] < 48
    assert shown(conditions.read(path, shape, 1, config)) == [47]


@pytest.mark.parametrize(
    ("given", "chunk", "message"),
    [
        (Conditions(frames(6)), None, "nothing is left of 6 frames"),
        (Conditions(loop=2, condition_frames=6), None, "--condition-frames = 6"),
        (Conditions(frames(3)), 4, "encodes 4 frames together"),
        (Conditions(frames(5), last_frame=frames(1)), None, "nothing is left of 6 frames"),
        (Conditions(loop=2, condition_frames=1, last_frame=frames(1)), None, "the same given frames"),
    ],
)
def test_what_leaves_nothing_or_does_not_fit_is_refused(given, chunk, message):
    """Too many frames, and frames that break a chunk, are told by the option that asked for them."""
    geometry = Geometry((1, 8, 8), (1, 2, 2), chunk_frames=chunk)
    with pytest.raises(UserError, match=message):
        given.check(geometry, OPTIONS.shape, LEARNED)
    Conditions(frames(1)).check(geometry, OPTIONS.shape, LEARNED)
    with refused("conditions-not-taken", "--reference, --loop"):
        Conditions(frames(1)).check(geometry, OPTIONS.shape, Conditioning())
    Conditions().check(geometry, OPTIONS.shape, Conditioning())


def test_given_frames_are_as_many_as_the_autoencoder_encodes():
    """A picture, or a number of its rule; the default is the nearest to 17, or the one frame that a model is given."""
    geometry, shape = Geometry((4, 32, 32), (1, 1, 1), (4, 8)), dataclasses.replace(OPTIONS.shape, num_frames=32)
    for count in (1, 8, 16):
        Conditions(frames(count)).check(geometry, shape, LEARNED)
    with refused("condition-invalid", "--condition-frames", says="use 16"):
        Conditions(loop=2, condition_frames=17).check(geometry, shape, LEARNED)
    published = {"opensora2-dc-ae": 16, "opensora2": 17, "wan-2.1-i2v-14b": 1}
    for name, count in published.items():
        parts = registry.PRESETS[name].parts
        recipe = Recipe.model_construct(
            model=ModelConfig(name=name), autoencoder=AutoencoderConfig(name=parts.autoencoder, weights="-")
        )
        assert defaults.condition_frames(recipe) == count


@pytest.mark.parametrize(
    ("given", "field"),
    [(Conditions(last_frame=frames(1)), "--last-frame"), (Conditions(inpaint=frames(6)), "--inpaint")],
)
def test_a_model_that_takes_no_end_or_parts_is_not_given_them(given, field):
    """Nor is one of first and last frames left without its last one."""
    geometry = Geometry((1, 8, 8), (1, 2, 2))
    with pytest.raises(UserError, match=field):
        given.check(geometry, OPTIONS.shape, Conditioning())
    with refused("condition-invalid", "--last-frame"):
        Conditions(frames(1)).check(geometry, OPTIONS.shape, Conditioning(shown=ShownFrames("grey", last=True)))


def test_parts_of_a_clip_are_kept():
    """The clip and its mask hold the given frames at both ends; without a mask all else is made anew."""
    shape, parts = OPTIONS.shape, Conditioning(companions=Companions(control_parts=True))
    given = Conditions(last_frame=frames(1, seed=1))
    given.check(Geometry((1, 8, 8), (1, 2, 2)), shape, parts)
    clip, mask = conditions.kept(given, frames(2), None, shape)
    assert np.array_equal(clip[:2], frames(2))
    assert np.array_equal(clip[-1:], frames(1, seed=1))
    assert mask[2:-1].min() == 255
    assert not mask[:2].any()
    assert not mask[-1].any()
    black = np.zeros((6, 16, 24, 3), np.uint8)
    clip, mask = conditions.kept(Conditions(inpaint=frames(6)), None, black, shape)
    assert np.array_equal(clip, frames(6))
    assert not mask.any()
    with pytest.raises(UserError, match="nothing is left"):
        Conditions(frames(5), last_frame=frames(1)).check(Geometry((1, 8, 8), (1, 2, 2)), shape, parts)
