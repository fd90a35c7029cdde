"""First and last frames, pictures and clips reach MiniMax-H3 as its modular pipeline shows them, from the same files."""

from __future__ import annotations

import shutil

import diffusers
import minimax_h3_release
import numpy as np
import pytest
import sound_clips
import tiny_recipe
import torch
import transformers
from diffusers.modular_pipelines import minimax_h3 as release
from media_makers import write
from PIL import Image
from refused import refused

from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.data.catalog import sources
from reelworks.data.media import decode_pool
from reelworks.data.media.decode import Request
from reelworks.inference.generate import conditions
from reelworks.inference.generate.conditions import Conditions
from reelworks.inference.generate.pipeline import GenerateOptions, generate
from reelworks.models import factory
from reelworks.models.config import TextEncoderConfig
from reelworks.models.families.minimax_h3 import pictures
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.models.text import encoders
from reelworks.training.assembly import build
from reelworks.training.recipe import recipe_file

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
PROMPT = "two cats sit on a wall in the sun"
SHAPE = Shape(124, 64, 96)  # no pipeline makes a shorter clip
CPU = torch.device("cpu")
RATE = 32_000


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A release, and pictures and a clip beside it."""
    folder = minimax_h3_release.write(tmp_path_factory.mktemp("release"))
    for name in ("first", "last", "wide"):
        size = (160, 64) if name == "wide" else (96, 64)
        noise = np.random.default_rng(len(name)).integers(0, 256, (8, 12, 3), dtype=np.uint8)
        Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC).save(folder / f"{name}.png")
    t, x = np.mgrid[:124, :96]
    frames = np.broadcast_to((2 * t + 2 * x).astype(np.uint8)[:, None, :, None], (124, 64, 96, 3))
    write(folder / "clip.mp4", frames)
    return folder


@pytest.fixture(autouse=True)
def _exact(monkeypatch):
    """A text encoder in float32, as the pipeline holds its own here."""
    monkeypatch.setitem(encoders.load_pipeline.__kwdefaults__, "dtype", torch.float32)


class Processor:
    """The processor of the release; without torchvision, what stands in for it prepares clips."""

    def __init__(self, place):
        self.image_processor = transformers.Qwen2VLImageProcessorPil.from_pretrained(place / "processor")
        own = pictures.load(None, str(place))

        def prepare(videos, **_):
            made = [own.clip(list(frames)) for frames in videos]
            return {
                "pixel_values_videos": torch.cat([pixels for pixels, _ in made]),
                "video_grid_thw": torch.cat([grid for _, grid in made]),
            }

        clips = {"temporal_patch_size": 2, "__call__": lambda _, **given: prepare(**given)}
        self.video_processor = type("Clips", (), clips)()
        self.ids = transformers.AutoTokenizer.from_pretrained(place / "tokenizer").convert_tokens_to_ids

    def create_mm_token_type_ids(self, rows):
        kinds = {self.ids("<|image_pad|>"): 1, self.ids("<|video_pad|>"): 2}
        return [[kinds.get(one, 0) for one in row] for row in rows]


class ReachedError(Exception):
    """The network was called."""


def watched(module, seen):
    def stop(_module, args, kwargs):
        seen.update(zip(("hidden_states",), args, strict=False), **kwargs)
        raise ReachedError

    module.register_forward_pre_hook(stop, with_kwargs=True)
    return module


def pipelines_call(place, **request):
    """What the modular pipeline calls its network with first."""
    seen, kind = {}, diffusers.MiniMaxH3Transformer3DModel
    pipeline = release.MiniMaxH3Blocks().init_pipeline()
    part = "transformer_ref" if "references" in request else "transformer"
    pipeline.update_components(
        text_encoder=transformers.Qwen3VLForConditionalGeneration.from_pretrained(place / "text_encoder"),
        tokenizer=transformers.AutoTokenizer.from_pretrained(place / "tokenizer"),
        processor=Processor(place),
        vae=diffusers.AutoencoderKLMiniMaxH3.from_pretrained(place / "vae"),
        audio_vae=diffusers.AutoencoderKLMiniMaxH3Audio.from_pretrained(place / "audio_vae"),
        scheduler=diffusers.MiniMaxH3Scheduler(shift=12.0),
        audio_scheduler=diffusers.MiniMaxH3Scheduler(shift=3.0),
        reference_image_short_edge=64,
        canvas_short_edge=64,
        canvas_max_pixels=64 * 96,
        **{part: watched(kind.from_pretrained(place / part), seen)},
    )
    with pytest.raises(ReachedError):
        pipeline(
            prompt=PROMPT,
            height=SHAPE.height,
            width=SHAPE.width,
            num_frames=SHAPE.num_frames,
            num_inference_steps=4,
            generator=torch.Generator().manual_seed(0),
            **request,
        )
    return seen


def our_call(place, name, ends=None, files=None):
    """What `generate` calls the network with first."""
    parts = {
        "model": {"name": name, "weights": str(place)},
        "autoencoder": {"name": "minimax-h3", "weights": str(place)},
        "text_encoder": {
            "name": "minimax-h3-references" if "ref" in name else "minimax-h3-keyframes",
            **{"weights": str(place), "dim": 32, "max_length": 512},
        },
    }
    given = {"dataset": [{"path": "unused", "source": "unused-either"}]} if files else {}
    size = {"resolution": "64px", "num_frames": 22}
    if name.endswith("-sound-tiny"):
        given |= {"sound": {"name": "minimax-h3", "weights": str(place)}, "data": {"fps": 24}}
    recipe = recipe_file.parse(tiny_recipe.least(bucket=[size], precision={"compute": "float32"}, **parts, **given))
    shown = conditions.companions(files or {}, SHAPE, "--", recipe, 24.0)
    options = GenerateOptions(SHAPE, 24.0, 3, 1.0, 0, Conditions(**(ends or {})), shown, sampler="own")
    denoiser, seen = build.denoiser(recipe, CPU), {}
    watched(denoiser.module, seen)
    with pytest.raises(ReachedError):
        generate(DtypeBoundary(denoiser), build.encoder(recipe, CPU), ObjectiveConfig(), [PROMPT], options)
    return seen


def opened(place, name):
    return Image.open(place / f"{name}.png")


def agree(ours, theirs):
    """The same tokens lie in the same places, at the same times, and what is shown has the same values but for noise.

    The clip is without sound here, whose tokens the pipeline has before the clip's own.
    """
    heard = theirs["audio_indices"]
    kept = torch.ones(len(theirs["token_tags"]), dtype=torch.bool).index_fill(0, heard, False)
    for name in ("token_tags", "position_ids"):
        torch.testing.assert_close(ours[name], theirs[name][kept].to(ours[name].dtype))
    times = [call["timestep"][call["timestep_indices"]] for call in (ours, theirs)]
    shown = theirs["hidden_states"].shape[1] - 37 * 2 * 3
    for call in (ours, theirs):
        call["of_shown"] = call["timestep"][call["timestep_indices"]][call["video_indices"][:shown]]
        assert (call["of_shown"] == 0.999).all()
    assert shown > 0
    assert torch.equal(times[0] == 0.999, (times[1] == 0.999)[kept])
    for name in ("video_indices", "text_indices"):
        places = torch.cumsum(kept, 0) - 1
        assert torch.equal(ours[name], places[theirs[name]])
    torch.testing.assert_close(ours["encoder_hidden_states"], theirs["encoder_hidden_states"], rtol=1e-3, atol=1e-4)
    rows = [call["hidden_states"][0, :shown] for call in (ours, theirs)]
    assert rows[0].shape == rows[1].shape
    assert rows[0].std() > 0.1
    # Each has a thousandth of noise of its own, and the pipeline rounds latents to float16.
    difference = rows[0] - rows[1]
    torch.testing.assert_close(*rows, rtol=2e-3, atol=1e-2)
    assert 0.0005 < difference.std() < 0.004


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize("last", [False, True])
def test_first_and_last_frames(place, last):
    """Both are pictures before the caption and tokens of their own at the ends of the clip."""
    ends = {"reference": np.array(opened(place, "first"))[None]}
    keyframes = {"image": opened(place, "first")}
    if last:
        ends |= {"last_frame": np.array(opened(place, "last"))[None]}
        keyframes |= {"last_image": opened(place, "last")}
    theirs = pipelines_call(place, **keyframes)
    assert theirs["hidden_states"].shape[1] == (37 + 1 + last) * 6
    agree(our_call(place, f"minimax-h3-{'flf2v' if last else 'i2v'}-tiny", ends), theirs)


def frames_of(place):
    return decode_pool.load(Request(place / "clip.mp4", False, SHAPE))


@torch.no_grad()
@pytest.mark.parametrize(
    "names",
    [
        ("first",),
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in (("wide", "first"), ("clip",), ("first", "clip", "last"))
        ),
    ],
    ids="-".join,
)
@pytest.mark.slow
def test_references(place, names):
    """Pictures of their own size and clips, in any order, are told apart in text, place and time."""
    files = {"source": names[0]} | {f"source-{i}": name for i, name in enumerate(names[1:], start=2)}
    files = {kind: str(place / f"{name}.{'mp4' if name == 'clip' else 'png'}") for kind, name in files.items()}
    references = [
        release.MiniMaxH3VideoReference(frames_of(place), 24.0)
        if name == "clip"
        else release.MiniMaxH3ImageReference(opened(place, name))
        for name in names
    ]
    theirs = pipelines_call(place, references=references)
    agree(our_call(place, "minimax-h3-ref-tiny", files=files), theirs)


@pytest.fixture(scope="module")
def heard(tmp_path_factory, place):
    """A release that hears references; a clip with sound, and sounds that are shorter and longer than what is made."""
    folder = minimax_h3_release.write(tmp_path_factory.mktemp("heard"), hears=True)
    shutil.copy(place / "first.png", folder)
    shutil.copy(place / "clip.mp4", folder)
    sound_clips.add_sound(place / "clip.mp4", folder / "loud.mkv", noise(6.0, 2), RATE)
    sound_clips.write_sound(folder / "voice.wav", noise(1.99, 1), RATE)
    sound_clips.write_sound(folder / "music.flac", noise(7.0, 2), RATE)
    return folder


def noise(seconds, channels):
    drawn = np.random.default_rng(channels).normal(scale=0.2, size=(int(seconds * RATE), channels))
    return np.round(drawn.clip(-1, 1) * 32767).astype(np.int16)


def reference(place, file):
    """A reference as the release takes it; clips are decoded here, so that codecs make no difference."""
    if file.endswith("png"):
        return release.MiniMaxH3ImageReference.from_file(place / file)
    if file.endswith(("wav", "flac")):
        return release.MiniMaxH3AudioReference.from_file(place / file)
    own = release.MiniMaxH3VideoReference.from_file(place / file)
    own.frames = decode_pool.load(Request(place / file, False, SHAPE))
    return own


@torch.no_grad()
@pytest.mark.parametrize(
    "names",
    [
        ("first.png", "voice.wav"),
        *(
            pytest.param(names, marks=pytest.mark.slow)
            for names in (("loud.mkv",), ("music.flac", "clip.mp4", "loud.mkv", "voice.wav"))
        ),
    ],
    ids="-".join,
)
@pytest.mark.slow
def test_sounds_of_references(heard, names):
    """A clip's own sound and those alone have the tokens, places, times and names of the release, without noise."""
    files = dict(zip(sources.SOURCES, (str(heard / name) for name in names), strict=False))
    theirs = pipelines_call(heard, references=[reference(heard, name) for name in names])
    ours = our_call(heard, "minimax-h3-ref-sound-tiny", files=files)
    for name in ("token_tags", "position_ids", "video_indices", "audio_indices", "text_indices"):
        torch.testing.assert_close(ours[name], theirs[name].to(ours[name].dtype))
    torch.testing.assert_close(*(call["timestep"][call["timestep_indices"]] for call in (ours, theirs)))
    torch.testing.assert_close(ours["encoder_hidden_states"], theirs["encoder_hidden_states"], rtol=1e-3, atol=1e-4)
    rows = [call["audio_hidden_states"][0, : -2 * 207] for call in (ours, theirs)]
    assert len(rows[0]) > 0
    torch.testing.assert_close(*rows, rtol=1e-4, atol=1e-4)


