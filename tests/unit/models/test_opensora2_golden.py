"""Open-Sora 2.0's network gives the numbers that upstream's code gives, from its weights, under its key names."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from closeness import relative
from safetensors.torch import load_file, save_file

from reelworks.models.api import DenoiserInputs
from reelworks.models.families.opensora2 import network
from reelworks.models.families.opensora2.model import MMDiT
from reelworks.models.families.opensora2.spec import OpenSora2Config
from reelworks.models.registry import PRESETS

GOLDEN = Path(__file__).parents[2] / "golden" / "opensora2"
SPEC = json.loads((GOLDEN / "mmdit_tiny.json").read_text(encoding="utf-8"))
CASES = {case["name"]: case for case in SPEC["cases"]}


def config_of(name):
    sizes = SPEC["config"] | {"axes_dim": tuple(SPEC["config"]["axes_dim"])}
    return OpenSora2Config(**sizes, cond_embed=CASES[name]["cond_embed"])


def network_of(name, folder):
    weights = load_file(GOLDEN / "mmdit_tiny.weights.safetensors")
    if not CASES[name]["cond_embed"]:
        weights = {key: value for key, value in weights.items() if not key.startswith("cond_in.")}
    save_file(weights, folder / "weights.safetensors")
    module = MMDiT(config_of(name))
    network.NETWORK.load(module, config_of(name), str(folder / "weights.safetensors"))
    return module


def inputs_of(tensors, name):
    """Upstream's case as our inputs: times in [0, 1000], and masks that are False for given frames."""
    case = {key.partition("/")[2]: value.clone() for key, value in tensors.items() if key.startswith(f"{name}/")}
    latent, n = case["latent"], len(case["latent"])
    return DenoiserInputs(
        latent=latent,
        time=case["time"] * 1000,
        text=case["text"],
        text_mask=torch.ones(case["text"].shape[:2], dtype=torch.bool),
        pooled=case["pooled"],
        guidance=torch.ones(n),
        frame_mask=case["given"] == 0,
        fps=torch.full((n,), 24.0),
        height=torch.full((n,), 32.0),
        width=torch.full((n,), 32.0),
        drop_text=torch.zeros(n, dtype=torch.bool),
        condition=case["condition"],
    )


@pytest.fixture(scope="module")
def tensors():
    return load_file(GOLDEN / "mmdit_tiny.cases.safetensors")


@pytest.mark.parametrize("name", CASES)
def test_outputs(tensors, name, tmp_path):
    """Velocities are upstream's with the opposite sign, for texts alone, pictures, and given frames at either end."""
    with torch.no_grad():
        out = network.predict(network_of(name, tmp_path), inputs_of(tensors, name), config_of(name))
    assert relative(-out, tensors[f"{name}/out"]) <= 1e-5


@pytest.mark.parametrize("recompute", [False, True, "selective"])
def test_gradients(tensors, recompute, tmp_path):
    """Gradients of every parameter and input are upstream's, with and without checkpointing."""
    module, inputs = network_of("grad", tmp_path), inputs_of(tensors, "grad")
    module.gradient_checkpointing = recompute
    inputs.latent.requires_grad_()
    inputs.text.requires_grad_()
    (-network.predict(module, inputs, config_of("grad")) * tensors["grad/g"]).sum().backward()
    got = {f"grad/grad_param.{key}": p.grad for key, p in module.named_parameters()}
    got |= {"grad/grad_latent": inputs.latent.grad, "grad/grad_text": inputs.text.grad}
    assert set(got) == {key for key in tensors if key.startswith("grad/grad_")}
    worst = max((relative(value, tensors[key]), key) for key, value in got.items())
    print(f"largest relative error of a gradient: {worst[0]:.1e} ({worst[1]})")
    assert worst[0] <= 2e-5


def test_without_patches(tmp_path):
    """With the autoencoder of stride 32, an element of the latents is a token, beside the mask and what is given."""
    tensors = load_file(GOLDEN / "mmdit_patch_1.cases.safetensors")
    weights = load_file(GOLDEN / "mmdit_tiny.weights.safetensors")
    weights["cond_in.weight"] = weights["cond_in.weight"][:, :17].contiguous()
    save_file(weights, tmp_path / "Open_Sora_v2_Video_DC_AE.safetensors")
    config = config_of("i2v").model_copy(update={"patch": 1})
    module = MMDiT(config)
    network.NETWORK.load(module, config, str(tmp_path))
    with torch.no_grad():
        out = network.predict(module, inputs_of(tensors, "patch_1"), config)
    assert relative(-out, tensors["patch_1/out"]) <= 1e-5


def test_what_is_given_matters_where_it_is_given_alone(tensors, tmp_path):
    """Latents of frames that are to be generated never reach the network beside the noise."""
    module, inputs = network_of("i2v", tmp_path), inputs_of(tensors, "i2v")
    whole = inputs.condition + torch.where(inputs.frame_mask[:, None, :, None, None], 5.0, 0.0)
    with torch.no_grad():
        told, masked = (
            network.predict(module, dataclasses.replace(inputs, condition=condition), config_of("i2v"))
            for condition in (whole, inputs.condition)
        )
    assert torch.equal(told, masked)


def test_weights_trained_on_texts_alone_begin_without_an_effect_of_conditions(tensors, tmp_path):
    """Upstream's first stages have no layer of condition frames; for later ones, it is zeros and changes nothing."""
    name = "without_conditions"
    network_of(name, tmp_path)
    config = OpenSora2Config(**config_of(name).model_dump() | {"cond_embed": True})
    module = MMDiT(config)
    network.NETWORK.load(module, config, str(tmp_path / "weights.safetensors"))
    inputs = dataclasses.replace(inputs_of(tensors, name), frame_mask=torch.zeros(2, 2, dtype=torch.bool))
    with torch.no_grad():
        out = network.predict(module, inputs, config)
    assert relative(-out, tensors[f"{name}/out"]) <= 1e-5


def test_full_size_keys_and_shapes_equal_upstreams():
    """Published weights have a place for each of their tensors, and the count of parameters is upstream's."""
    golden = json.loads((GOLDEN / "mmdit_keys.json").read_text(encoding="utf-8"))
    with torch.device("meta"):
        module = MMDiT(PRESETS["opensora2"].config)
    wanted = {}
    for key, shape in golden["state_dict"].items():
        blocks, _, rest = key.partition(".0.")
        count = golden["blocks"].get(blocks)
        wanted |= {key: shape} if count is None else {f"{blocks}.{i}.{rest}": shape for i in range(count)}
    assert {key: list(value.shape) for key, value in module.state_dict().items()} == wanted
    assert sum(p.numel() for p in module.parameters()) == SPEC["full_size"]["parameters"]
    with torch.device("meta"):
        module = MMDiT(PRESETS["opensora2-dc-ae"].config)
    assert sum(p.numel() for p in module.parameters()) == SPEC["full_size"]["high_compression_parameters"]
