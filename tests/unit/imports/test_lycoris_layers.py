"""An import of a config for LyCORIS trains the linear layers that LyCORIS adapts: those in modules of its preset's classes.

The patterns are those of modules in sd-scripts' and musubi-tuner's networks, whose names are the release's.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from test_kohya_loras import imported

from reelworks.annexes.imports import importer
from reelworks.annexes.imports.importer import Imported
from reelworks.annexes.imports.request import ImportRequest
from reelworks.annexes.imports.rules import Fate
from reelworks.models.adapters import inject, release_layers
from reelworks.models.adapters.config import LoraConfig
from reelworks.testing import contract
from reelworks.training.recipe import recipe_file

_ATTENTION = r".*\.attn\d\.(to_q|to_k|to_v|to_out\.0)"
_TRANSFORMER_2D = rf"{_ATTENTION}|.*\.ff\.net\.(0\.proj|2)|.*\.\d\.proj_(in|out)"
_FLUX = r"(double|single)_blocks\..*"
SDXL, FLUX = (
    "sdxl_train_network.py --network_module lycoris.kohya",
    "flux_train_network.py --network_module lycoris.kohya",
)
CASES = {
    "attn-mlp": ("sdxl-tiny", SDXL, _TRANSFORMER_2D),
    "unet-transformer-only": ("sdxl-tiny", SDXL, _TRANSFORMER_2D),
    "attn-only": ("sdxl-tiny", SDXL, _ATTENTION),
    "full": ("sdxl-tiny", SDXL, rf"{_TRANSFORMER_2D}|.*\.emb_layers\.1"),
    "full-lin": ("sdxl-tiny", SDXL, rf"{_TRANSFORMER_2D}|.*\.emb_layers\.1"),
    "unet-only": ("sdxl-tiny", SDXL, rf"{_TRANSFORMER_2D}|.*\.emb_layers\.1"),
    "": ("sdxl-tiny", SDXL, rf"{_TRANSFORMER_2D}|.*\.emb_layers\.1"),
    "unet-convblock-only": ("sdxl-tiny", SDXL, r".*\.emb_layers\.1"),
    "flux, attn-mlp": ("flux-tiny", FLUX, _FLUX),
    "flux, attn-only": ("flux-tiny", FLUX, r"double_blocks\.\d+\.(img|txt)_attn\.(qkv|proj)"),
    "flux": ("flux-tiny", FLUX, _FLUX),
    "hunyuan": (
        "hunyuan-video-1.5-tiny",
        "hv_1_5_train_network.py --task t2v --network_module lycoris.kohya",
        r"double_blocks\.\d+\..*|final_layer\.linear",
    ),
    "anima": ("anima-tiny", "anima_train_network.py --network_module lycoris.kohya", r".*"),
    "krea": ("krea2-tiny", "krea2_train_network.py --network_module lycoris.kohya", r"blocks\.\d+\..*"),
    "z-image": (
        "z-image-tiny",
        "zimage_train_network.py --network_module lycoris.kohya",
        r"final_layer\.(linear|adaLN_modulation\.1)",
    ),
    "wan, attn-mlp": (
        "wan-tiny",
        "wan_train_network.py --task t2v-1.3B --network_module lycoris.kohya",
        r"blocks\.\d+\.((self|cross)_attn\.[qkvo]|ffn\.[02])",
    ),
}


def layers_of(name: str, config: LoraConfig) -> set[str]:
    """The release's names of the layers that a LoRA adapts."""
    denoiser = contract.build(name)
    inject.inject(denoiser, config, seed=0)
    adapted = {layer for layer, _ in inject.parts(inject.weights(denoiser.module)).values()}
    return {release_layers.place(denoiser.config, layer).layer for layer in adapted}


def matching(name: str, pattern: str) -> set[str]:
    denoiser = contract.build(name)
    named = {release_layers.place(denoiser.config, layer).layer for layer in inject.linear_layers(denoiser.module)}
    return {layer for layer in named if re.fullmatch(pattern, layer)}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.quick_cases(3)
def test_the_layers_are_those_of_the_preset(tmp_path: Path, case: str) -> None:
    name, command, pattern = CASES[case]
    preset = case.rpartition(", ")[2] if case.endswith(("only", "lin", "mlp", "full")) else ""
    arguments = f'{command} --network_args "algo=lora"' + (f' "preset={preset}"' if preset else "")
    config = imported(tmp_path, arguments, name).model_copy(update={"weights": None})
    wanted = matching(name, pattern)
    assert wanted
    assert layers_of(name, config) == wanted


def account(folder: Path, command: str, model: str) -> Imported:
    return importer.convert(
        ImportRequest(command=command, model=model, output=folder / "r.toml", force=True, clips=False)
    )


def test_what_a_preset_adapts_beyond_is_told(tmp_path: Path) -> None:
    """Convolutions, by default too; and a preset that finds no layer, or that is not known."""
    for more, key, says in (
        ("", "network_module", "by default: it adapts convolutions"),
        (' "preset=full"', "network_args.preset", "it adapts convolutions"),
        (' "preset=mine.toml"', "network_args.preset", "not known"),
    ):
        made = account(tmp_path, f'python {SDXL} --network_args "algo=lora"{more}', "sdxl-tiny")
        (told,) = [each for each in made.keys if each.key == key]
        assert (told.fate, says in told.remark) == (Fate.NOT_POSSIBLE, True)
    made = account(tmp_path, f'python {SDXL} --network_args "algo=lora" "preset=attn-mlp"', "sdxl-tiny")
    assert {each.key: each.fate for each in made.keys}["network_args.preset"] == Fate.TAKEN


@pytest.mark.parametrize(
    ("classes", "pattern"),
    [(["Attention"], _ATTENTION), (["Attention", "FeedForward"], rf"{_ATTENTION}|.*\.ff\.net\.(0\.proj|2)")],
)
def test_classes_of_simpletuner_are_those_of_diffusers(tmp_path: Path, classes: list[str], pattern: str) -> None:
    """Not what stands beside them in a block."""
    options = {"--model_family": "sdxl", "--model_type": "lora", "--lora_type": "lycoris", "--max_train_steps": 9}
    options["--lycoris_config"] = str(tmp_path / "lycoris.json")
    (tmp_path / "config.json").write_text(json.dumps(options), encoding="utf-8")
    lycoris = {"algo": "lora", "linear_dim": 4, "linear_alpha": 4, "apply_preset": {"target_module": classes}}
    (tmp_path / "lycoris.json").write_text(json.dumps(lycoris), encoding="utf-8")
    made = importer.convert(
        ImportRequest(files=[str(tmp_path / "config.json")], output=tmp_path / "r.toml", force=True, clips=False)
    )
    lora = recipe_file.load(Path(made.recipe)).lora
    assert lora is not None
    assert layers_of("sdxl-tiny", lora) == matching("sdxl-tiny", pattern)