def test_sounds_alone_are_no_references(heard):
    """As in the release; and a network without sound takes none."""
    with refused("companion-mismatch", "--source"):
        our_call(heard, "minimax-h3-ref-sound-tiny", files={"source": str(heard / "voice.wav")})
    with refused("conditions-not-taken", "--source", says="minimax-h3-ref-sound"):
        files = {"source": str(heard / "first.png"), "source-2": str(heard / "voice.wav")}
        our_call(heard, "minimax-h3-ref-tiny", files=files)


def text_encoder(place, **changes):
    config = {"name": "minimax-h3-references", "weights": str(place), "dim": 32, "max_length": 512}
    return factory.build_text_encoder(TextEncoderConfig(**config | changes))


@torch.no_grad()
def test_a_text_tells_its_own_pictures(place):
    """Another picture makes another text; the marks of pictures are rows of zeros that count, in pairs."""
    shown = torch.stack([torch.zeros(1, 64, 96, 3), torch.full((1, 64, 96, 3), 200.0)]).byte()
    made = text_encoder(place).encode([PROMPT] * 2, [shown])
    marks = (~made.tokens.any(dim=2) & made.mask).sum(dim=1)
    assert marks.tolist() == [2, 2]
    assert not torch.allclose(made.tokens[0], made.tokens[1], atol=0.01)
    texts, kinds = pictures.unmarked(made.tokens, made.mask)
    assert [len(text) for text in texts] == [len(each) for each in kinds] == (made.mask.sum(dim=1) - 2).tolist()
    # A picture is 6 tokens between its two marks of the text encoder.
    assert [each.count(pictures.VIDEO) for each in kinds] == [8, 8]


