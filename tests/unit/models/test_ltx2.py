"""LTX-2's frames are trained apart from its sound, in all releases."""

import dataclasses

import diffusers
import pytest
import tiny_families
import torch
import transformers
from diffusers.pipelines import ltx2
from presets import config_of, network_of
from refused import refused
from safetensors.torch import save_file

from reelworks.core.shape import Shape
from reelworks.models import factory
from reelworks.models.adapters import release_layers
from reelworks.models.config import ModelConfig, TextEncoderConfig
from reelworks.models.diffusers_denoiser import FamilyDenoiser
from reelworks.models.families.ltx2 import network
from reelworks.testing import contract

SHAPE = Shape(3, 2, 4)
SMALL = {
    name: config_of("ltx-2-tiny").model_dump()[name]
    for name in (
        "num_attention_heads",
        "attention_head_dim",
        "cross_attention_dim",
        "audio_in_channels",
        "audio_num_attention_heads",
        "audio_attention_head_dim",
        "audio_cross_attention_dim",
    )
}
every_release = pytest.mark.parametrize("name", ["ltx-2", "ltx-2.3", "ltx-2.5"])


def small(name):
    """A release with small widths, random numbers, and two blocks."""
    sizes = {"in_channels": 3, "out_channels": 3, "caption_channels": 32, "num_layers": 2}
    config = config_of(name).model_copy(update=SMALL | sizes)
    torch.manual_seed(0)
    f32 = torch.float32
    return FamilyDenoiser(network_of(config), factory.denoiser_contract(f32, f32, f32), config, 3, network.predict)


@torch.no_grad()
@every_release
def test_sound_has_no_influence(name):
    """Whatever sound, its text and its time are put in, the answer has the same bits; joined, it has others."""
    denoiser, inputs, changes = small(name), contract.example(SHAPE, "ltx-2-tiny"), {}
    denoiser.module.register_forward_pre_hook(lambda _module, args, kwargs: (args, kwargs | changes), with_kwargs=True)
    answer = denoiser.predict(inputs)
    changes |= {
        "audio_hidden_states": torch.randn(2, 7, 4),
        "audio_encoder_hidden_states": torch.randn(2, 5, 32 if name == "ltx-2" else 16),
        "audio_timestep": torch.tensor([3.0, 700.0]),
        "audio_sigma": torch.tensor([3.0, 700.0]),
        "audio_num_frames": 7,
    }
    assert torch.equal(denoiser.predict(inputs), answer)
    changes["isolate_modalities"] = False
    assert not torch.allclose(denoiser.predict(inputs), answer, atol=1e-3)


@every_release
def test_sound_is_not_trained(name):
    """All that a gradient does not reach is of sound, is frozen, and takes no LoRA."""
    denoiser = small(name)
    parameters = dict(denoiser.module.named_parameters())
    torch.autograd.backward(denoiser.predict(contract.example(SHAPE, "ltx-2-tiny")).square().mean())
    frozen = {key for key, p in parameters.items() if not p.requires_grad}
    unused = ("audio", "av_", "a2v", "keyframes_")
    assert frozen == {key for key in parameters if any(word in key for word in unused)}
    assert frozen == {key for key, p in parameters.items() if p.grad is None}
    layers = ["to_q", "to_k", "to_v", "to_out.0", *([] if name == "ltx-2" else ["to_gate_logits"])]
    assert set(denoiser.lora_targets()) == {
        f"transformer_blocks.{i}.{attention}.{layer}"
        for i in range(2)
        for attention in ("attn1", "attn2")
        for layer in layers
    }


@torch.no_grad()
@every_release
def test_each_clip_has_its_own_rate_and_given_frames(name):
    """A batch is what the network makes of its clips one by one, told the rate, and 0 as the time of given frames."""
    denoiser, inputs = small(name), contract.example(SHAPE, "ltx-2-tiny")
    fps, given = torch.tensor([24.0, 10.0]), torch.tensor([[1, 1, 1], [0, 1, 1]]).bool()
    found = denoiser.predict(dataclasses.replace(inputs, fps=fps, frame_mask=given, sources=()))
    for i in range(2):
        out = denoiser.module(
            hidden_states=inputs.latent[i : i + 1].flatten(2).transpose(1, 2),
            audio_hidden_states=torch.zeros(1, 2, 4),
            encoder_hidden_states=inputs.text[i : i + 1],
            audio_encoder_hidden_states=torch.zeros(1, 2, 32 if name == "ltx-2" else 16),
            timestep=(inputs.time[i] * given[i]).repeat_interleave(8)[None],
            audio_timestep=inputs.time[i : i + 1],
            sigma=inputs.time[i : i + 1],
            encoder_attention_mask=inputs.text_mask[i : i + 1],
            num_frames=3,
            height=2,
            width=4,
            fps=float(fps[i]),
            audio_num_frames=2,
            isolate_modalities=True,
        ).sample
        wanted = -out[0].T.reshape(inputs.latent[i].shape)
        torch.testing.assert_close(found[i], wanted, rtol=1e-4, atol=1e-5)


