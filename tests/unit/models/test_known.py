"""Weights that are not those of the model: the error says how much differs, what they are, and what to set."""

from __future__ import annotations

import pytest
import torch
from presets import config_of, network_of
from refused import refused
from safetensors.torch import save_file

from reelworks.core.errors import UserError
from reelworks.models import factory, identify, meta_init, registry
from reelworks.models.adapters import closest, files, inject
from reelworks.models.adapters.adapter_types.adapter_type import Adapter
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.config import AutoencoderConfig, ModelConfig, TextEncoderConfig
from reelworks.models.storage import weights
from reelworks.testing import contract


def shapes(name):
    return weights.shapes_of(identify.network(name).state_dict())


# What is shown beside the noise needs no weights of its own in some.
ALIKE = [
    ("chroma1-hd", "chroma1-base"),
    ("wan-2.1-14b", "wan-2.2-14b"),
    ("lucy-edit-5b", "lucy-edit-1.1-5b"),
    ("wan-2.2-flf2v-14b", "wan-2.2-i2v-14b"),
    ("flux-dev", "flux-kontext"),
    ("flux2-klein-base-4b", "flux2-klein-4b"),
    ("flux2-klein-base-9b", "flux2-klein-9b"),
    ("hunyuan-video-1.5", "hunyuan-video-1.5-i2v"),
    ("flux3-klein-base-edit", "flux3-klein-base"),
    ("krea2-raw", "krea2-turbo"),
    ("ernie-image", "ernie-image-turbo"),
    ("hidream-i1-full", "hidream-i1-dev", "hidream-i1-fast"),
    ("longcat-image", "longcat-image-dev"),
    ("qwen-image", "qwen-image-2512", "qwen-image-edit", "qwen-image-edit-2509", "qwen-image-edit-2511"),
    ("qwen-image-2.1-edit", "qwen-image-2.1", "qwen-image-2.1-turbo"),
    ("z-image", "z-image-turbo"),
    ("ltx-2", "ltx-2-sound"),
    ("ltx-2.3", "ltx-2.3-sound"),
    (
        *("minimax-h3-sound", "minimax-h3-i2v", "minimax-h3-i2v-sound", "minimax-h3-flf2v", "minimax-h3-flf2v-sound"),
        *("minimax-h3-ref", "minimax-h3-ref-sound", "minimax-h3"),
    ),
    ("ltx-2.5-distilled", "ltx-2.5-sound", "ltx-2.5"),
]
FULL = [(name, "") for name in registry.PRESETS if not name.endswith("-tiny")]


@pytest.mark.parametrize(("name", "wrapper"), [*FULL, ("flux-dev", "model.diffusion_model."), ("stdit3-xl", "module.")])
def test_every_preset_is_known_by_its_own_weights(name, wrapper):
    """Bare or behind a prefix, the published sizes mean one preset, or those whose networks are alike."""
    found = identify.closest({f"{wrapper}{key}": shape for key, shape in shapes(name).items()})
    assert found.names == next((names for names in ALIKE if name in names), (name,))
    assert found.fitting == found.total == len(shapes(name))


@pytest.mark.slow
def test_the_names_of_a_release_are_known():
    """Wan as it was released, and as ComfyUI wraps it: all tensors fit once diffusers has renamed them."""
    renamed = {
        "condition_embedder.time_embedder.linear_1": "time_embedding.0",
        "condition_embedder.time_embedder.linear_2": "time_embedding.2",
        "condition_embedder.text_embedder.linear_1": "text_embedding.0",
        "condition_embedder.text_embedder.linear_2": "text_embedding.2",
        "condition_embedder.time_proj": "time_projection.1",
        "attn1": "self_attn",
        "attn2": "cross_attn",
        "to_out.0": "o",
        "to_q": "q",
        "to_k": "k",
        "to_v": "v",
        "proj_out": "head.head",
        "ffn.net.0.proj": "ffn.0",
        "ffn.net.2": "ffn.2",
        ".norm2": ".norm3",
    }
    released = {}
    for key, shape in shapes("wan-2.1-14b").items():
        for own, theirs in renamed.items():
            key = key.replace(own, theirs)
        key = "head.modulation" if key == "scale_shift_table" else key.replace("scale_shift_table", "modulation")
        released[key] = shape
    for wrapper in ("", "model.diffusion_model.", "diffusion_model."):
        told, remedy = identify.what({f"{wrapper}{k}": s for k, s in released.items()}, "model.weights")
        assert told == "these are the weights of wan-2.1-14b or wan-2.2-14b (all 1,095 tensors fit)"
        assert remedy == 'set model.name = "wan-2.1-14b"'