@torch.no_grad()
def test_a_caption_that_its_pictures_leave_no_room_is_refused(place):
    encoder = text_encoder(place, max_length=24)
    shown = torch.zeros(1, 1, 64, 160, 3, dtype=torch.uint8)
    with refused("text-length-too-small", "text_encoder.max_length", says="24.*set it to 256"):
        encoder.encode([PROMPT], [shown])


@torch.no_grad()
def test_a_caption_has_room_where_its_pictures_and_their_marks_fit_and_no_less(place):
    """One token fewer would cut off its end, which nobody would see."""
    encoder, shown = text_encoder(place), torch.zeros(1, 1, 64, 96, 3, dtype=torch.uint8)
    encoder.max_length = needed = int(encoder.encode([PROMPT], [shown]).mask.sum())
    assert encoder.encode([PROMPT], [shown]).mask.all()
    encoder.max_length = needed - 1
    with refused("text-length-too-small", "text_encoder.max_length", says=f"a caption has {needed} tokens"):
        encoder.encode([PROMPT], [shown])


def test_patches_of_a_clip_hold_the_pixels_of_two_frames(place):
    """A patch has, by channel, its pixels of one frame and then those of the next; the last frame fills up."""
    own = pictures.load(None, str(place))
    frames = np.random.default_rng(0).integers(0, 256, (3, 64, 96, 3), dtype=np.uint8)
    pixels, grid = own.clip(list(frames))
    assert grid.tolist() == [[2, 4, 6]]
    mean, std = (np.array(getattr(own._prepare, name)) for name in ("image_mean", "image_std"))
    normal = (np.concatenate([frames, frames[-1:]]) / 255 - mean) / std
    at = 0
    for t in range(2):
        for square in range(6):  # squares of 2 × 2 patches, row by row
            for patch in range(4):
                down, right = square // 3 * 2 + patch // 2, square % 3 * 2 + patch % 2
                part = normal[2 * t : 2 * t + 2, down * 16 : down * 16 + 16, right * 16 : right * 16 + 16]
                expected = torch.from_numpy(part.transpose(3, 0, 1, 2).reshape(-1)).float()
                torch.testing.assert_close(pixels[at], expected, rtol=1e-4, atol=1e-4)
                at += 1


