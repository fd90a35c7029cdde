"""A LoRA is trained, published, and loaded from the hub by diffusers, as its card says."""

from __future__ import annotations

import diffusers
import fake_hub
import pytest
import tiny_recipe
import torch
from hub_uploads import Account, Uploads
from safetensors.torch import load_file
from test_lora import pictures

import reelworks as rw
from reelworks.annexes.hub import publish
from reelworks.annexes.hub.request import PublishRequest
from reelworks.training.recipe import recipe_file

__all__ = ["pictures"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_diffusers_loads_what_was_published(pictures, tmp_path, monkeypatch):
    base = tmp_path / "base"
    torch.manual_seed(0)
    sizes = {"num_attention_heads": 2, "attention_head_dim": 12, "num_layers": 2, "ffn_dim": 64, "text_dim": 16}
    network = diffusers.WanTransformer3DModel(
        **sizes, in_channels=48, out_channels=48, freq_dim=32, rope_max_seq_len=32
    )
    network.save_pretrained(base / "transformer")
    data = {"path": str(pictures), "caption": "rwmug, {text}"}
    own = {"samples": {"prompts": ["rwmug"], "num_inference_steps": 1}, "lora": {"rank": 2, "targets": ["to_q"]}}
    values = tiny_recipe.of_family("wan-tiny", tmp_path / "run", data, **own)
    values["buckets"] = {"upscale": True, "max_crop": 0.9}
    assert rw.train(recipe_file.parse(values | {"model": {"name": "wan-tiny", "weights": str(base)}})) == 0
    with fake_hub.serving(Uploads(tmp_path / "hub", {"hf_anna": Account("anna")})) as hub:
        fake_hub.be_asked(hub, tmp_path / "cache", monkeypatch)
        monkeypatch.setenv("HF_TOKEN", "hf_anna")
        publish.publish(PublishRequest(source=tmp_path / "run", to="anna/mug", base="tiny/wan", dtype="float32"))
        folder = hub.repositories["anna/mug"]["main"]
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert "20 pictures and 0 videos; an epoch trains 20." in card
        assert 'load_lora_weights("anna/mug", weight_name="pytorch_lora_weights.safetensors")' in card
        for text in (card, (folder / "recipe.toml").read_text(encoding="utf-8")):
            assert str(tmp_path) not in text
            assert str(pictures) not in text
        network.load_lora_adapter("anna/mug", weight_name="pytorch_lora_weights.safetensors", prefix="transformer")
    there = load_file(folder / "pytorch_lora_weights.safetensors")
    loaded = {name.replace(".default_0", ""): p for name, p in network.named_parameters() if "lora_" in name}
    assert {f"transformer.{name}" for name in loaded} == there.keys()
    for name, value in loaded.items():
        assert torch.equal(value, there[f"transformer.{name}"]), name
    assert any(value.abs().max() > 0 for name, value in there.items() if "lora_B" in name)
