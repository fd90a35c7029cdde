"""Another family's text encoders are refused by their configs, whatever their width, before a weight is read."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch
import transformers
from refused import refused
from safetensors.torch import save_file

from reelworks.core.errors import UserError
from reelworks.models import factory, registry
from reelworks.models.config import AutoencoderConfig, ModelConfig, TextEncoderConfig
from reelworks.models.export import export
from reelworks.models.family import T5
from reelworks.models.text import encoders
from reelworks.training.recipe import validation

KNOWN = {name: (one.networks, one.dim) for name, one in registry.TEXT_ENCODERS.items()}
KNOWN["t5"] = ((T5,), 4096)
# One of those whose networks are equal.
KINDS = {networks: name for name, (networks, _) in reversed(KNOWN.items())}
find_once = functools.cache(encoders._find)  # each config is read for every family
# What a release saves, by the kind of its half that reads texts.
WHOLE = {
    "gemma2": lambda size: transformers.Gemma2Config(vocab_size=size),
    "gemma3_text": lambda size: transformers.Gemma3Config(text_config={"vocab_size": size}),
    "gemma4_unified_text": lambda size: transformers.Gemma4UnifiedConfig(text_config={"vocab_size": size}),
    "llama": lambda size: transformers.LlamaConfig(vocab_size=size),
    "mistral": lambda size: transformers.Mistral3Config(text_config={"model_type": "mistral", "vocab_size": size}),
    "ministral3": lambda size: transformers.Mistral3Config(
        text_config={"model_type": "ministral3", "vocab_size": size}
    ),
    "qwen2_5_vl_text": lambda size: transformers.Qwen2_5_VLConfig(text_config={"vocab_size": size}),
    "qwen3_vl_text": lambda size: transformers.Qwen3VLConfig(text_config={"vocab_size": size}),
    "qwen3": lambda size: transformers.Qwen3Config(vocab_size=size),
    "t5": lambda size: transformers.T5Config(vocab_size=size),
    "umt5": lambda size: transformers.UMT5Config(vocab_size=size),
    "clip_text_model": lambda size: transformers.CLIPTextConfig(vocab_size=size),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Configs of every family as it was published, and nothing else."""
    root = tmp_path_factory.mktemp("configs")
    for name, (networks, _) in KNOWN.items():
        for one in networks:
            WHOLE[one.kind.split()[0]](one.vocabulary).save_pretrained(root / name / one.part)
    return root


def told(name: str, place, **sizes) -> TextEncoderConfig:
    return TextEncoderConfig(name=name, weights=str(place), **sizes)


@pytest.mark.parametrize("name", KNOWN)
def test_a_family_takes_its_own_and_no_other(name, folders, monkeypatch):
    """Refused is every folder whose networks are of another kind; the error names both, and where they belong."""
    monkeypatch.setattr(encoders, "_find", find_once)
    networks, width = KNOWN[name]
    own = {one.part: one.kind for one in networks}
    for theirs, other in KINDS.items():
        there = {one.part: one.kind.split()[0] for one in theirs}
        apart = [part for part in own.keys() & there.keys() if there[part] not in own[part].split()]
        config = told(name, folders / other)
        if not apart:
            encoders.require_networks(config, networks, width)
            continue
        with pytest.raises(UserError) as caught:
            encoders.require_networks(config, networks, width)
        assert caught.value.field == "text_encoder.weights"
        assert there[min(apart)] in caught.value.problem
        assert own[min(apart)].replace(" ", " or ") in caught.value.problem
        assert f'"{other}"' in caught.value.remedy


def test_equal_kinds_are_told_apart_by_their_vocabulary(tmp_path):
    """Half as many tokens at the published width are other encoders; some that were added, or another width, are not."""
    networks, width = KNOWN["ltx-video"]
    for size, is_refused in ((16_000, True), (32_100, False), (32_200, False), (250_112, True)):
        WHOLE["t5"](size).save_pretrained(tmp_path / str(size) / "text_encoder")
        config = told("ltx-video", tmp_path / str(size))
        encoders.require_networks(config.model_copy(update={"dim": 32}), networks, width)
        if is_refused:
            with pytest.raises(UserError, match=f"a t5 of {size:,} tokens"):
                encoders.require_networks(config, networks, width)
        else:
            encoders.require_networks(config, networks, width)


@pytest.mark.parametrize(
    ("name", "place", "found"), [("wan", "ltx-video", "a t5 of"), ("t5", "wan/text_encoder", "a umt5 of")]
)
def test_builders_ask_before_they_load(name, place, found, folders):
    """The folders hold no weights, and the error is about what they are."""
    with pytest.raises(UserError, match=rf"text_encoder\.weights.*{found}"):
        factory.build_text_encoder(told(name, folders / place))


def test_weights_go_with_the_text_encoders_that_they_were_trained_with():
    """T5 of LTX-Video is as wide as UMT5 of Wan; without weights any pair may begin."""
    trained = ModelConfig(name="wan-2.1-1.3b", weights="there")
    other, own = told("ltx-video", "x"), told("wan", "x")
    assert other.dim == own.dim
    with refused("other-text-encoder", "text_encoder.name", says='write "wan"'):
        validation.require_text_encoder(SimpleNamespace(model=trained, text_encoder=other))
    validation.require_text_encoder(SimpleNamespace(model=trained, text_encoder=own))
    validation.require_text_encoder(SimpleNamespace(model=ModelConfig(name="wan-2.1-1.3b"), text_encoder=other))


def test_weights_that_a_run_of_ours_exported_go_with_what_it_trained_them_beside(tmp_path):
    """Their header tells of it; another part than that is refused as beside any weights."""
    path, recipe = tmp_path / "own.safetensors", tmp_path / "recipe.toml"
    recipe.write_text(
        '[model]\nname = "wan-2.1-14b"\n[autoencoder]\nname = "flux"\n[text_encoder]\nname = "ltx-video"\n',
        encoding="utf-8",
    )
    save_file({"w": torch.zeros(1)}, path, export.describe_run(run_id="a", recipe=recipe, step=1, epoch=0))
    model = ModelConfig(name="wan-2.1-14b", weights=str(path))
    validation.require_text_encoder(SimpleNamespace(model=model, text_encoder=told("ltx-video", "x")))
    validation.require_autoencoder(
        SimpleNamespace(model=model, autoencoder=AutoencoderConfig(name="flux", weights="x"))
    )
    with pytest.raises(UserError, match="other text encoders"):
        validation.require_text_encoder(SimpleNamespace(model=model, text_encoder=told("t5", "x")))
    with pytest.raises(UserError, match="latents of another autoencoder"):
        validation.require_autoencoder(
            SimpleNamespace(model=model, autoencoder=AutoencoderConfig(name="sd3", weights="x"))
        )
