"""LoRA: which layers it adapts, and files that bring the same updates back in every convention."""

from __future__ import annotations

import json
from pathlib import Path

import adapters
import diffusers
import peft
import pytest
import tiny_recipe
import torch
from presets import config_of
from refused import refused
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from reelworks.core.errors import UserError
from reelworks.models.adapters import files, inject
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.base_model import require_same
from reelworks.testing import contract
from reelworks.training.assembly import build
from reelworks.training.recipe import recipe_file

FORMATS = ("diffusers", "comfyui", "kohya")
# An alpha that is not the rank, and no power of two beside it.
SETTINGS = LoraConfig(rank=3, alpha=2.3)
ATTENTIONS = ("to_q", "to_k", "to_v", "to_out.0")
# Its scale is rounded into the numbers of a file, and out of them.
BACK = {"rtol": 2**-22, "atol": 0.0}


def adapted(name="wan-tiny", settings=SETTINGS, seed=0):
    return adapters.adapted(name, settings, seed)


def written(folder: Path, denoiser, format="diffusers", settings=SETTINGS, part="transformer", name="wan-tiny") -> Path:
    file = files.to_file(inject.weights(denoiser.module), format, adapter=settings.adapter, part=part, model=name)
    path = folder / f"{format}.safetensors"
    save_file({name: value.contiguous() for name, value in file.tensors.items()}, path, file.header)
    return path


def load(denoiser, path, settings=SETTINGS, name="wan-tiny"):
    """Load a file into a network as a recipe that names it does."""
    settings = settings.model_copy(update={"weights": str(path)})
    files.load_into(denoiser.module, settings, config_of(name))


# Layers have the same names in all networks of a class, and in files of diffusers those of the network.
ALL_FORMATS = [
    pytest.param(name, False, formats, marks=[] if name in quick else pytest.mark.slow)
    for name in contract.FAMILIES
    for formats, quick in ((FORMATS[:1], ("wan-tiny", "sdxl-tiny")), (FORMATS[1:], contract.CLASSES))
]


@pytest.mark.parametrize(("name", "dora", "formats"), [*ALL_FORMATS, ("wan-tiny", True, FORMATS[:1])])
def test_a_file_brings_every_number_back(tmp_path, formats, name, dora):
    """Read back into another LoRA of the same base, a file of any convention leaves no number different."""
    settings = SETTINGS.model_copy(update={"dora": dora, "targets": "blocks"})
    one, other = adapted(name, settings), adapted(name, settings, seed=1)
    wanted, found = (inject.weights(denoiser.module) for denoiser in (one, other))
    for format in formats:
        for value in found.values():
            value.add_(1)  # what the file before it brought
        load(other, written(tmp_path, one, format, settings, name=name), settings, name)
        torch.testing.assert_close(found, wanted, **BACK)


@torch.no_grad()
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("type", ["lora", "loha", "lokr"])
def test_dropout_is_in_training_alone(type, dropout):
    """Two passes of one input differ where numbers are left out by chance."""
    denoiser = adapted(settings=LoraConfig(type=type, rank=4, dropout=dropout))
    inputs = contract.example(contract.Shape(1, 4, 4), "wan-tiny")
    for training in (True, False):
        denoiser.module.train(training)
        passes = [denoiser.predict(inputs) for _ in range(2)]
        assert torch.equal(*passes) == (not training or dropout == 0)


@pytest.mark.parametrize("format", FORMATS)
def test_a_scale_that_is_a_power_of_two_changes_no_bit(tmp_path, format):
    """Alphas of the rank, its half and its double are the usual ones."""
    settings = SETTINGS.model_copy(update={"alpha": 1.5})
    one, other = adapted("flux-tiny", settings), adapted("flux-tiny", settings, seed=1)
    load(other, written(tmp_path, one, format, settings, name="flux-tiny"), settings, "flux-tiny")
    found = inject.weights(other.module)
    assert all(torch.equal(value, found[name]) for name, value in inject.weights(one.module).items())


