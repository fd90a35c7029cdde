"""Files of Anima as its release and ComfyUI have them: with the adapter of its texts, behind several prefixes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tiny_families
import torch
from refused import refused
from safetensors.torch import save_file
from torch import Tensor

from reelworks.models import identify
from reelworks.models.storage import weights

# Parts of names in diffusers, and those of the release in their place, as its file has them.
RELEASE = {
    r"transformer_blocks\.": "blocks.",
    r"patch_embed\.proj": "x_embedder.proj.1",
    r"time_embed\.t_embedder": "t_embedder.1",
    r"time_embed\.norm": "t_embedding_norm",
    r"norm_out\.linear_": "final_layer.adaln_modulation.",
    r"proj_out": "final_layer.linear",
    r"norm1\.linear_": "adaln_modulation_self_attn.",
    r"norm2\.linear_": "adaln_modulation_cross_attn.",
    r"norm3\.linear_": "adaln_modulation_mlp.",
    r"attn1\.": "self_attn.",
    r"attn2\.": "cross_attn.",
    r"to_out\.0": "output_proj",
    r"to_([qkv])\b": r"\1_proj",
    r"norm_([qk])\b": r"\1_norm",
    r"ff\.net\.0\.proj": "mlp.layer1",
    r"ff\.net\.2": "mlp.layer2",
}


def released(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Tensors in the names of the release, with some of the adapter and a table of positions."""
    others = {
        "llm_adapter.embed.weight": torch.ones(4, 8),
        "llm_adapter.blocks.0.cross_attn.q_proj.weight": torch.ones(8, 8),
    }
    made = {f"{prefix}{name}": value for name, value in (others | {"pos_embedder.seq": torch.arange(4)}).items()}
    for name, value in state.items():
        for own, theirs in RELEASE.items():
            name = re.sub(own, theirs, name)
        made[prefix + name] = value.clone()
    return made


@pytest.mark.parametrize("prefix", ["net.", "model.diffusion_model.", ""])
def test_a_single_file_is_loaded_without_the_adapter_of_texts(tmp_path: Path, prefix: str) -> None:
    given = tiny_families.network("anima-tiny", seed=3).state_dict()
    path = tmp_path / "anima.safetensors"
    save_file(released(given, prefix), path)
    found = tiny_families.network("anima-tiny", weights=str(path)).state_dict()
    assert found.keys() == given.keys()
    assert all(torch.equal(found[name], value) for name, value in given.items())


@pytest.mark.slow
def test_a_file_of_another_depth_is_told(tmp_path: Path) -> None:
    """A block more than the network has: the names of the release are told in those of diffusers."""
    state = tiny_families.network("anima-tiny").state_dict()
    state |= {name.replace("blocks.1.", "blocks.2."): value for name, value in state.items() if "blocks.1." in name}
    path = tmp_path / "anima.safetensors"
    save_file(released(state, "net."), path)
    with refused("weights-do-not-fit", "model.weights", says=r"unexpected: transformer_blocks\.2\."):
        tiny_families.network("anima-tiny", weights=str(path))


@pytest.mark.slow
def test_the_depth_tells_the_preset() -> None:
    """The file of 2.9B names its model where that of 2B was asked for."""
    with torch.device("meta"):
        state = released(identify.network("anima-2.9b").state_dict(), "net.")
    told, remedy = identify.what(weights.shapes_of(state), "model.weights", "anima")
    assert told == "these are the weights of anima-2.9b (all 807 tensors fit)"
    assert remedy == 'set model.name = "anima-2.9b"'
