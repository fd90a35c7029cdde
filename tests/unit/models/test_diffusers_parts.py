"""Weights and text encoders of diffusers' families load from its folders and do as its pipelines do."""

import diffusers
import pytest
import tiny_families
import torch
from refused import refused
from safetensors.torch import load_file, save_file

from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.models import components, factory
from reelworks.models.config import AutoencoderConfig, ModelConfig, TextEncoderConfig
from reelworks.models.objectives.samplers import flow
from reelworks.testing import contract
from reelworks.training.encoding.encoders import FrozenEncoders

LINES = tiny_families.LINES
MODEL_OF = {"flux": "flux-tiny", "wan": "wan-tiny"}
AUTOENCODER_OF = {"flux": "flux", "wan": "wan-2.1"}


@pytest.fixture(scope="module")
def flux(tmp_path_factory):
    return tiny_families.write("flux-tiny", tmp_path_factory.mktemp("flux"))


@pytest.fixture(scope="module")
def wan(tmp_path_factory):
    return tiny_families.write("wan-tiny", tmp_path_factory.mktemp("wan"))


def text_of(name, place, **sizes):
    return factory.build_text_encoder(TextEncoderConfig(name=name, weights=str(place), dim=32, max_length=12, **sizes))


def autoencoder_of(name, place):
    return AutoencoderConfig(name=AUTOENCODER_OF[name], weights=str(place))


def test_captions_become_what_the_pipelines_make_of_them(flux, wan):
    """Tokens, masks and summaries are the pipelines' own, at a fixed length, and widths are checked."""
    made = text_of("flux", flux, pooled_dim=16).encode(LINES)
    pipeline = diffusers.FluxPipeline.from_pretrained(flux, transformer=None, vae=None, dtype=torch.bfloat16)
    with torch.no_grad():
        tokens, pooled, _ = pipeline.encode_prompt(LINES, LINES, max_sequence_length=12)
    assert torch.equal(made.tokens, tokens.float())
    assert torch.equal(made.pooled, pooled.float())
    assert made.mask.all()
    with pytest.raises(UserError, match=r"text_encoder\.pooled_dim = 768"):
        text_of("flux", flux)

    encoder = text_of("wan", wan)
    made = encoder.encode([*LINES, ""])
    assert made.tokens.shape == (4, 12, 32)
    assert made.pooled.shape == (4, 0)
    assert made.mask.sum(1)[3] == 1
    assert not made.tokens[~made.mask].any()
    assert torch.equal(encoder.encode(["waves"]).tokens[0], made.tokens[2])
    assert encoder.unseen(LINES[0]) > 0 == encoder.unseen("waves")


def test_generating_is_what_the_pipeline_does(flux):
    """From the same noise, text and steps the same picture comes: signs, packing, times, guidance and units agree."""
    text = text_of("flux", flux, pooled_dim=16)
    denoiser = factory.build_denoiser(
        ModelConfig(name="flux-tiny", weights=str(flux)),
        autoencoder=autoencoder_of("flux", flux),
        text=TextEncoderConfig(name="flux", weights=str(flux), dim=32, pooled_dim=16),
        device="cpu",
        seed=0,
    )
    encoder = FrozenEncoders(factory.build_autoencoder(autoencoder_of("flux", flux)), text, torch.device("cpu"))
    made = text.encode(LINES[:1])
    noise = torch.randn(1, 16, 1, 4, 6, generator=torch.Generator().manual_seed(0))
    base = contract.example(Shape(1, 4, 6), "flux-tiny", batch=2)

    def velocity(z, t, _mask):
        values = {**vars(base), "latent": z, "time": t, "guidance": torch.full((2,), 3.5)}
        values |= {"text": made.tokens.expand(2, -1, -1), "pooled": made.pooled.expand(2, -1)}
        return denoiser.predict(type(base)(**values))

    with torch.no_grad():
        ours = flow.sample_flow(velocity, noise, num_steps=3, guidance_scale=1.0)
    plain = diffusers.FlowMatchEulerDiscreteScheduler(shift=1.0)
    pipeline = diffusers.FluxPipeline.from_pretrained(flux, scheduler=plain)
    pipeline.set_progress_bar_config(disable=True)
    theirs = pipeline(
        prompt_embeds=made.tokens,
        pooled_prompt_embeds=made.pooled,
        latents=pipeline._pack_latents(noise[:, :, 0], 1, 16, 4, 6),
        height=32,
        width=48,
        num_inference_steps=3,
        guidance_scale=3.5,
        output_type="pt",
    ).images[0]
    frames = encoder.frames(ours, 1)[0, 0].permute(2, 0, 1) / 255
    torch.testing.assert_close(frames, theirs, rtol=0, atol=0.01)


def load(name, source, **neighbours):
    return factory.build_denoiser(
        ModelConfig(name=MODEL_OF[name], weights=source and str(source)),
        autoencoder=AutoencoderConfig(name=AUTOENCODER_OF[name], weights="-"),
        text=TextEncoderConfig(name=name, weights="-", dim=32, **neighbours),
        device="cpu",
        seed=0,
    ).module.state_dict()


def test_weights_come_from_a_pipeline_a_folder_or_a_file(wan, tmp_path):
    """The same weights in any place are the same network."""
    file = next((wan / "transformer").glob("*.safetensors"))
    state = load_file(file)
    for source in (wan, wan / "transformer", file):
        found = load("wan", source)
        assert all(torch.equal(found[key], value) for key, value in state.items())