def updates(denoiser, settings):
    """What a LoRA adds to each layer's weight."""
    layers = inject.group_by_layer(inject.weights(denoiser.module))
    return {layer: kinds["B"] @ kinds["A"] * settings.exact_alpha / settings.rank for layer, kinds in layers.items()}


@pytest.mark.parametrize("format", FORMATS)
def test_training_goes_on_with_another_alpha_from_the_same_updates(tmp_path, format):
    """The alpha of a recipe is that of its training; what a file adds to each weight is the file's."""
    one, other_alpha = adapted(), SETTINGS.model_copy(update={"alpha": 48.0})
    other = adapted(settings=other_alpha, seed=1)
    load(other, written(tmp_path, one, format), other_alpha)
    torch.testing.assert_close(updates(other, other_alpha), updates(one, SETTINGS))


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_has_the_scale_1_for_every_reader(tmp_path, format):
    """Whether a reader looks for alpha beside the tensors, in the header, or nowhere."""
    path = written(tmp_path, adapted(), format)
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        told = file.metadata()
    assert told["ss_network_alpha"] == told["ss_network_dim"]
    assert "lora.alpha = 2.3" in told["ss_training_comment"]
    assert told["modelspec.usage_hint"]
    peft_settings = json.loads(told.get("lora_adapter_metadata", "{}"))
    assert peft_settings.get("transformer.lora_alpha") == peft_settings.get("transformer.r")
    downs = {n.rsplit(".", 2)[0]: v.shape[0] for n, v in tensors.items() if n.endswith(("A.weight", "down.weight"))}
    alphas = {name.removesuffix(".alpha"): float(value) for name, value in tensors.items() if name.endswith(".alpha")}
    assert alphas in ({}, downs)


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize(("name", "part"), [("wan-tiny", "transformer"), ("sdxl-tiny", "unet")])
def test_diffusers_answers_as_the_trained_network(tmp_path, name, part, dora):
    """A file in diffusers' convention, loaded by diffusers into the base, gives the same answer, alpha included."""
    settings = SETTINGS.model_copy(update={"dora": dora})
    trained, base = adapted(name, settings), contract.build(name)
    inputs = contract.example(contract.shapes(name)[-1], name)
    with torch.no_grad():
        before = base.predict(inputs)
        path = written(tmp_path, trained, settings=settings, part=part)
        base.module.load_lora_adapter(str(path.parent), weight_name=path.name, prefix=part)
        torch.testing.assert_close(base.predict(inputs), trained.predict(inputs))
    assert not torch.allclose(base.predict(inputs), before)


def test_a_pipeline_takes_the_file(tmp_path):
    """What a person types in diffusers, pipeline.load_lora_weights, finds all of it."""
    trained, base = adapted(), contract.build("wan-tiny")
    path = written(tmp_path, trained)
    pipeline = diffusers.WanPipeline(None, None, None, None, base.module)
    pipeline.load_lora_weights(str(tmp_path), weight_name=path.name)
    inputs = contract.example(contract.shapes("wan-tiny")[-1], "wan-tiny")
    torch.testing.assert_close(base.predict(inputs), trained.predict(inputs))


@pytest.mark.parametrize("way", ["the path of a file", "its folder and name"])
def test_every_way_to_load_a_file_into_a_network_gives_the_same(tmp_path, way):
    """With the path alone, diffusers does not read the header."""
    trained, base = adapted(), contract.build("wan-tiny")
    path = written(tmp_path, trained)
    where = {"the path of a file": [path], "its folder and name": [tmp_path]}[way]
    base.module.load_lora_adapter(*map(str, where), **({"weight_name": path.name} if where != [path] else {}))
    inputs = contract.example(contract.shapes("wan-tiny")[-1], "wan-tiny")
    torch.testing.assert_close(base.predict(inputs), trained.predict(inputs))