def of(name, tmp_path):
    """A real file of a tiny preset at its own widths."""
    torch.manual_seed(0)
    module = network_of(config_of(name))
    path = tmp_path / f"{name}.safetensors"
    save_file({key: value.contiguous() for key, value in module.state_dict().items()}, path)
    return path


def refusal_of(source, name="flux-tiny"):
    with pytest.raises(UserError) as caught:
        factory.build_denoiser(
            ModelConfig(name=name, weights=str(source)),
            autoencoder=contract.AUTOENCODER,
            text=contract.TEXT,
            device="cpu",
            seed=0,
        )
    return caught.value


def test_weights_of_another_model_are_named(tmp_path):
    """Numbers first, then the first names of each kind, then the model that it is, and how to say so."""
    error = refusal_of(of("wan-tiny", tmp_path))
    assert error.field == "model.weights"
    lines = error.problem.splitlines()
    assert lines[0] == "these weights do not fit the model: 64 missing, 67 unexpected, 2 of another shape of 66 tensors"
    assert lines[1].startswith("    missing: ")
    assert lines[1].endswith(", and 61 more")
    assert lines[-1] == "    these are the weights of wan-tiny (all 69 tensors fit)"
    assert error.remedy == 'set model.name = "wan-tiny"'


def test_the_right_model_with_other_neighbours_is_told_from_another_model(tmp_path):
    """The widths of the text encoder and the autoencoder differ, not the model."""
    error = refusal_of(of("wan-tiny", tmp_path), "wan-tiny")
    assert "of another shape" in error.problem
    assert error.remedy == 'set autoencoder.name = "wan-2.1" and text_encoder.name = "wan" as published'


def test_a_few_differences_name_the_closest_model(tmp_path):
    """Most tensors fit: which model it nearly is, and how nearly."""
    torch.manual_seed(0)
    state = network_of(config_of("wan-tiny")).state_dict()
    state.pop("scale_shift_table")
    save_file({key: value.contiguous() for key, value in state.items()}, tmp_path / "cut.safetensors")
    error = refusal_of(tmp_path / "cut.safetensors", "stdit3-tiny")
    assert "closest known model: wan-tiny (68 of 69 tensors fit)" in error.problem


def lora_file(tmp_path, name="wan-tiny", format="comfyui"):
    denoiser = contract.build(name)
    inject.inject(denoiser, LoraConfig(rank=2), seed=0)
    file = files.to_file(inject.weights(denoiser.module), format, adapter=Adapter(rank=2, alpha=2.0), model=name)
    save_file({k: v.contiguous() for k, v in file.tensors.items()}, tmp_path / "lora.safetensors", file.header)
    return tmp_path / "lora.safetensors"


