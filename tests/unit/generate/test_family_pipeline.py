"""Families of diffusers are generated with by their own pipelines, around what we hold."""

import contextlib
import dataclasses
import functools
import inspect
import shutil
from types import SimpleNamespace

import diffusers
import numpy as np
import pytest
import tiny_families
import tiny_recipe
import torch
import transformers
from diffusers.models.transformers import transformer_cosmos
from refused import refused
from unrounded import Unrounded

from reelworks.core.shape import Shape
from reelworks.inference.generate import diffusers_pipeline, pipeline
from reelworks.inference.generate.conditions import Conditions
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.models import registry
from reelworks.models.objectives import rectified_flow
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.models.objectives.samplers import flow
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.models.text import encoders
from reelworks.training.assembly import build
from reelworks.training.recipe import recipe_file

PROMPT = "two cats sit on a wall in the sun"
CPU = torch.device("cpu")
# How the pipelines are called by hand; guidance is 3.
CALLS = {
    "wan-tiny": {"guidance_scale": 3.0, "max_sequence_length": 12, "num_frames": 5},
    "chroma-tiny": {"guidance_scale": 3.0, "max_sequence_length": 12},
    "flux-tiny": {"guidance_scale": 3.0, "max_sequence_length": 12},
    "flux2-tiny": {"guidance_scale": 3.0},
    "flux2-klein-tiny": {"guidance_scale": 3.0},
    "qwen-image-tiny": {"true_cfg_scale": 3.0},
    "lumina-image-2.0-tiny": {"guidance_scale": 3.0},
    "z-image-tiny": {"guidance_scale": 2.0, "max_sequence_length": 64},
    "ernie-image-tiny": {"guidance_scale": 3.0},
    "kandinsky5-tiny": {"guidance_scale": 3.0, "num_frames": 5},
    "krea2-tiny": {"guidance_scale": 2.0},  # counted from 0
    "ltx-tiny": {"guidance_scale": 3.0, "max_sequence_length": 12, "num_frames": 9, "frame_rate": 12.0},
    "hunyuan-image-2.1-tiny": {},
    "hunyuan-video-1.5-tiny": {"num_frames": 5},
    "sana-video-tiny": {
        **{"guidance_scale": 3.0, "max_sequence_length": 12},
        **{"frames": 5, "use_resolution_binning": False},
    },
    "sd1.5-tiny": {"guidance_scale": 3.0},
    "sdxl-tiny": {"guidance_scale": 3.0},
    "sd3-tiny": {"guidance_scale": 3.0, "max_sequence_length": 12},
}
# The others take as long again.
_QUICK = ("wan-tiny", "flux-tiny", "qwen-image-tiny", "ltx-tiny", "hunyuan-video-1.5-tiny", "sdxl-tiny")


def options_for(name, **changes):
    shape = Shape(CALLS[name].get("num_frames", CALLS[name].get("frames", 1)), 32, 64)
    return GenerateOptions(shape, 12.0, 3, 3.0, seed=5, **changes)


def recipe_for(name, place, **tables):
    values = tiny_families.recipe_of(name, place)
    for key, changes in tables.items():
        values[key] = {**values.get(key, {}), **changes}
    if name.startswith(("sd1", "sdxl")):
        values.setdefault("objective", {"name": "epsilon"})
    return recipe_file.parse(
        tiny_recipe.least(
            bucket=[{"resolution": "64px", "num_frames": 1, "batch_size": 1}], precision={"compute": "float32"}
        )
        | values
    )


def made_by(recipe, options):
    boundary = DtypeBoundary(build.denoiser(recipe, CPU))
    return diffusers_pipeline.generate(recipe, boundary, build.encoder(recipe, CPU), [PROMPT], options)