@pytest.mark.parametrize("size", [(3, 64, 96), (10, 768, 1344), (4, 32, 32)])
def test_clips_are_prepared_as_by_the_release(place, size):
    """The processor of transformers makes the same patches, but for how it rounds pixels that it resizes."""
    pytest.importorskip("torchvision")
    limits = {"shortest_edge": 16_384, "longest_edge": 1_000_000}
    theirs = transformers.Qwen3VLVideoProcessor(size=limits, cap_pixels_per_frame=False)
    own = pictures.load(None, str(place))
    own = pictures.SeenPictures(
        transformers.Qwen2VLImageProcessorPil(
            patch_size=16, image_mean=theirs.image_mean, image_std=theirs.image_std, size=minimax_h3_release.SIDES
        ),
        (limits["shortest_edge"], limits["longest_edge"]),
    )
    rough = np.random.default_rng(0).integers(0, 256, (size[0], 8, 8, 3), dtype=np.uint8)
    frames = [np.array(Image.fromarray(each).resize(size[:0:-1], Image.Resampling.BICUBIC)) for each in rough]
    made = theirs(videos=[np.stack(frames)], do_sample_frames=False, return_tensors="pt")
    pixels, grid = own.clip(frames)
    assert torch.equal(grid, made["video_grid_thw"])
    torch.testing.assert_close(pixels, made["pixel_values_videos"], rtol=0, atol=0.02)


@pytest.mark.slow
def test_previews_need_what_is_shown(place):
    """A first frame and a last one are asked for, and a network of references refuses a first frame."""
    blank = np.zeros((1, 64, 96, 3), np.uint8)
    with pytest.raises(UserError, match="from their first and last frames"):
        our_call(place, "minimax-h3-flf2v-tiny", {"reference": blank})
    with pytest.raises(UserError, match="takes no condition frames"):
        our_call(place, "minimax-h3-ref-tiny", {"reference": blank}, {"source": str(place / "first.png")})