@every_release
def test_a_whole_checkpoint_of_the_release_is_read(name, tmp_path):
    """Its file holds the network in the release's names, beside parts for text, sound and pixels."""
    denoiser = small(name)
    tables = {
        "video_a2v_cross_attn_scale_shift_table": "scale_shift_table_a2v_ca_video",
        "audio_a2v_cross_attn_scale_shift_table": "scale_shift_table_a2v_ca_audio",
        "norm_q": "q_norm",
        "norm_k": "k_norm",
    }
    others = ("vae.encoder", "text_embedding_projection", "model.diffusion_model.video_embeddings_connector")
    file = {f"{other}.weight": torch.zeros(1) for other in others}
    wanted = denoiser.module.state_dict()
    for key, value in wanted.items():
        layer, dot, kind = key.rpartition(".")
        there = release_layers.place(denoiser.config, layer).layer + dot + kind
        for own, theirs in tables.items():
            there = there.replace(own, theirs)
        file[f"model.diffusion_model.{there}"] = value.clone()
    save_file(file, tmp_path / "whole.safetensors")
    other = small(name)
    with torch.no_grad():
        for parameter in other.module.parameters():
            parameter.zero_()
    network.NETWORK.load(other.module, other.config, str(tmp_path / "whole.safetensors"))
    found = other.module.state_dict()
    assert all(torch.equal(found[key], value) for key, value in wanted.items())


def test_a_repository_of_two_networks_gives_the_one_to_train(tmp_path):
    """LTX-2.5 lies in a folder of its own, and the distilled network where pipelines look."""
    full, distilled = (small("ltx-2.5") for _ in range(2))
    for shade, (place, one) in enumerate({"transformer": distilled, "transformer_full": full}.items()):
        with torch.no_grad():
            one.module.proj_in.bias.fill_(shade)
        one.module.save_pretrained(tmp_path / place)
    for name, shade in (("ltx-2.5", 1), ("ltx-2.5-distilled", 0)):
        found = small(name)
        network.NETWORK.load(found.module, found.config, str(tmp_path))
        assert (found.module.proj_in.bias == shade).all()


def test_texts_of_another_width_are_refused():
    """LTX-2.3 takes texts as they are."""
    with refused("text-width-differs", "text_encoder.dim", says=r"text_encoder\.dim = 32.*its own width, 4096"):
        factory.build_denoiser(
            ModelConfig(name="ltx-2.3"),
            autoencoder=contract.AUTOENCODER,
            text=TextEncoderConfig(dim=32),
            device="meta",
            seed=0,
        )


def test_texts_of_2_5_are_embedded_by_its_gemma(tmp_path):
    """A pipeline with a Gemma 4 gives tokens for both branches, and is refused where LTX-2.3's Gemma 3 is wanted."""
    torch.manual_seed(0)
    sizes = tiny_families.GEMMA | {"global_head_dim": 16, "num_hidden_layers": 2}
    gemma = transformers.Gemma4UnifiedConfig(text_config=sizes, vision_config=None, audio_config=None)
    parts = {
        "text_encoder": transformers.Gemma4UnifiedForConditionalGeneration(gemma),
        "connectors": ltx2.LTX2TextConnectors(**tiny_families.CONNECTORS),
        "tokenizer": tiny_families.tokenizer(),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(),
        **dict.fromkeys(("vae", "audio_vae", "vocoder", "transformer")),
    }
    diffusers.LTX2Pipeline(**parts).save_pretrained(tmp_path)
    texts = TextEncoderConfig(name="ltx-2.5-sound", weights=str(tmp_path), dim=64, max_length=12)
    made = factory.build_text_encoder(texts).encode(["waves", "two cats"])
    assert made.tokens.shape == (2, 12, 64)
    assert not torch.equal(made.tokens[0], made.tokens[1])
    with refused("other-text-encoder", "text_encoder.weights"):
        factory.build_text_encoder(texts.model_copy(update={"name": "ltx-2.3-sound"}))