def by_hand(name, place, **settings):
    kind = getattr(diffusers, registry.TEXT_ENCODERS[registry.PRESETS[name].parts.text].pipeline)
    unused = dict.fromkeys({"text_processor"} & set(kind._get_signature_keys(kind)[0]))
    pipeline = kind.from_pretrained(place, **settings, **unused)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def words_of(name):
    """What a family says that its pipeline needs beside a prompt."""
    network = registry.load_network(registry.family_of(name))
    return network.word_arguments(registry.PRESETS[name].config, 0)


def call(name, pipeline):
    if name == "chroma-tiny":  # in its pipeline masks are numbers, which attention adds, so that nothing is masked
        numbers = pipeline._prepare_attention_mask
        pipeline._prepare_attention_mask = lambda **masks: numbers(**masks).bool()
    if "guider" in pipeline.components:
        pipeline.guider = pipeline.guider.new(guidance_scale=3.0)
    with Unrounded() if name == "kandinsky5-tiny" else contextlib.nullcontext():
        frames = pipeline(
            prompt=PROMPT,
            height=32,
            width=64,
            num_inference_steps=3,
            generator=torch.Generator().manual_seed(5),
            output_type="np",
            return_dict=False,
            **words_of(name) | CALLS[name],
        )[0]
    return (frames.reshape(-1, 32, 64, 3) * 255).round().astype(np.uint8)


def distance(one, other):
    assert one.shape == other.shape
    return np.abs(one.astype(int) - other.astype(int)).max()


