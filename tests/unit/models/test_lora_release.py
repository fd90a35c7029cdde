"""LoRA files in the names of a model's release: where each layer lies, as diffusers' converters and ComfyUI have it."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections import Counter
from functools import partial
from pathlib import Path

import diffusers
import pytest
import tiny_recipe
import torch
from diffusers.loaders import lora_conversion_utils as converters
from diffusers.loaders.single_file_model import SINGLE_FILE_LOADABLE_CLASSES
from presets import config_of, every_class, network_of
from refused import refused
from torch import nn

from reelworks.core.errors import UserError
from reelworks.models import identify, registry
from reelworks.models.adapters import closest, files, key_mapping, release_layers
from reelworks.models.adapters.adapter_types.adapter_type import Adapter
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.export.lora import LoraFile
from reelworks.training.recipe import recipe_file

# Full widths, since the converters have them built in, and few blocks.
FEW = {
    "anima": {"num_layers": 1},
    "chroma1-hd": {"num_layers": 1, "num_single_layers": 1, "approximator_layers": 1},
    "ernie-image": {"num_layers": 1},
    "flux-dev": {"num_layers": 1, "num_single_layers": 1},
    "flux2-dev": {"num_layers": 1, "num_single_layers": 1},
    "flux2-klein-base-4b": {"num_layers": 1, "num_single_layers": 1},
    "hidream-i1-full": {"num_layers": 1, "num_single_layers": 1, "llama_layers": (0, 31)},
    "hunyuan-video-1.5": {"num_layers": 1},
    "flux3-klein-base": {"num_layers": 1, "num_single_layers": 1},
    "ideogram-4": {"num_layers": 1},
    "krea2-raw": {"num_layers": 1},
    "ltx-video-2b": {"num_layers": 1},
    "ltx-2": {"num_layers": 1},
    "ltx-2.3": {"num_layers": 1},
    "lumina-image-2.0": {"num_layers": 1, "num_refiner_layers": 1},
    "minimax-h3-sound": {"num_layers": 1, "num_refiner_layers": 1},
    "qwen-image": {"num_layers": 1},
    "qwen-image-2.1": {"num_layers": 1},
    "sd3.5-medium": {"num_layers": 2, "dual_attention_layers": (0,)},
    "sd1.5": {},
    "sdxl": {},
    "wan-2.1-14b": {"num_layers": 1},
    "wan-2.1-i2v-14b": {"num_layers": 1},
    "wan-2.1-flf2v-14b": {"num_layers": 1},
    "z-image": {"n_layers": 1, "n_refiner_layers": 1},
}
SINGLE_FILES = [name for name in FEW if name not in ("hunyuan-video-1.5", "ideogram-4", "qwen-image", "ltx-2.3")]

FULL_SIZE = [name for name in registry.PRESETS if not name.endswith("tiny")]


def small(name):
    return config_of(name).model_copy(update=FEW[name])


def linear(config) -> dict[str, nn.Linear]:
    with torch.device("meta"):
        module = network_of(config)
    return {key: child for key, child in module.named_modules() if isinstance(child, nn.Linear)}


class Whole(dict):
    """A file of a release in which what is not asked about is there too."""

    def pop(self, key, *default):
        return super().pop(key, *default) if key in self or default else torch.zeros(2, 1)


@pytest.mark.parametrize("name", SINGLE_FILES)
@pytest.mark.quick_cases(16)
def test_every_layer_lies_where_diffusers_finds_it_in_a_release(name):
    """Convolutions too. Rows marked by layer and by half, put where a place says, come back in order from diffusers' own converter."""
    require_found_by_diffusers(small(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL_SIZE)
def test_every_layer_of_a_network_at_full_size_is_found_by_diffusers(name):
    """Converters have numbers of blocks built in."""
    if config_of(name).network.name not in {config_of(other).network.name for other in SINGLE_FILES}:
        pytest.skip("no converter of diffusers reads such files, or the names are its own")
    require_found_by_diffusers(config_of(name))


def require_found_by_diffusers(config):
    with torch.device("meta"):
        found_layers = closest.with_weights(network_of(config))
    # The converter of LTX-2 does not know these layers of LTX-2.3, which ComfyUI's network has.
    layers = {layer: child for layer, child in found_layers.items() if "prompt_adaln." not in layer}
    file: dict[str, torch.Tensor] = {}
    marked = {}
    for number, (layer, child) in enumerate(layers.items(), start=1):
        rows = len(child.weight)
        marked[layer] = number + 0.5 * (torch.arange(rows) >= rows // 2)[:, None]
        place = release_layers.place(config, layer)
        whole = rows * sum(place.heights) // place.heights[place.part]
        top = whole * sum(place.heights[: place.part]) // sum(place.heights)
        there = file.setdefault(f"{place.layer}.weight", torch.zeros(whole, 1))
        assert not there[top : top + rows].any(), layer
        there[top : top + rows] = release_layers.swap_halves(marked[layer]) if place.swapped else marked[layer]
        file[f"{place.layer}.bias"] = torch.zeros(whole)
    kind = config.network.name
    if kind == "UNet2DConditionModel":
        # Blocks are counted, those without linear layers too.
        file |= {
            f"input_blocks.{i}.0.in_layers.0.bias": torch.zeros(1) for i in range(3 * len(config.block_out_channels))
        }
        file = {f"model.diffusion_model.{key}": value for key, value in file.items()}
    convert = SINGLE_FILE_LOADABLE_CLASSES[kind]["checkpoint_mapping_fn"]
    found = convert(checkpoint=Whole(file), config=config.model_dump())
    for layer, rows in marked.items():
        assert torch.equal(found[f"{layer}.weight"], rows), layer


# As ComfyUI builds the network: comfy/ldm/hunyuan_video/model.py with the blocks of comfy/ldm/flux/layers.py.
@pytest.mark.parametrize(
    ("layer", "there"),
    [
        ("transformer_blocks.7.attn.to_k", ("double_blocks.7.img_attn.qkv", 1)),
        ("transformer_blocks.7.attn.add_v_proj", ("double_blocks.7.txt_attn.qkv", 2)),
        ("transformer_blocks.0.ff.net.0.proj", ("double_blocks.0.img_mlp.0", 0)),
        ("transformer_blocks.0.norm1.linear", ("double_blocks.0.img_mod.lin", 0)),
        (
            "context_embedder.token_refiner.refiner_blocks.1.attn.to_q",
            ("txt_in.individual_token_refiner.blocks.1.self_attn.qkv", 0),
        ),
        ("context_embedder.time_text_embed.text_embedder.linear_2", ("txt_in.c_embedder.out_layer", 0)),
        ("context_embedder_2.linear_3", ("byt5_in.fc3", 0)),
        ("x_embedder.proj", ("img_in.proj", 0)),
        ("norm_out.linear", ("final_layer.adaLN_modulation.1", 0)),
    ],
)
def test_layers_of_hunyuan_video_lie_where_comfyui_has_them(layer, there):
    """No converter of diffusers reads these files; the names are those of ComfyUI's network."""
    assert release_layers.place(config_of("hunyuan-video-1.5"), layer)[:2] == there


GOLDEN = Path(__file__).parents[2] / "golden" / "comfyui_layers.json"
COMFYUI_NETWORKS = json.loads(GOLDEN.read_text(encoding="utf-8"))["networks"]
COMFYUI = {name: network["layers"] for network in COMFYUI_NETWORKS for name in network["presets"]}
# ComfyUI has the network of Flux for these, with fewer blocks.
LIKE_FLUX = ("LongCatImageTransformer2DModel",)
# No other program reads files of these; layers have the names of their own code.
OWN_NAMES = ("MMDiT", "SanaVideoTransformer3DModel", "STDiT2", "STDiT3")
_BLOCK = re.compile(r"(?<=blocks\.)\d+|(?<=\blayers\.)\d+|(?<=refiner\.)\d+|(?<=caption_projection\.)\d+")


@pytest.mark.parametrize("name", FULL_SIZE)
@pytest.mark.quick_cases(51)
def test_no_linear_layer_of_a_network_at_full_size_lacks_a_name_in_its_release(name):
    """ComfyUI's own network has each layer of the release, in as many blocks; of others diffusers' converter knows."""
    config = config_of(name)
    if name not in COMFYUI:
        assert config.network.name in (
            *OWN_NAMES,
            *LIKE_FLUX,
            *(config_of(other).network.name for other in SINGLE_FILES),
        )
        return
    layers = [layer for layer, child in identify.network(name).named_modules() if isinstance(child, nn.Linear)]
    found = Counter(_BLOCK.sub("N", layer) for layer in {release_layers.place(config, layer).layer for layer in layers})
    assert {layer: COMFYUI[name].get(layer) for layer in found} == found


def test_layers_of_longcat_image_lie_where_those_of_flux_do():
    """ComfyUI builds its network by the code of Flux (comfy/model_base.py)."""
    flux, own = config_of("flux-dev"), config_of("longcat-image")
    for layer in linear(own):
        there = layer.replace("time_embed.", "time_text_embed.")
        assert release_layers.place(own, layer) == release_layers.place(flux, there), layer


def zeros(layers, kind):
    """An adapter of rank 1 on every linear layer, as a checkpoint holds it."""
    made = {}
    for layer, child in layers.items():
        rows, columns = child.out_features, child.in_features
        first = 2 - rows % 2, 2 - columns % 2
        pair = {"a": (rows, 1), "b": (1, columns)}
        shapes = {
            "lora": {"lora_A": pair["b"], "lora_B": pair["a"]},
            "loha": {f"hada_w{i}_{side}": pair[side] for i in (1, 2) for side in "ab"},
            "lokr": {"lokr_w1": first, "lokr_w2_a": (rows // first[0], 1), "lokr_w2_b": (1, columns // first[1])},
        }[kind]
        end = ".weight" if kind == "lora" else ""
        made |= {f"{layer}.{part}.default{end}": torch.zeros(shape) for part, shape in shapes.items()}
    return made


def names_that_comfyui_takes(network, own):
    """A pattern of the names of layers in files for ComfyUI and kohya's, for networks of a class with layers `own` in diffusers."""
    known = [one for one in COMFYUI_NETWORKS if config_of(one["presets"][0]).network.name == network]
    layers = {layer for one in known for layer in one["layers"]}
    names = {f"diffusion_model.{layer}" for layer in layers}
    names |= {f"lora_unet_{layer.replace('.', '_')}" for layer in layers}
    names |= {name for one in known for name in one.get("mapped", ())}
    if network == "UNet2DConditionModel":  # whose layers of diffusers `model_lora_keys_unet` in comfy/lora.py maps
        names |= {f"lora_unet_{layer.replace('.', '_')}" for layer in own}
    block = re.compile(r"(?<=[._])N(?=[\\_])")
    return re.compile("|".join(block.sub("[0-9]+", re.escape(name)) for name in sorted(names)))


@every_class
def test_comfyui_takes_every_layer_of_a_file(name):
    """Of every type of adapter, and of every linear layer of the network."""
    config = config_of(name)
    if config.network.name not in {config_of(preset).network.name for preset in COMFYUI}:
        pytest.skip("ComfyUI's network of this class is not known here")
    layers, written = linear(config), set()
    pattern = names_that_comfyui_takes(config.network.name, layers)
    homes = release_layers.homes(layers, config)
    for kind, format in itertools.product(("lora", "loha", "lokr"), ("comfyui", "kohya")):
        settings = LoraConfig(type=kind, rank=1)
        try:
            settings.require_writable(format, "exports.formats", config.network)
        except UserError:
            continue
        file = LoraFile(format, settings.adapter, name, config.network.part).content(zeros(layers, kind))
        names = {re.sub(r"\.(lora_|hada_|lokr_|alpha$).*", "", key) for key in file.tensors}
        assert not [one for one in names if not pattern.fullmatch(one)]
        placed = {key_mapping.split_name(f"{one}.alpha")[0] for one in names}
        assert {target.layer for one in placed for target in homes[one]} == {*layers}
        written.add((kind, format))
    assert written >= set(itertools.product(("lora", "loha"), ("comfyui", "kohya")))


@every_class
def test_no_name_in_a_file_means_the_same_rows_of_a_layer_twice(name):
    """Names of a release and of trainers differ by dots that kohya's names fold; an update would be added for each."""
    config = config_of(name)
    for spelling, targets in release_layers.homes(linear(config), config).items():
        rows = [(target.layer, target.place.part, target.place.heights) for target in targets]
        assert len(rows) == len({*rows}), spelling


def state(config, targets, rank=2):
    """A LoRA of random numbers, as a checkpoint holds it."""
    g = torch.Generator().manual_seed(0)
    made = {}
    for layer, child in linear(config).items():
        if any(layer.endswith(f".{target}") for target in targets):
            made[f"{layer}.lora_A.default.weight"] = torch.randn(rank, child.in_features, generator=g)
            made[f"{layer}.lora_B.default.weight"] = torch.randn(child.out_features, rank, generator=g)
    return made


def updates(made, scale, ends):
    """What each layer adds to an input of ones."""
    a, b = ends
    layers = [key.removesuffix(a) for key in made if key.endswith(a)]
    return {one: scale * (made[one + b] @ made[one + a].sum(1)) for one in layers}


def of_unet(tensors, name="sdxl-tiny"):
    config = diffusers.UNet2DConditionModel.from_config(config_of(name).model_dump()).config
    mapped = converters._maybe_map_sgm_blocks_to_diffusers(dict(tensors), _Like(config, layers_per_block=2))
    made, alphas = converters._convert_non_diffusers_lora_to_diffusers(mapped)
    (alpha,) = set(alphas.values())
    ends = {"_lora.down.weight": ".lora_A.weight", "_lora.up.weight": ".lora_B.weight"}
    renamed = {}
    for key, value in made.items():
        old = next(end for end in ends if key.endswith(end))
        layer = key.removesuffix(old).replace(".processor", "").replace("to_out", "to_out.0")
        renamed[layer.removeprefix("unet.") + ends[old]] = value * (alpha / 2 if "down" in old else 1)
    return {f"transformer.{key}": value for key, value in renamed.items()}


class _Like:
    def __init__(self, config, **other):
        self.__dict__ |= dict(config) | other


def of_flux(tensors):
    """ComfyUI takes either ending, this converter the older one alone."""
    ends = {"lora_A": "lora_down", "lora_B": "lora_up"}
    renamed = {next((k.replace(a, b) for a, b in ends.items() if a in k), k): v for k, v in tensors.items()}
    return converters._convert_kohya_flux_lora_to_diffusers(renamed)


ATTENTION = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
CASES = [
    ("chroma1-hd", "comfyui", of_flux, "proj_mlp proj_out ff.net.2"),
    ("wan-2.1-14b", "comfyui", converters._convert_non_diffusers_wan_lora_to_diffusers, "ffn.net.0.proj ffn.net.2"),
    *(
        ("wan-2.1-i2v-14b", format, convert, "ffn.net.0.proj ffn.net.2")
        for format, convert in (
            ("comfyui", converters._convert_non_diffusers_wan_lora_to_diffusers),
            ("kohya", converters._convert_musubi_wan_lora_to_diffusers),
        )
    ),
    *(
        (
            "minimax-h3-sound",
            format,
            converters._convert_non_diffusers_minimax_h3_lora_to_diffusers,
            "ff.net.0.proj ff.net.2 linear linear_1 linear_2",
        )
        for format in ("comfyui", "kohya")
    ),
    ("wan-2.1-14b", "kohya", converters._convert_musubi_wan_lora_to_diffusers, "ffn.net.0.proj ffn.net.2"),
    ("flux-dev", "comfyui", of_flux, "proj_mlp proj_out norm1.linear"),
    ("flux-dev", "kohya", converters._convert_kohya_flux_lora_to_diffusers, "proj_mlp norm.linear ff.net.2"),
    ("flux2-dev", "comfyui", converters._convert_non_diffusers_flux2_lora_to_diffusers, "to_qkv_mlp_proj to_out"),
    ("flux2-dev", "kohya", converters._convert_kohya_flux2_lora_to_diffusers, "to_qkv_mlp_proj ff.linear_in"),
    (
        "flux2-klein-base-4b",
        "comfyui",
        converters._convert_non_diffusers_flux2_lora_to_diffusers,
        "to_qkv_mlp_proj to_out",
    ),
    (
        "flux3-klein-base",
        "comfyui",
        converters._convert_non_diffusers_flux3_lora_to_diffusers,
        "ff.linear_in ff.linear_out",
    ),
    (
        "hidream-i1-full",
        "comfyui",
        converters._convert_non_diffusers_hidream_lora_to_diffusers,
        "to_out to_q_t experts.3.w2 shared_experts.w1 ff_t.w3 adaLN_modulation.1 linear",
    ),
    (
        "ideogram-4",
        "comfyui",
        converters._convert_non_diffusers_ideogram4_lora_to_diffusers,
        "w1 w2 w3",
    ),
    (
        "krea2-raw",
        "comfyui",
        converters._convert_non_diffusers_krea2_lora_to_diffusers,
        "to_gate ff.gate ff.down projector img_in linear_2 time_mod_proj linear",
    ),
    ("ltx-video-2b", "comfyui", converters._convert_non_diffusers_ltxv_lora_to_diffusers, "ff.net.2"),
    ("ltx-2", "comfyui", converters._convert_non_diffusers_ltx2_lora_to_diffusers, "ff.net.2 linear"),
    ("ltx-2.3", "comfyui", converters._convert_non_diffusers_ltx2_lora_to_diffusers, "to_gate_logits linear"),
    (
        "anima",
        "comfyui",
        converters._convert_non_diffusers_anima_lora_to_diffusers,
        "ff.net.0.proj ff.net.2 patch_embed.proj proj_out linear_1 linear_2",
    ),
    (
        "lumina-image-2.0",
        "comfyui",
        converters._convert_non_diffusers_lumina2_lora_to_diffusers,
        "feed_forward.linear_1 feed_forward.linear_2 feed_forward.linear_3 norm1.linear",
    ),
    ("qwen-image", "comfyui", converters._convert_non_diffusers_qwen_lora_to_diffusers, "img_mlp.net.2"),
    ("qwen-image", "kohya", converters._convert_non_diffusers_qwen_lora_to_diffusers, ""),
    ("z-image", "comfyui", converters._convert_non_diffusers_z_image_lora_to_diffusers, "feed_forward.w2"),
    ("z-image", "kohya", converters._convert_non_diffusers_z_image_lora_to_diffusers, "feed_forward.w2"),
    ("sd1.5", "kohya", partial(of_unet, name="sd1.5-tiny"), ""),
    ("sdxl", "kohya", of_unet, ""),
]


@pytest.mark.parametrize(("name", "format", "convert", "more"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
@pytest.mark.quick_cases(26)
def test_diffusers_converter_finds_the_same_updates(name, format, convert, more):
    """Files for ComfyUI and of kohya's names mean to diffusers what was trained, layer by layer, alpha included.

    Some of these converters know no alpha.
    """
    config = small(name)
    made = state(config, [*ATTENTION, *more.split()])
    alpha = 2.3
    file = files.to_file(made, format, adapter=Adapter(rank=2, alpha=alpha), model=name)
    found = updates(
        convert({key: value.clone() for key, value in file.tensors.items()}), 1, (".lora_A.weight", ".lora_B.weight")
    )
    wanted = updates(made, alpha / 2, (".lora_A.default.weight", ".lora_B.default.weight"))
    assert found.keys() == {f"transformer.{layer}" for layer in wanted}
    for layer, value in wanted.items():
        torch.testing.assert_close(found[f"transformer.{layer}"], value, rtol=1e-4, atol=1e-4, msg=layer)


@pytest.mark.parametrize("format", ["comfyui", "kohya"])
def test_layers_that_are_not_adapted_add_nothing_to_a_fused_one(format):
    """Of a query and a value alone, the fused layer has rank 2r and rows of zeros for the key."""
    file = files.to_file(
        state(small("flux-dev"), ["to_q", "to_v"]), format, adapter=Adapter(rank=2, alpha=2.0), model="flux-dev"
    )
    (up,) = (v for k, v in file.tensors.items() if "img_attn" in k and k.endswith(("B.weight", "up.weight")))
    q, k, v = up.chunk(3)
    assert up.shape[1] == 4
    assert not torch.cat([k[:, :2], k[:, 2:], q[:, 2:], v[:, :2]]).any()
    assert all(part.any() for part in (q[:, :2], v[:, 2:]))


def fused(tmp_path, B, A=None, alpha=None, targets=("to_q", "to_k", "to_v"), rank=4):
    """Read a file of one fused layer into the query, key and value of a small Flux."""
    from safetensors.torch import save_file

    config = config_of("flux-tiny")
    A = torch.randn(B.shape[1], 32) if A is None else A
    stem = "lora_unet_double_blocks_0_img_attn_qkv"
    tensors = {f"{stem}.lora_down.weight": A, f"{stem}.lora_up.weight": B}
    if alpha is not None:
        tensors[f"{stem}.alpha"] = torch.tensor(alpha)
    save_file(tensors, tmp_path / "fused.safetensors")
    own = {}
    for target in targets:
        layer = f"transformer_blocks.0.attn.{target}"
        own |= {f"{layer}.lora_A.default.weight": torch.empty(rank, 32)}
        own |= {f"{layer}.lora_B.default.weight": torch.empty(32, rank)}
    settings = LoraConfig(rank=rank, alpha=alpha)
    return A, files.read(str(tmp_path / "fused.safetensors"), "lora.weights", own, settings, config)


def test_a_fused_update_of_full_rows_is_taken_apart(tmp_path):
    """One trained on the fused layer becomes three of the same rank: the same A, and their rows of B."""
    B = torch.randn(96, 4)
    A, found = fused(tmp_path, B, alpha=2.0)
    for i, target in enumerate(("to_q", "to_k", "to_v")):
        layer = f"transformer_blocks.0.attn.{target}"
        assert torch.equal(found[f"{layer}.lora_A.default.weight"], A)
        assert torch.equal(found[f"{layer}.lora_B.default.weight"], B[32 * i : 32 * i + 32])


def test_a_fused_update_with_rows_for_other_layers_is_refused(tmp_path):
    """Nothing of a file is dropped without a word."""
    with refused("lora-does-not-fit", "lora.weights", says="1 of its 2 tensors fits no layer"):
        fused(tmp_path, torch.randn(96, 4), targets=("to_q",))


def test_the_rank_of_blocks_is_told_as_that_of_a_layer(tmp_path):
    """Of three blocks of rank 5, not 15."""
    B = torch.block_diag(*[torch.randn(32, 5) for _ in range(3)])
    with refused("lora-settings-differ", "lora.rank", says="lora.weights has rank 5"):
        fused(tmp_path, B)


def test_zeros_of_a_fresh_lora_come_back(tmp_path):
    """B is zero before the first step; the stacked A are taken apart nevertheless."""
    A, found = fused(tmp_path, torch.zeros(96, 12))
    layer = "transformer_blocks.0.attn.to_k"
    assert torch.equal(found[f"{layer}.lora_A.default.weight"], A[4:8])


@pytest.mark.parametrize("format", ["comfyui", "kohya"])
def test_dora_is_refused_at_once_where_its_meaning_would_change(format):
    """A recipe that would write such files is refused before anything is read."""
    values = tiny_recipe.least(
        bucket=[{"resolution": "64px", "num_frames": [1], "batch_size": [1]}],
        lora={"dora": True},
        exports={"formats": ["diffusers", format]},
    )
    with pytest.raises(UserError, match=rf"exports.formats = '{format}': ComfyUI scales"):
        recipe_file.parse(copy.deepcopy(values))
    assert recipe_file.parse(values | {"exports": {"formats": ["diffusers"]}}).lora.dora


def test_halves_that_a_release_swaps_are_swapped_back_by_diffusers():
    """FLUX's last modulation has shift and scale the other way round."""
    config = small("flux-dev")
    made = {f"norm_out.linear.lora_{part}.default.weight": torch.randn(shape) for part, shape in PAIR.items()}
    file = files.to_file(made | state(config, ["to_q"]), "kohya", adapter=Adapter(rank=2, alpha=2.0), model="flux-dev")
    found = converters._convert_kohya_flux_lora_to_diffusers(dict(file.tensors))
    assert torch.equal(found["norm_out.linear.lora_B.weight"], made["norm_out.linear.lora_B.default.weight"])


PAIR = {"A": (2, 3072), "B": (6144, 2)}


def test_a_fused_update_of_the_asked_rank_is_not_taken_for_blocks(tmp_path):
    """Zeros fit both readings; the rank decides."""
    A, found = fused(tmp_path, torch.zeros(96, 6), rank=6)
    assert torch.equal(found["transformer_blocks.0.attn.to_k.lora_A.default.weight"], A)