def test_names_of_each_convention(tmp_path):
    """The names that the conventions' readers look for."""
    layer, released = "blocks.0.attn1.to_out.0", "blocks.0.self_attn.o"
    expected = {
        "diffusers": {f"transformer.{layer}.lora_A.weight", f"transformer.{layer}.lora_B.weight"},
        "comfyui": {f"diffusion_model.{released}.{end}" for end in ("lora_A.weight", "lora_B.weight")},
        "kohya": {f"lora_unet_blocks_0_self_attn_o.{end}" for end in ("lora_down.weight", "lora_up.weight", "alpha")},
    }
    denoiser = adapted(settings=SETTINGS.model_copy(update={"targets": [layer]}))
    for format, names in expected.items():
        path = written(tmp_path, denoiser, format)
        assert load_file(path).keys() == names
        with safe_open(path, "pt") as file:
            assert file.metadata()["modelspec.architecture"] == "wan-tiny/lora"


def test_a_lora_of_another_base_is_refused_with_numbers(tmp_path):
    """It says how many tensors fit nothing and how many layers stay empty, and changes nothing."""
    path = written(tmp_path, adapted())
    other = adapted("flux-tiny")
    before = {name: value.clone() for name, value in inject.weights(other.module).items()}
    settings = SETTINGS.model_copy(update={"weights": str(path)})
    with pytest.raises(
        UserError, match=rf"another base.*: {len(load_file(path))} of its .*{len(before)} of {len(before)} here"
    ):
        files.load_into(other.module, settings, config_of("flux-tiny"))
    assert all(torch.equal(value, before[n]) for n, value in inject.weights(other.module).items())


@pytest.mark.parametrize(("key", "value"), [("seed", 1), ("model.name", "flux-tiny")])
def test_what_a_base_is_a_function_of_is_named_where_it_is_another(key, value):
    """And with that as it was, it is the same again."""

    def base(**changes):
        values = tiny_recipe.least(model={"name": changes.get("model.name", "wan-tiny")}, lora={"rank": 2})
        made = recipe_file.parse(values | {"seed": changes.get("seed", 0)})
        return build.denoiser(made, torch.device("cpu")).base

    with refused("lora-of-another-base", "checkpoint") as caught:
        require_same(base(), base(**{key: value}), "step-000000001")
    assert key in caught.value.remedy
    require_same(base(), base(), "step-000000001")


@pytest.mark.parametrize("format", FORMATS)
def test_another_rank_is_refused(tmp_path, format):
    """The error says what to set."""
    path = written(tmp_path, adapted(), format)
    settings = SETTINGS.model_copy(update={"rank": 4})
    with refused("lora-settings-differ", "lora.rank", says="has rank 3"):
        load(adapted(settings=settings), path, settings)


def test_layers_that_the_file_lacks_are_told(tmp_path):
    """A file of fewer layers than asked for is no silent half."""
    path = written(tmp_path, adapted(settings=SETTINGS.model_copy(update={"targets": ["to_q"]})))
    with refused("lora-does-not-fit", "lora.weights", says="0 of its 8 tensors.* and 24 of 32 here"):
        load(adapted(), path)