@pytest.fixture
def exact_texts(monkeypatch):
    """Encoders in float32 for once, as the pipelines hold theirs here."""
    monkeypatch.setitem(encoders.load_pipeline.__kwdefaults__, "dtype", torch.float32)
    exact = encoders.CONTRACT.__class__(torch.float32, torch.float32, None, None, torch.float32, {})
    monkeypatch.setattr(encoders.FamilyTextEncoder, "contract", exact)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Folders of families, each written once."""
    found = {}

    def place(name):
        if name not in found:
            settings = {"expand_timesteps": True} if name == "wan-tiny" else {}
            found[name] = tiny_families.write(name, tmp_path_factory.mktemp(name), **settings)
        return found[name]

    return place


@pytest.mark.filterwarnings("ignore:__array__ implementation")
@pytest.mark.usefixtures("exact_texts")
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in _QUICK else pytest.mark.slow) for n in CALLS])
@pytest.mark.quick_cases(1)
def test_a_clip_is_what_the_familys_pipeline_makes_by_hand(name, places):
    """From the same folder, words and seed the same clip comes: texts, noise, scheduler, guidance and sizes agree."""
    place = places(name)
    made = made_by(recipe_for(name, place), options_for(name))
    pipeline = by_hand(name, place)
    assert made.by == f"{type(pipeline).__name__} with {type(pipeline.scheduler).__name__} of the weights"
    theirs = call(name, pipeline)
    assert theirs.std() > 0
    assert distance(made.clips[0], theirs) <= 1


@pytest.mark.filterwarnings("ignore:__array__ implementation")
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.quick_cases(6)
def test_a_guidance_scale_of_1_is_none_in_every_pipeline(name, places):
    """A picture goes through the network once a step, also where the pipeline itself counts from 0."""
    recipe, options = recipe_for(name, places(name)), options_for(name)
    denoiser, seen = build.denoiser(recipe, CPU), []
    denoiser.module.register_forward_pre_hook(
        lambda m, args, kwargs: seen.append(len(args[0] if args else kwargs["hidden_states"])), with_kwargs=True
    )
    options = dataclasses.replace(options, guidance_scale=1.0)
    made = diffusers_pipeline.generate(recipe, DtypeBoundary(denoiser), build.encoder(recipe, CPU), [PROMPT], options)
    assert (made.by.startswith("the own sampler"), sum(seen)) == (False, 3)


@pytest.mark.filterwarnings("ignore:__array__ implementation")
@pytest.mark.parametrize("sampler", ["pipeline", "own"])
@pytest.mark.parametrize(("field", "what"), [("model", "latents"), ("autoencoder", "decoded frames")])
def test_a_clip_of_no_numbers_is_refused_rather_than_black(places, sampler, field, what):
    recipe = recipe_for("flux-tiny", places("flux-tiny"))
    denoiser, encoder = build.denoiser(recipe, CPU), build.encoder(recipe, CPU)
    broken = denoiser.module.proj_out if field == "model" else encoder.autoencoder.module.decoder.conv_out
    torch.nn.init.constant_(broken.bias, torch.nan)
    with refused("frames-not-finite", field, says=f"{what} hold infinities or NaN"):
        diffusers_pipeline.generate(
            recipe, DtypeBoundary(denoiser), encoder, [PROMPT], options_for("flux-tiny", sampler=sampler)
        )


def test_lowered_products_keep_latents_and_times_exact(places):
    """In bfloat16 the clip is about the same; the network is given float32 and answers in it, and is left as it was."""
    place, options = places("flux-tiny"), options_for("flux-tiny")
    recipe = recipe_for("flux-tiny", place, precision={"compute": "bfloat16"})
    denoiser, seen = build.denoiser(recipe, CPU), []
    denoiser.module.proj_out.register_forward_hook(lambda m, args, out: seen.append(out.dtype))
    denoiser.module.register_forward_pre_hook(
        lambda m, args, kwargs: seen.append((kwargs["hidden_states"].dtype, kwargs["timestep"].dtype)), with_kwargs=True
    )
    encoder = build.encoder(recipe, CPU)
    lowered = diffusers_pipeline.generate(recipe, DtypeBoundary(denoiser), encoder, [PROMPT], options)
    assert set(seen) == {torch.bfloat16, (torch.float32, torch.float32)}
    exact = made_by(recipe_for("flux-tiny", place), options)
    assert 0 < np.abs(lowered.clips[0].astype(int) - exact.clips[0]).mean() < 2
    assert "forward" not in vars(denoiser.module)


# One whose sampler is our own, one of UNets, one of clips and one of pictures; the other pipelines cast alike.
_NARROW = ("flux-tiny", "hunyuan-video-1.5-tiny", "sdxl-tiny", "wan-tiny")


@pytest.mark.filterwarnings("ignore:__array__ implementation")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in _NARROW else pytest.mark.slow) for name in CALLS]
)
@pytest.mark.slow
def test_a_narrow_base_and_autoencoder_draw_about_the_same(name, places):
    """Stored in bfloat16, as below a LoRA, they go into every pipeline too; where latents would be rounded, none is taken."""
    place, options = places(name), options_for(name)
    narrow = {"autoencoder": {"dtype": "bfloat16"}, "lora": {"rank": 2}, "precision": {"compute": "bfloat16"}}
    made = made_by(recipe_for(name, place, **narrow), options)
    own = name.startswith(("hunyuan", "ernie", "kandinsky"))
    assert made.by.startswith("the own sampler (the family's pipeline would round") == own
    exact = made_by(recipe_for(name, place), dataclasses.replace(options, sampler="own" if own else None))
    assert np.abs(made.clips[0].astype(int) - exact.clips[0]).mean() < 4


def test_without_a_scheduler_beside_the_weights_it_is_the_recipes(places):
    """From one file of weights the scheduler is a plain one that shifts as the recipe trains."""
    place = places("flux-tiny")
    file = next((place / "transformer").glob("*.safetensors"))
    options = options_for("flux-tiny")
    made = {}
    for shift in (1.0, 3.0):
        recipe = recipe_for("flux-tiny", place, model={"weights": str(file)}, objective={"timestep_shift": shift})
        made[shift] = made_by(recipe, options)
        assert made[shift].by == "FluxPipeline with FlowMatchEulerDiscreteScheduler of the recipe"
    beside = made_by(recipe_for("flux-tiny", place), options)  # its shift is 3
    assert np.array_equal(made[3.0].clips[0], beside.clips[0])
    assert not np.array_equal(made[1.0].clips[0], beside.clips[0])


@pytest.mark.filterwarnings("ignore:__array__ implementation")
def test_the_scheduler_reads_what_the_recipe_trained(places):
    """A network that was trained to predict v is read so, whatever the folder's scheduler says."""
    place, options = places("sdxl-tiny"), options_for("sdxl-tiny")
    made = made_by(recipe_for("sdxl-tiny", place, objective={"name": "v-prediction"}), options)
    pipeline = by_hand("sdxl-tiny", place)
    pipeline.scheduler = pipeline.scheduler.from_config(pipeline.scheduler.config, prediction_type="v_prediction")
    assert distance(made.clips[0], call("sdxl-tiny", pipeline)) <= 8  # texts are rounded
    assert distance(made.clips[0], call("sdxl-tiny", by_hand("sdxl-tiny", place))) > 30


