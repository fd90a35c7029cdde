"""Programs are named as readers of a file with the number of layers that they take, as their own code does."""

from __future__ import annotations

import json
import random as random_numbers
from pathlib import Path
from typing import Any

import diffusers_readers as readers
import pytest
import torch
from lora_files import random
from safetensors.torch import save_file
from torch import Tensor, nn

from reelworks.annexes.lora import info
from reelworks.annexes.lora.request import LoraInfoRequest
from reelworks.models import registry
from reelworks.models.adapters import release_layers
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.adapters.key_mapping import METADATA
from reelworks.testing import contract

NAME = "wan-tiny"
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "lora-readers.md"


def linear(name: str = NAME) -> dict[str, Tensor]:
    """The weights of some layers of a tiny network, by their names in diffusers."""
    module = contract.build(name).module
    found = {each: child.weight.detach() for each, child in module.named_modules() if isinstance(child, nn.Linear)}
    return {each: weight for each, weight in found.items() if "block" in each and "attn" in each}


def settings(alpha: int = 2, layers: Any = linear) -> dict[str, str]:
    """A header with peft's settings."""
    found = {"r": 2, "lora_alpha": alpha, "target_modules": [*layers()]}
    return {METADATA: json.dumps({f"transformer.{key}": value for key, value in found.items()})}


def released(layer: str) -> str:
    return release_layers.place(registry.PRESETS[NAME].config, layer).layer


def file_of(
    path: Path,
    prefix: str,
    ends: tuple[str, str] = ("lora_A.weight", "lora_B.weight"),
    more: dict[str, Tensor] | None = None,
    each: dict[str, Tensor] | None = None,
    header: dict[str, str] | None = None,
    layers: Any = linear,
    name: Any = lambda layer: layer,
) -> dict[str, Tensor]:
    """Write a LoRA of rank 2 on all these layers, and return what each of their weights becomes."""
    tensors, wanted = {}, {}
    for number, (layer, weight) in enumerate(layers().items()):
        A, B = random(2, weight.shape[1], seed=number), random(len(weight), 2, seed=number + 99)
        spelt = name(layer).replace(".", "_") if prefix.endswith("_") else name(layer)
        tensors |= {f"{prefix}{spelt}.{ends[0]}": A, f"{prefix}{spelt}.{ends[1]}": B}
        tensors |= {f"{prefix}{spelt}.{end}": value for end, value in (each or {}).items()}
        wanted[layer] = weight + B @ A
    save_file({**{key: value.clone() for key, value in tensors.items()}, **(more or {})}, path, header or {})
    return wanted


def told(path: Path, name: str = NAME) -> dict[str, int]:
    return info.info(LoraInfoRequest(file=path, model=name)).readers


def drawn_by_diffusers(path: Path, wanted: dict[str, Tensor]) -> int:
    """How many layers have the wanted weight after plain diffusers has loaded a file."""
    module = contract.build(NAME).module
    try:
        readers.through_pipeline(NAME, module, path, "transformer")
    except Exception:
        return 0
    found = readers.merged(module)
    return sum(torch.allclose(found[f"{layer}.weight"], value, atol=1e-5) for layer, value in wanted.items())


FILES: dict[str, dict[str, Any]] = {
    "diffusers": {"prefix": "transformer.", "header": settings()},
    "old matrices": {"prefix": "transformer.", "ends": ("lora.down.weight", "lora.up.weight")},
    "matrices with a name": {"prefix": "transformer.", "ends": ("lora_A.default.weight", "lora_B.default.weight")},
    "an embedding": {"prefix": "transformer.", "more": {"bundle_emb.x.string_to_param.*": torch.ones(1)}},
    "an alpha": {"prefix": "transformer.", "each": {"alpha": torch.tensor(2.0)}},
    "LyCORIS": {"prefix": "lycoris_", "ends": ("lora_down.weight", "lora_up.weight")},
    "peft": {"prefix": "base_model.model.", "header": settings()},
    "no prefix": {"prefix": ""},
    "another part": {"prefix": "unet."},
    "kohya": {"prefix": "lora_unet_", "ends": ("lora_down.weight", "lora_up.weight"), "name": released},
    "ComfyUI": {"prefix": "diffusion_model.", "name": released},
    "ComfyUI with biases": {"prefix": "diffusion_model.", "name": released, "each": {"lora_B.bias": torch.zeros(64)}},
    "ComfyUI with a norm": {
        "prefix": "diffusion_model.",
        "name": released,
        "more": {"diffusion_model.blocks.0.norm3.diff": torch.zeros(64)},
    },
}