@pytest.mark.parametrize(
    "made",
    [
        peft.LoraConfig(r=3, lora_alpha=7, init_lora_weights=False),
        peft.LoraConfig(r=3, lora_alpha=7, use_rslora=True, init_lora_weights=False),
        peft.LoraConfig(r=9, lora_alpha=7, rank_pattern=dict.fromkeys(ATTENTIONS, 3), init_lora_weights=False),
        peft.LoraConfig(r=3, lora_alpha=7, alpha_pattern=dict.fromkeys(ATTENTIONS, 2), init_lora_weights=False),
        peft.LoraConfig(r=3, lora_alpha=7, alpha_pattern={"to_q": 2, "attn2.to_v": 5}, init_lora_weights=False),
        peft.LoHaConfig(r=3, alpha=7, init_weights=False),
        peft.LoKrConfig(r=3, alpha=7, init_weights=False),
        peft.LoKrConfig(r=99, alpha=7, init_weights=False, decompose_factor=2),
        peft.LoKrConfig(r=99, alpha=7, rank_pattern={"to_q": 77}, init_weights=False, decompose_factor=2),
        peft.OFTConfig(r=0, oft_block_size=4, init_weights=False),
    ],
    ids=[
        *(
            "LoRA",
            "rsLoRA",
            "LoRA of one rank by layer",
            "LoRA of one alpha by layer",
            "LoRA of several alphas",
            "LoHa",
        ),
        *("LoKr", "LoKr of full factors", "LoKr of full factors of several ranks", "OFT"),
    ],
)
def test_a_file_of_peft_adds_what_it_does_in_peft(tmp_path, made):
    """By the settings beside it, also those of single layers, whatever the alpha of the recipe."""
    base, inputs = contract.build("wan-tiny"), contract.example(contract.shapes("wan-tiny")[-1], "wan-tiny")
    made.target_modules = list(base.lora_targets())
    theirs = peft.get_peft_model(base.module, made)
    theirs.save_pretrained(tmp_path)
    kind = made.peft_type.value.lower()
    values = {"oft": {"block_size": 4}}.get(kind, {"rank": 3 if made.r == 9 else made.r, "alpha": 5.0})
    factor = {"decompose_factor": 2} if made.r == 99 else {}
    settings = LoraConfig(type=kind, **values, **factor)
    ours = adapted(settings=settings)
    load(ours, tmp_path / "adapter_model.safetensors", settings)
    with torch.no_grad():
        torch.testing.assert_close(ours.predict(inputs), base.predict(inputs))


@pytest.mark.parametrize(
    "made",
    [
        *(peft.LoraConfig(r=3, init_lora_weights=name) for name in ("pissa", "pissa_niter_2", "olora", "mica")),
        peft.OFTConfig(r=0, oft_block_size=4, coft=True),
    ],
    ids=["PiSSA", "fast PiSSA", "OLoRA", "MiCA", "COFT"],
)
def test_a_file_of_peft_that_takes_from_the_base_is_refused(tmp_path, made):
    """Its numbers hold a part of the base, which peft takes out of it, or are rotated otherwise."""
    base = contract.build("wan-tiny")
    made.target_modules = list(base.lora_targets())
    peft.get_peft_model(base.module, made).save_pretrained(tmp_path)
    settings = LoraConfig(rank=3) if made.peft_type == "LORA" else LoraConfig(type="oft", block_size=4)
    with refused("lora-unreadable", says="its header has .*, which is not supported"):
        load(adapted(settings=settings), tmp_path / "adapter_model.safetensors", settings)


@pytest.mark.parametrize("format", ["diffusers", "comfyui"])
def test_a_file_in_float8_is_read_in_float32(tmp_path, format):
    """Also one whose layers join several, which are taken apart; torch has neither sums nor counts for its numbers."""
    one, other = adapted("flux-tiny"), adapted("flux-tiny", seed=1)
    path = written(tmp_path, one, format, name="flux-tiny")
    narrow = {name: value.to(torch.float8_e4m3fn) for name, value in load_file(path).items()}
    with safe_open(path, "pt") as file:
        save_file(narrow, path, file.metadata())
    load(other, path, name="flux-tiny")
    wanted, found = (inject.weights(denoiser.module) for denoiser in (one, other))
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0.1, atol=0.01)