def encoder_file(tmp_path, name):
    torch.manual_seed(0)
    if name == "text encoder":
        import transformers

        sizes = {"vocab_size": 9, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
        module = transformers.T5EncoderModel(transformers.T5Config(**sizes))
    else:
        import diffusers

        module = diffusers.AutoencoderKL(block_out_channels=(8,), norm_num_groups=4)
    module.save_pretrained(tmp_path / name)
    return tmp_path / name


@pytest.mark.parametrize(
    ("make", "said", "remedy"),
    [
        (lora_file, "this is a LoRA", "lora.weights"),
        (lambda path: encoder_file(path, "text encoder"), "weights of a text encoder", "text_encoder.weights"),
        (lambda path: encoder_file(path, "autoencoder"), "weights of an autoencoder", "autoencoder.weights"),
    ],
)
def test_what_is_no_denoiser_is_told_by_its_kind(tmp_path, make, said, remedy):
    """Each belongs under another key, which the remedy names."""
    error = refusal_of(make(tmp_path))
    assert said in error.problem
    assert remedy in error.remedy


def test_a_denoiser_given_as_autoencoder_is_named(tmp_path):
    """The same comparison serves autoencoder.weights."""
    config = AutoencoderConfig(name="opensora-1.2", weights=str(of("wan-tiny", tmp_path)))
    told = refused("weights-do-not-fit", "autoencoder.weights", says="these are the weights of wan-tiny")
    with meta_init.build_on_meta(), told:  # before its 393 million numbers are looked at
        factory.build_autoencoder(config)


def test_whole_weights_given_as_a_lora_are_named(tmp_path):
    """They belong in model.weights."""
    settings = LoraConfig(rank=2, weights=str(of("wan-tiny", tmp_path)))
    with refused("not-a-lora", "lora.weights", says="not a LoRA: these are the weights of wan-tiny") as caught:
        build("flux-tiny", settings)
    assert caught.value.field == "lora.weights"
    assert 'set model.name = "wan-tiny", and point model.weights to them' in caught.value.remedy


def build(name, settings):
    return factory.build_denoiser(
        ModelConfig(name=name),
        autoencoder=contract.AUTOENCODER,
        text=TextEncoderConfig(dim=32, max_length=6, pooled_dim=8),
        device="cpu",
        seed=0,
        lora=settings,
    )


@pytest.mark.parametrize("format", ["diffusers", "comfyui", "kohya"])
@pytest.mark.quick_cases(1)
def test_a_lora_of_another_base_names_the_closest_one(tmp_path, format):
    """By the names and shapes of its layers, in any convention."""
    path = lora_file(tmp_path, "sd3-tiny", format)
    with refused("lora-does-not-fit", "lora.weights", says=r"sd3-tiny \((\d+) of \1 layers fit\)") as caught:
        build("flux-tiny", LoraConfig(rank=2, weights=str(path)))
    assert "set in [lora]" not in caught.value.remedy


def test_layers_that_one_network_of_a_family_has_alone_are_known():
    """Also if no tiny network has them."""
    found = closest.closest({"transformer_blocks.0.attn2.to_q": (1536, 1536)}, ["sd3.5-medium"])
    assert found == (("sd3.5-medium",), 1, 1)


def test_a_lora_of_other_weights_is_warned_of_by_name(tmp_path, caplog):
    """Same network, other numbers: it loads, and both bases are told; on its own base nothing is."""
    ours = build("wan-tiny", LoraConfig(rank=2)).base
    denoiser = build("wan-tiny", LoraConfig(rank=2))
    for base, warned in ((ours, False), (ours._replace(weights="theirs.safetensors", digest="f" * 32), True)):
        state = inject.weights(denoiser.module)
        file = files.to_file(state, "kohya", adapter=Adapter(rank=2, alpha=2.0), model="wan-tiny", base=base)
        path = tmp_path / "lora.safetensors"
        save_file({k: v.contiguous() for k, v in file.tensors.items()}, path, file.header)
        assert build("wan-tiny", LoraConfig(rank=2, weights=str(path))).base == ours
        files.warn_of_base(str(path), ours)
        assert len(caplog.records) == warned
    (told,) = caplog.messages
    assert "theirs.safetensors" in told
    assert f"fresh weights (wan-tiny, {ours.digest[:8]})" in told


def test_a_base_is_known_by_its_numbers_however_they_are_stored(tmp_path):
    """The digest of a file in another dtype that holds the same numbers is the same; of another number it is not."""
    half = {k: v.half() for k, v in contract.build("wan-tiny").module.state_dict().items()}
    digests = []
    for i, state in enumerate((half, {k: v.float() for k, v in half.items()}, half)):
        if i == 2:
            key = "blocks.1.ffn.net.2.bias"
            state = {**state, key: state[key] + 0.5}
        save_file({k: v.contiguous() for k, v in state.items()}, tmp_path / f"{i}.safetensors")
        model = ModelConfig(name="wan-tiny", weights=str(tmp_path / f"{i}.safetensors"))
        made = factory.build_denoiser(
            model,
            autoencoder=contract.AUTOENCODER,
            text=contract.TEXT,
            device="cpu",
            seed=0,
            storage=torch.bfloat16,
            compute=torch.bfloat16,
            lora=LoraConfig(rank=1),
        )
        digests.append(made.base.digest)
    assert digests[0] == digests[1] != digests[2]