@pytest.mark.parametrize("kind", FILES)
def test_the_layers_of_diffusers_are_those_that_it_draws(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.safetensors"
    wanted = file_of(path, **FILES[kind])
    assert told(path).get("diffusers", 0) == drawn_by_diffusers(path, wanted)


def test_magnitudes_that_diffusers_leaves_out_make_no_reader(tmp_path: Path) -> None:
    """It filters `dora_scale`, with which the file is a plain LoRA; ComfyUI computes other rows."""
    path = tmp_path / "a.safetensors"
    lengths = {f"transformer.{layer}.dora_scale": torch.ones(len(weight), 1) for layer, weight in linear().items()}
    file_of(path, "transformer.", more=lengths)
    assert told(path) == {}
    named = {key.replace("dora_scale", "lora_magnitude_vector"): value.flatten() for key, value in lengths.items()}
    file_of(path, "transformer.", more=named, header=settings())
    assert told(path) == dict.fromkeys(("diffusers", "peft (inject_adapter_in_model)"), len(linear()))
    folded = {
        f"lycoris_{layer.replace('.', '_')}.dora_scale": torch.ones(len(weight), 1)
        for layer, weight in linear().items()
    }
    file_of(path, "lycoris_", ("lora_down.weight", "lora_up.weight"), more=folded)
    assert told(path) == {"LyCORIS": len(linear())}


def test_names_of_lycoris_and_of_peft_have_their_readers(tmp_path: Path) -> None:
    """ComfyUI knows the former of some networks alone."""
    path, down = tmp_path / "a.safetensors", ("lora_down.weight", "lora_up.weight")
    file_of(path, "lycoris_", down)
    assert told(path) == {"LyCORIS": len(linear())}
    of_unet = linear("sdxl-tiny")
    file_of(path, "lycoris_", down, layers=lambda: of_unet)
    assert told(path, "sdxl-tiny") == dict.fromkeys(("Forge", "Forge Neo", "ComfyUI", "LyCORIS"), len(of_unet))
    own = tmp_path / "adapter_model.safetensors"
    file_of(own, "base_model.model.")
    assert told(own) == {}
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 2}), encoding="utf-8")
    assert told(own) == {"peft": len(linear())}


def test_a_reader_is_named_with_the_layers_that_it_takes(tmp_path: Path) -> None:
    """Of a file with layers of another network none for these, and no reader if none is left."""
    path = tmp_path / "a.safetensors"
    other = {"other.blocks.0.x": torch.zeros(4, 8), "other.blocks.1.x": torch.zeros(4, 8)}
    file_of(path, "diffusion_model.", name=released, layers=lambda: linear() | other)
    assert told(path)["ComfyUI"] == len(linear())
    assert "Forge" not in told(path)  # which has no Wan, unlike Forge Neo
    file_of(path, "diffusion_model.", layers=lambda: other)
    assert told(path) == {}