@pytest.mark.parametrize("part", ["text_encoder", "text_encoder_2"])
def test_the_alpha_of_a_text_encoder_is_not_that_of_the_network(tmp_path, part):
    """Files of diffusers have settings for each part, those of text encoders last."""
    one, other = adapted("sdxl-tiny"), adapted("sdxl-tiny", seed=1)
    path = written(tmp_path, one, part="unet", name="sdxl-tiny")
    stem = f"{part}.text_model.encoder.layers.0.self_attn.q_proj.lora"
    tensors = load_file(path) | {f"{stem}_{side}.weight": torch.ones(3, 3) for side in "AB"}
    with safe_open(path, "pt") as file:
        told = json.loads(file.metadata()["lora_adapter_metadata"])
    told |= {f"{part}.r": 3, f"{part}.lora_alpha": 24}
    save_file(tensors, path, {"lora_adapter_metadata": json.dumps(told)})
    load(other, path, name="sdxl-tiny")
    wanted, found = (inject.weights(denoiser.module) for denoiser in (one, other))
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, **BACK)


def test_the_alpha_of_other_layers_is_none_of_a_rotation(tmp_path):
    """A file may have LoRA and OFT layers under one header, whose alpha and rank are those of the LoRA."""
    settings = LoraConfig(type="oft", block_size=4)
    one, other = adapted(settings=settings), adapted(settings=settings, seed=1)
    path = written(tmp_path, one, settings=settings)
    told = {"transformer.r": 4, "transformer.lora_alpha": 8}
    save_file(load_file(path), path, {"lora_adapter_metadata": json.dumps(told)})
    load(other, path, settings)
    wanted, found = (inject.weights(denoiser.module) for denoiser in (one, other))
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, **BACK)


def test_what_is_no_file_or_cut_off_is_refused(tmp_path):
    """A folder, whose header would not be read, a missing file, and a truncated one."""
    path = written(tmp_path, adapted())
    path.write_bytes(path.read_bytes()[:100])
    for source, said in (
        (tmp_path, "not a .safetensors file"),
        (tmp_path / "no.safetensors", "not a"),
        (path, "header"),
    ):
        with pytest.raises(UserError, match=said):
            load(adapted(), source)


@pytest.mark.parametrize(
    ("target", "near"), [("to_qq", '"to_q"'), ("blocks.0.attn1.to_w", "blocks.0.attn1.to_"), ("norm1", "known")]
)
def test_an_unknown_target_is_refused_with_its_nearest(target, near):
    """Names of no linear layer, nearest ones beside them, before anything is changed."""
    denoiser = contract.build("wan-tiny")
    with refused("unknown-layer", "lora.targets") as caught:
        inject.inject(denoiser, LoraConfig(targets=["to_k", target]), seed=0)
    assert near in caught.value.remedy
    assert all(parameter.requires_grad for parameter in denoiser.module.parameters())


@pytest.mark.parametrize(("targets", "count"), [("default", 16), (["to_q", "to_v"], 8), (["net.2"], 2)])
def test_targets(targets, count):
    """Attentions' layers, or those named; each is adapted once."""
    denoiser = adapted(settings=LoraConfig(rank=2, targets=targets))
    layers = {layer for layer, _ in inject.parts(inject.weights(denoiser.module)).values()}
    assert len(layers) == count


def test_first_values_follow_the_seed_alone():
    """The same seed draws the same LoRA, and no global generator moves."""
    state = torch.get_rng_state()
    values = [torch.cat([v.flatten() for v in inject.weights(_fresh(seed)).values()]) for seed in (1, 1, 2)]
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])
    assert torch.equal(state, torch.get_rng_state())


def _fresh(seed):
    denoiser = contract.build("wan-tiny")
    inject.inject(denoiser, LoraConfig(rank=2), seed=seed)
    return denoiser.module


def test_a_frozen_base_is_stored_as_it_is_and_the_lora_in_float32():
    """A base in bfloat16 keeps its dtype; what the optimizer updates is float32."""
    denoiser = contract.build("wan-tiny", compute=torch.bfloat16, storage=torch.bfloat16)
    inject.inject(denoiser, LoraConfig(rank=2), seed=0)
    dtypes = {(p.requires_grad, p.dtype) for p in denoiser.module.parameters()}
    assert dtypes == {(False, torch.bfloat16), (True, torch.float32)}