@pytest.mark.filterwarnings("ignore:__array__ implementation")
def test_the_scheduler_begins_at_pure_noise_where_the_recipe_trained_it(places):
    """The scheduler of the weights, and one that takes the place of a kind without that step, are rescaled."""
    place, options = places("sdxl-tiny"), options_for("sdxl-tiny")
    rescaled = {"prediction_type": "v_prediction", "rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
    recipe = recipe_for("sdxl-tiny", place, objective={"name": "v-prediction", "zero_terminal_snr": True})
    made = made_by(recipe, options)
    pipeline = by_hand("sdxl-tiny", place)
    pipeline.scheduler = pipeline.scheduler.from_config(pipeline.scheduler.config, **rescaled)
    assert distance(made.clips[0], call("sdxl-tiny", pipeline)) <= 8  # texts are rounded
    (copy := place.with_name("pndm")).mkdir()
    shutil.copytree(place, copy, dirs_exist_ok=True)
    diffusers.PNDMScheduler().save_pretrained(copy / "scheduler")
    other = recipe_for("sdxl-tiny", copy, objective={"name": "v-prediction", "zero_terminal_snr": True})
    assert made_by(other, options).by == "StableDiffusionXLPipeline with EulerDiscreteScheduler of the weights"


def test_where_no_pipeline_can_our_sampler_does_and_says_why(places):
    """Embedded encoders, given frames, other outputs and an own wish are named; asking for a pipeline then fails."""
    place = places("wan-tiny")
    recipe = recipe_for("wan-tiny", place)
    boundary = DtypeBoundary(build.denoiser(recipe, CPU))
    options = options_for("wan-tiny")
    assert diffusers_pipeline.why_not(recipe, boundary, options) is None
    given = options_for("wan-tiny", conditions=Conditions(np.zeros((1, 32, 64, 3), np.uint8)))
    assert diffusers_pipeline.why_not(recipe, boundary, given) == "the clip begins or ends with condition frames"
    sample = recipe_for("wan-tiny", place, objective={"prediction": "sample"})
    assert "velocity" in diffusers_pipeline.why_not(sample, boundary, options)
    hashed = recipe_file.parse(recipe.model_dump() | {"text_encoder": {"name": "hashed", "dim": 32}})
    assert "of the family" in diffusers_pipeline.why_not(hashed, boundary, options)
    own = recipe_file.parse(hashed.model_dump() | {"model": {"name": "stdit3-tiny"}})
    assert diffusers_pipeline.why_not(own, boundary, options) == "stdit3-tiny has no pipeline"
    with refused("no-pipeline", "--sampler"):
        made_by(hashed, options_for("wan-tiny", sampler="pipeline"))
    assert made_by(recipe, options_for("wan-tiny", sampler="own")).by == "the own sampler"
    assert made_by(hashed, options).by.startswith("the own sampler (pipelines go with")


@pytest.mark.usefixtures("exact_texts")
@pytest.mark.parametrize(
    ("preset", "words", "layers"),
    [
        ("qwen-image-tiny", "txt_in", ("to_out", "add_v", "proj_out")),
        ("lumina-image-2.0-tiny", "time_caption_embed.caption_embedder.1", ("to_out", "linear_2")),
    ],
)
def test_our_sampler_keeps_the_length_of_what_guidance_makes_where_the_pipeline_does(places, preset, words, layers):
    """Edits have our sampler alone; at this scale, for networks that words move, plain guidance is 26 levels away."""
    shifted = {"timestep_shift": 3.0}  # as the scheduler of the weights
    recipe, made = recipe_for(preset, places(preset), objective=shifted), {}
    for sampler in ("own", "pipeline"):
        denoiser = build.denoiser(recipe, CPU)
        with torch.no_grad():
            denoiser.module.get_submodule(words).weight.mul_(30)
            for name, parameter in denoiser.module.named_parameters():
                parameter.mul_(3 if any(part in name for part in layers) else 1)
        options = dataclasses.replace(options_for(preset, sampler=sampler), guidance_scale=40.0)
        encoder = build.encoder(recipe, CPU)
        made[sampler] = diffusers_pipeline.generate(recipe, DtypeBoundary(denoiser), encoder, [PROMPT], options)
    assert distance(made["own"].clips[0], made["pipeline"].clips[0]) <= 1


@pytest.mark.parametrize(("name", "only_shorter"), [("LongCatImagePipeline", True), ("QwenImagePipeline", False)])
def test_lengths_of_guided_tokens_are_those_of_the_pipelines(name, only_shorter):
    """LongCat-Image's takes no embedded texts: its rule, on tokens that it packs itself."""
    random = torch.Generator().manual_seed(1)
    both = torch.randn(2, 16, 1, 6, 8, generator=random, dtype=torch.float64)
    both[0] = both[1] + 0.05 * both[0]  # so that guidance makes some tokens longer and some shorter
    pack = getattr(diffusers, name)._pack_latents
    text, bare = (pack(v, 1, 16, 6, 8) for v in both[:, :, 0].split(1))
    plain = bare + 3 * (text - bare)
    ratio = text.norm(dim=-1, keepdim=True) / plain.norm(dim=-1, keepdim=True)
    assert ratio.min() < 1 < ratio.max()
    wanted = plain * (ratio.clamp(max=1) if only_shorter else ratio)
    for guided in flow.guided_at_length(both, 3.0, "limited" if only_shorter else "kept")[:, :, 0].split(1):
        torch.testing.assert_close(pack(guided, 1, 16, 6, 8).double(), wanted, rtol=1e-5, atol=1e-6)


def test_lengths_are_those_of_velocities_whatever_the_network_predicts():
    """One step from noise to data, by a network that predicts the data."""
    random = torch.Generator().manual_seed(1)
    noise, both = torch.randn(3, 4, 1, 4, 4, generator=random).split([1, 2])
    options = GenerateOptions(Shape(1, 32, 32), 12.0, 1, 4.0, seed=5)
    of_data = ObjectiveConfig(prediction="sample")
    clip = SimpleNamespace(_objective=of_data, _options=options, _of_clip=(1, 4, 4))
    made = pipeline._Generation._sampled_alone(clip, lambda *_: both, noise, None, "kept")
    velocity = rectified_flow.velocity_from(both, torch.cat([noise, noise]), torch.full((2,), 1000.0), "sample")
    wanted = noise + flow.guided_at_length(velocity, 4.0, "kept")[:1]
    torch.testing.assert_close(made, wanted)


def test_a_predicted_clip_and_its_sound_are_where_their_velocities_lead_from_their_own_timesteps():
    random = torch.Generator().manual_seed(1)
    noisy, predicted = (tuple(torch.randn(2, 2, 4, 3, 1, 1, generator=random)) for _ in range(2))
    times = torch.tensor([900.0, 900.0]), torch.tensor([600.0, 600.0])
    clip = SimpleNamespace(
        _objective=ObjectiveConfig(prediction="sample"),
        _device=torch.device("cpu"),
        _inputs=lambda *_, sound: sound,
        _boundary=SimpleNamespace(both=lambda _: predicted),
    )
    for start, velocity, t_B, end in zip(
        noisy, pipeline._Generation._both(clip, *noisy, *times, None), times, predicted, strict=True
    ):
        torch.testing.assert_close(start + velocity * t_B[0] / 1000, end)


def test_ltx_2_makes_frames_without_sound(places):
    """From the folder of a whole pipeline with sound, frames alone are made, by our own sampler, which says why."""
    options = GenerateOptions(Shape(9, 64, 64), 12.0, 2, 3.0, seed=5)
    made = made_by(recipe_for("ltx-2-tiny", places("ltx-2-tiny")), options)
    assert made.by == "the own sampler (the family's pipeline draws its own noise for the sound)"
    assert made.clips[0].shape == (9, 64, 64, 3)
    assert made.clips[0].std() > 0


def test_flux_3_is_sampled_by_our_own_sampler(places):
    """A modular pipeline encodes its texts, and does not draw."""
    options = GenerateOptions(Shape(1, 64, 32), 12.0, 2, 3.0, seed=5)
    made = made_by(recipe_for("flux3-tiny", places("flux3-tiny")), options)
    assert made.by == "the own sampler (the family has a modular pipeline only)"
    assert made.clips[0].std() > 0


@pytest.mark.usefixtures("exact_texts")
@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_longcat_image_is_sampled_by_our_own_sampler(places, scale):
    """As its pipeline draws by hand, which limits the length of what guidance makes; the network is one that words move."""
    place = places("longcat-image-tiny")
    options = GenerateOptions(Shape(1, 32, 64), 12.0, 3, scale, seed=5)
    recipe = recipe_for("longcat-image-tiny", place, objective={"timestep_shift": 3.0})
    denoiser, pipeline = build.denoiser(recipe, CPU), by_hand("longcat-image-tiny", place)
    with torch.no_grad():
        for network in (denoiser.module, pipeline.transformer):
            network.context_embedder.weight.mul_(30)
    encoder = build.encoder(recipe, CPU)
    made = diffusers_pipeline.generate(recipe, DtypeBoundary(denoiser), encoder, [PROMPT], options)
    assert made.by == "the own sampler (the family's pipeline takes no texts that are embedded already)"
    theirs = pipeline(
        prompt=PROMPT,
        height=32,
        width=64,
        num_inference_steps=3,
        guidance_scale=scale,
        **words_of("longcat-image-tiny"),
        generator=torch.Generator().manual_seed(5),
        output_type="np",
        return_dict=False,
    )[0]
    theirs = (theirs * 255).round().astype(np.uint8)
    assert theirs.std() > 0
    assert distance(made.clips[0], theirs) <= 1


@pytest.mark.usefixtures("exact_texts")
def test_our_own_sampler_draws_what_lumina_does_without_guidance(places):
    """The pipeline's guidance keeps a length that ours does not."""
    place = places("lumina-image-2.0-tiny")
    recipe = recipe_for("lumina-image-2.0-tiny", place, objective={"timestep_shift": 3.0})
    options = dataclasses.replace(options_for("lumina-image-2.0-tiny"), guidance_scale=1.0)
    made = [made_by(recipe, dataclasses.replace(options, sampler=sampler)).clips[0] for sampler in ("own", "pipeline")]
    assert distance(*made) <= 1


@pytest.mark.usefixtures("exact_texts")
@pytest.mark.parametrize("size", [(32, 64), (64, 64)])
@pytest.mark.quick_cases(1)
def test_hidream_is_sampled_by_our_own_sampler(places, size):
    """Its pipeline draws one area only; told another one, it draws the same, square or filled up."""
    place, (height, width) = places("hidream-i1-tiny"), size
    options = GenerateOptions(Shape(1, height, width), 12.0, 3, 3.0, seed=5)
    made = made_by(recipe_for("hidream-i1-tiny", place, objective={"timestep_shift": 3.0}), options)
    assert made.by == "the own sampler (the family's pipeline draws pictures of one area only)"
    pipeline = by_hand("hidream-i1-tiny", place)
    pipeline.transformer.eval()
    pipeline.default_sample_size = (height * width + 1) ** 0.5 / 8
    theirs = pipeline(
        PROMPT,
        height=height,
        width=width,
        sigmas=[1, 2 / 3, 1 / 3],  # as our own are
        guidance_scale=3.0,
        max_sequence_length=12,
        generator=torch.Generator().manual_seed(5),
        output_type="np",
        return_dict=False,
    )[0]
    theirs = (theirs * 255).round().astype(np.uint8)
    assert theirs.std() > 0
    assert distance(made.clips[0], theirs) <= 1


@pytest.mark.usefixtures("exact_texts")
def test_pictures_of_kandinsky_5_are_sampled_by_our_own_sampler(places):
    """Its pipeline draws seven sizes only; from the same noise the picture is that of the pipeline, told another size."""
    place = places("kandinsky5-image-tiny")
    options = GenerateOptions(Shape(1, 32, 64), 12.0, 3, 3.0, seed=5)
    made = made_by(recipe_for("kandinsky5-image-tiny", place, objective={"timestep_shift": 3.0}), options)
    assert made.by == "the own sampler (the family's pipeline draws pictures of seven sizes only)"
    pipeline = by_hand("kandinsky5-image-tiny", place)
    pipeline.resolutions = [(64, 32)]
    steps = functools.partial(pipeline.scheduler.set_timesteps, sigmas=[1, 2 / 3, 1 / 3])  # as our own are
    pipeline.scheduler.set_timesteps = steps
    noise = torch.randn(1, 16, 1, 4, 8, generator=torch.Generator().manual_seed(5))
    settings = {"num_inference_steps": 3, "guidance_scale": 3.0, "latents": noise.permute(0, 2, 3, 4, 1).contiguous()}
    with Unrounded():
        theirs = pipeline(PROMPT, height=32, width=64, output_type="np", return_dict=False, **settings)[0]
    theirs = (theirs * 255).round().astype(np.uint8)
    assert theirs.std() > 0
    assert distance(made.clips[0], theirs) <= 1


def resized(picture, size, interpolation):
    """What torchvision does with the mask of a picture, which diffusers asks it for."""
    return torch.nn.functional.interpolate(picture, size=size, mode=interpolation)


@pytest.mark.usefixtures("exact_texts")
def test_anima_is_drawn_as_its_modular_pipeline_draws(places, monkeypatch):
    """The blocks of diffusers make the same picture of the same folder, words, seed, steps and guidance."""
    place = places("anima-tiny")
    recipe = recipe_for("anima-tiny", place, objective={"timestep_shift": 3.0})
    made = made_by(recipe, GenerateOptions(Shape(1, 32, 64), 12.0, 3, 4.0, seed=5))
    assert made.by == "the own sampler (the family has a modular pipeline only)"
    nearest = SimpleNamespace(
        functional=SimpleNamespace(resize=resized), InterpolationMode=SimpleNamespace(NEAREST="nearest")
    )
    monkeypatch.setattr(transformer_cosmos, "transforms", nearest, raising=False)
    pipeline = diffusers.AnimaAutoBlocks().init_pipeline()
    words = transformers.AutoTokenizer.from_pretrained
    pipeline.update_components(
        text_encoder=transformers.Qwen3Model.from_pretrained(place / "text_encoder"),
        tokenizer=words(place / "tokenizer"),
        t5_tokenizer=words(place / "t5_tokenizer"),
        text_conditioner=diffusers.AnimaTextConditioner.from_pretrained(place / "text_conditioner"),
        transformer=diffusers.CosmosTransformer3DModel.from_pretrained(place / "transformer"),
        vae=diffusers.AutoencoderKLQwenImage.from_pretrained(place / "vae"),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler.from_pretrained(place / "scheduler"),
    )
    generator = torch.Generator().manual_seed(5)
    sizes = {"height": 32, "width": 64, "num_inference_steps": 3, "max_sequence_length": 12}
    (theirs,) = pipeline(prompt=PROMPT, generator=generator, output_type="np", output="images", **sizes)
    assert theirs.std() > 0
    assert distance(made.clips[0][0], (theirs * 255).round().astype(np.uint8)) <= 1


def test_sizes_that_a_pipeline_would_round_are_refused(places):
    """A height of half a patch is told, not lowered."""
    recipe = recipe_for("wan-tiny", places("wan-tiny"))
    options = GenerateOptions(Shape(5, 40, 64), 12.0, 1, 1.0, seed=0)
    with refused("size-not-a-multiple", "--height", says="--height = 40.*multiples of 16"):
        made_by(recipe, options)


def test_usual_guidance_and_steps_are_the_defaults_of_the_pipelines():
    """What is known of released models is what diffusers takes where nobody says it."""
    # Those whose releases say it otherwise, and those without a pipeline.
    released = (
        *("flux-schnell", "flux2-klein-4b", "flux2-klein-9b", "krea2-turbo", "z-image-turbo"),
        *(
            "hunyuan-image-2.1",
            "hunyuan-video-1.5",
            "ideogram-4",
            "hidream-i1-dev",
            "hidream-i1-fast",
            "lumina-image-2.0",
        ),
        "ernie-image-turbo",
        *("qwen-image-edit-2509", "qwen-image-edit-2511", "qwen-image-edit-plus", "opensora2"),
        *("qwen-image-2.1-turbo", "ltx-2.5-distilled"),
    )
    for name in (
        name for name in registry.PRESETS if not name.startswith((*released, "stdit", "anima", "flux3", "minimax-h3"))
    ):
        kind = getattr(diffusers, registry.TEXT_ENCODERS[registry.PRESETS[name].parts.text].pipeline)
        defaults = inspect.signature(kind.__call__).parameters
        guidance = "true_cfg_scale" if name.startswith("qwen-image") else "guidance_scale"
        from_zero = 1 if name.startswith(("krea2", "z-image")) else 0  # their pipelines count guidance from 0
        theirs = (defaults[guidance].default + from_zero, defaults["num_inference_steps"].default)
        assert registry.PRESETS[name].sampling[:2] == theirs, name


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_a_clip_and_its_sound_are_guided_alike(scale):
    """Velocities of the caption are 1, and those without it 0; a step of all noise is as long as the way."""
    track = SimpleNamespace(
        latent_shape=lambda _: (1, 2, 1, 1),
        config=SimpleNamespace(timestep_shift=None),
        samples=lambda heard: (heard[:, 0], 8_000),
    )

    def both(z_2B, sound_2B, *_):
        return tuple(
            torch.cat([torch.ones_like(half := each[:1]), torch.zeros_like(half)]) for each in (z_2B, sound_2B)
        )

    clip = SimpleNamespace(
        _encoder=SimpleNamespace(sound=SimpleNamespace(at_rate=lambda _: track)),
        _options=GenerateOptions(Shape(1, 32, 32), 12.0, 1, scale, seed=5),
        _objective=ObjectiveConfig(timestep_shift=1.0),
        _of_clip=(1, 4, 4),
        _draw=torch.zeros,
        _both=both,
        sounds=[],
    )
    made = pipeline._Generation._sampled(clip, torch.zeros(1, 4, 1, 4, 4), None)
    assert (made.unique().tolist(), np.unique(clip.sounds[0].samples).tolist()) == ([scale], [scale])