def test_a_scale_in_the_header_has_readers_that_look_there(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    of_flux = linear("flux-tiny")
    for alpha, is_read in ((2, True), (4, False)):
        file_of(path, "transformer.", header=settings(alpha), layers=lambda: of_flux)
        found = told(path, "flux-tiny")
        assert found["diffusers"] == len(of_flux)
        assert ("ComfyUI" in found) is is_read
        file_of(path, "lora_unet_", ("lora_down.weight", "lora_up.weight"), header=settings(alpha), name=released)
        assert ("musubi-tuner" in told(path)) is is_read


def results() -> dict[tuple[str, str, str], dict[str, str]]:
    """What the programs' own code made of files: the table of the page, whose files `drills.readers` writes."""
    rows = [
        line.strip(" |\n").split(" | ")
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    programs = ("diffusers", "peft", "comfyui", "lycoris", "diffsynth", "sdnext", "simpletuner", "wan2gp")
    return {
        (row[0].strip("`"), row[1], row[2].strip("`")): dict(
            zip(programs, (cell.strip("*") for cell in row[3:]), strict=True)
        )
        for row in rows
    }


@pytest.mark.parametrize(
    "name",
    [
        "wan",
        *(pytest.param(name, marks=pytest.mark.slow) for name in sorted({name for name, _, _ in results()} - {"wan"})),
    ],
)
def test_readers_are_those_of_the_programs_own_code(tmp_path: Path, name: str) -> None:
    """Of whole LoRAs, LoHas and LoKrs in each convention, as far as a program has the network."""
    found = results()
    for (network, kind, format), programs in found.items():
        if network != name:
            continue
        path = tmp_path / "a.safetensors"
        config = LoraConfig.model_validate({"type": kind, "rank": 4, "alpha": 2})
        readers.written(random_numbers.Random(0), f"{name}-tiny", config, format, path)
        asked = info.info(LoraInfoRequest(file=path))
        ways = {
            "diffusers": "diffusers" if kind == "lora" else "diffusers (load_lora_adapter)",
            "peft": "peft (inject_adapter_in_model)",
            "comfyui": "ComfyUI",
        }
        for program, way in ways.items():
            # A few pipelines load no LoRAs, where the networks themselves do.
            count = asked.readers.get(way, asked.readers.get(f"{way} (load_lora_adapter)", 0))
            whole = len(asked.result.layers)
            answer = "yes" if count == whole else "in part" if count else "no"
            is_open = programs[program] == "–" or (program, kind, programs[program]) == ("diffusers", "lokr", "in part")
            assert is_open or answer == programs[program], (kind, format, program)


@pytest.mark.filterwarnings("ignore:The following alpha_pattern keys did not match")
@pytest.mark.parametrize("alphas", [(2.0, 2.0), (2.0, 4.0)])
def test_alphas_that_differ_in_a_unet_of_kohya_have_no_reader_in_diffusers(
    tmp_path: Path, alphas: tuple[float, float]
) -> None:
    """It gives layers the alphas of others, whose names begin alike; with one alpha for all, what it draws is right."""
    path, ends, base = tmp_path / "a.safetensors", ("lora_down.weight", "lora_up.weight"), linear("sd1.5-tiny")
    stems = {layer: f"lora_unet_{layer.replace('.', '_')}.alpha" for layer in base}
    given = {stem: torch.tensor(alphas[number % 2]) for number, stem in enumerate(stems.values())}
    products = file_of(path, "lora_unet_", ends, layers=lambda: base, more=given)
    wanted = {layer: base[layer] + (each - base[layer]) * given[stems[layer]] / 2 for layer, each in products.items()}
    module = contract.build("sd1.5-tiny").module
    readers.through_pipeline("sd1.5-tiny", module, path, "unet")
    found = readers.merged(module)
    right = sum(torch.allclose(found[f"{layer}.weight"], value, atol=1e-5) for layer, value in wanted.items())
    assert (right == len(base)) == ("diffusers" in told(path, "sd1.5-tiny")) == (alphas[0] == alphas[1])


@pytest.mark.parametrize("other", [1.0, 4.0, None])
def test_alphas_beside_some_layers_alone_have_no_reader_in_diffusers(tmp_path: Path, other: float | None) -> None:
    """Its pipeline of FLUX gives one of them to the layers that have none; where all have one, what it draws is right."""
    path, base = tmp_path / "a.safetensors", linear("flux-tiny")
    alphas = {layer: alpha for i, layer in enumerate(base) if (alpha := (1.0, other)[i % 2]) is not None}
    given = {f"transformer.{layer}.alpha": torch.tensor(alpha) for layer, alpha in alphas.items()}
    products = file_of(path, "transformer.", layers=lambda: base, more=given)
    for layer, alpha in alphas.items():
        products[layer] = base[layer] + (products[layer] - base[layer]) * alpha / 2
    module = contract.build("flux-tiny").module
    readers.through_pipeline("flux-tiny", module, path, "transformer")
    found = readers.merged(module)
    right = sum(torch.allclose(found[f"{layer}.weight"], value, atol=1e-5) for layer, value in products.items())
    assert (right == len(base)) == ("diffusers" in told(path, "flux-tiny")) == (other is not None)


def test_layers_of_text_encoders_have_readers(tmp_path: Path) -> None:
    """Of CLIP in names of kohya and of diffusers; those of a network that has no such encoder have none."""
    path, down = tmp_path / "a.safetensors", ("lora_down.weight", "lora_up.weight")
    clips = [f"text_model.encoder.layers.0.self_attn.{name}" for name in ("q_proj", "out_proj")]
    of_unet = {layer: weight for layer, weight in linear("sdxl-tiny").items() if "attn1.to_q" in layer}
    text = {f"lora_te1_{clip.replace('.', '_')}.{end}": torch.ones(2, 2) for clip in clips for end in down}

    def of_release(layer: str) -> str:
        return release_layers.place(registry.PRESETS["sdxl-tiny"].config, layer).layer

    file_of(path, "lora_unet_", down, layers=lambda: of_unet, name=of_release, more=text)
    programs = ("sd-scripts", "Forge", "Forge Neo", "ComfyUI", "diffusers")
    assert told(path, "sdxl-tiny") == dict.fromkeys(programs, len(of_unet) + 2)
    file_of(path, "lora_unet_", down, name=released, more=text)
    assert told(path) == dict.fromkeys(("musubi-tuner", "Forge Neo", "ComfyUI"), len(linear()))
    save_file(text, path)
    assert told(path) == dict.fromkeys(("sd-scripts", "Forge", "Forge Neo", "ComfyUI"), 2)
    save_file({f"text_encoder.{clip}.lora_{side}.weight": torch.ones(2, 2) for clip in clips for side in "AB"}, path)
    assert told(path) == dict.fromkeys(("Forge", "Forge Neo", "ComfyUI", "diffusers"), 2)
    save_file(
        {
            f"text_encoders.clip_l.transformer.{clip}.lora_{side}.weight": torch.ones(2, 2)
            for clip in clips
            for side in "AB"
        },
        path,
    )
    assert told(path) == {"Forge Neo": 2, "ComfyUI": 2}