@pytest.mark.parametrize(
    "scale_of",
    [lambda rows: rows.max(), lambda rows: rows.max().reshape(1), lambda rows: rows, lambda rows: rows[:, None]],
    ids=["scalar", "one", "rows", "column"],
)
def test_fp8_weights_are_multiplied_by_their_scales(wan, tmp_path, scale_of):
    """One scale for a weight, or one for each output row with or without a second axis; precise as far as fp8 goes."""
    state = load_file(next((wan / "transformer").glob("*.safetensors")))
    scaled = {}
    for key, value in state.items():
        if value.ndim == 2 and key.startswith("blocks"):
            scale = scale_of(value.abs().amax(dim=1).clamp(min=1e-6) / 448)
            scaled[key] = (value / (scale[:, None] if scale.shape == value.shape[:1] else scale)).to(
                torch.float8_e4m3fn
            )
            scaled[key.replace(".weight", ".scale_weight")] = scale.contiguous()
        else:
            scaled[key] = value
    save_file(scaled, tmp_path / "fp8.safetensors")
    found = load("wan", tmp_path / "fp8.safetensors")
    for key, value in state.items():
        torch.testing.assert_close(found[key], value, rtol=0.07, atol=float(value.abs().max()) * 0.01)


def test_files_in_the_names_of_the_release_are_read(tmp_path):
    """A file with ComfyUI's prefix and Wan's own names loads to the same network."""
    reference = tiny_families.network("wan-tiny").state_dict()
    save_file(_released_names(reference), tmp_path / "wan.safetensors")
    found = load("wan", tmp_path / "wan.safetensors")
    assert found.keys() == reference.keys()
    assert all(torch.equal(found[key], value) for key, value in reference.items())


def test_a_prefix_alone_is_taken_off(tmp_path):
    """A file with ComfyUI's prefix before the names of diffusers loads too."""
    name = ModelConfig(name="qwen-image-tiny")
    parts = {"autoencoder": AutoencoderConfig(stride=2), "text": TextEncoderConfig(dim=32), "device": "cpu"}
    reference = factory.build_denoiser(name, **parts, seed=1).module.state_dict()
    save_file({f"model.diffusion_model.{k}": v for k, v in reference.items()}, tmp_path / "q.safetensors")
    weights = name.model_copy(update={"weights": str(tmp_path / "q.safetensors")})
    found = factory.build_denoiser(weights, **parts, seed=0).module.state_dict()
    assert all(torch.equal(found[key], value) for key, value in reference.items())


def _released_names(state):
    """Wan's names, from a copy of diffusers' by parts."""
    parts = [
        ("condition_embedder.time_embedder.linear_1", "time_embedding.0"),
        ("condition_embedder.time_embedder.linear_2", "time_embedding.2"),
        ("condition_embedder.text_embedder.linear_1", "text_embedding.0"),
        ("condition_embedder.text_embedder.linear_2", "text_embedding.2"),
        ("condition_embedder.time_proj", "time_projection.1"),
        ("proj_out", "head.head"),
        ("attn1", "self_attn"),
        ("attn2", "cross_attn"),
        ("to_q", "q"),
        ("to_k", "k"),
        ("to_v", "v"),
        ("to_out.0", "o"),
        ("ffn.net.0.proj", "ffn.0"),
        ("ffn.net.2", "ffn.2"),
        ("norm2", "norm3"),
    ]
    renamed = {}
    for key, value in state.items():
        new = "head.modulation" if key == "scale_shift_table" else key.replace("scale_shift_table", "modulation")
        for theirs, released in parts:
            new = new.replace(theirs, released)
        renamed[f"model.diffusion_model.{new}"] = value
    return renamed


@pytest.mark.slow
def test_weights_of_another_model_are_refused(flux, wan):
    """Keys that do not fit are named, whichever way round."""
    with refused("weights-do-not-fit", "model.weights", says="(missing|unexpected)"):
        load("wan", flux)
    with refused("weights-do-not-fit", "model.weights", says="(missing|unexpected)"):
        load("flux", wan, pooled_dim=16)
    with refused("other-text-encoder", "text_encoder.weights"):
        text_of("flux", wan)


def test_what_a_family_needs_is_asked_for():
    """A model that wants a summary refuses a text encoder without; presets keep their sizes."""
    with refused("text-summary-missing", "text_encoder.name"):
        load("flux", None, pooled_dim=0)
    model = ModelConfig(name="wan-tiny", depth=3)
    with refused("sizes-are-fixed", "model.depth"):
        components.resolve_denoiser(
            model, autoencoder=AutoencoderConfig(), text=TextEncoderConfig(), learns_variance=False
        )


@torch.no_grad()
def test_a_control_begins_as_no_change(tmp_path):
    """Weights of the plain network give a control network that answers as they do, whatever the control."""
    plain, i = contract.build("flux-tiny"), contract.example(Shape(1, 4, 6), "flux-control-tiny")
    plain.module.save_pretrained(tmp_path)
    control = factory.build_denoiser(
        ModelConfig(name="flux-control-tiny", weights=str(tmp_path)),
        autoencoder=contract.AUTOENCODER,
        text=contract.TEXT,
        device="cpu",
        seed=0,
    )
    torch.testing.assert_close(control.predict(i), plain.predict(i))
