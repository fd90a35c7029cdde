"""STDiT2 gives the numbers that Open-Sora v1.1 gives, from its weights, under its key names."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_stdit3_golden import relative

from reelworks.models.families.stdit2 import network
from reelworks.models.families.stdit2.model import STDiT2
from reelworks.models.families.stdit2.spec import STDiT2Config
from reelworks.models.registry import PRESETS

GOLDEN = Path(__file__).parents[2] / "golden" / "stdit2"
SPEC = json.loads((GOLDEN / "stdit2_tiny.json").read_text())
CASES = [case["name"] for case in SPEC["cases"]]
INPUTS = ("x", "timestep", "y", "mask", "x_mask", "fps", "height", "width", "num_frames", "ar")


@pytest.fixture(scope="module")
def model():
    sizes = {k: v for k, v in SPEC["config"].items() if k != "class_dropout_prob"}
    module = STDiT2(STDiT2Config(**sizes | {"patch_size": tuple(sizes["patch_size"])}))
    network.NETWORK.load(module, module.config, str(GOLDEN / "stdit2_tiny.weights.safetensors"))
    return module


@pytest.fixture(scope="module")
def tensors():
    return load_file(GOLDEN / "stdit2_tiny.cases.safetensors")


def inputs_of(tensors, name):
    return {n: tensors[f"{name}/{n}"].clone() for n in INPUTS if f"{name}/{n}" in tensors}


@pytest.mark.parametrize("name", CASES)
def test_outputs(model, tensors, name):
    """Outputs are upstream's for pictures, odd sizes, conditioning frames and no text mask."""
    with torch.no_grad():
        out = model(**inputs_of(tensors, name))
    assert out.shape == tensors[f"{name}/out"].shape
    assert relative(out, tensors[f"{name}/out"]) <= 1e-5


@pytest.mark.parametrize("checkpointed", [False, True])
def test_gradients(model, tensors, checkpointed):
    """Gradients of every parameter and input are upstream's, with and without checkpointing."""
    inputs = inputs_of(tensors, "grad")
    inputs["x"].requires_grad_()
    inputs["y"].requires_grad_()
    model.zero_grad()
    model.gradient_checkpointing = checkpointed
    try:
        (model(**inputs) * tensors["grad/g"]).sum().backward()
    finally:
        model.gradient_checkpointing = False
    got = {f"grad/grad_param.{name}": p.grad for name, p in model.named_parameters()}
    got |= {"grad/grad_x": inputs["x"].grad, "grad/grad_y": inputs["y"].grad}
    assert set(got) == {key for key in tensors if key.startswith("grad/grad_")}
    worst = max((relative(value, tensors[key]), key) for key, value in got.items())
    print(f"largest relative error of a gradient: {worst[0]:.1e} ({worst[1]})")
    # The embedders' sines of large timesteps and sizes differ between kinds of CPU, in upstream's numbers too.
    assert worst[0] <= 5e-5


def test_full_size_keys_and_shapes_equal_upstreams():
    """Published weights have a place for each of their tensors."""
    golden = json.loads((GOLDEN / "stdit2_xl_keys.json").read_text())
    with torch.device("meta"):
        module = STDiT2(PRESETS["stdit2-xl"].config)
    assert {key: list(value.shape) for key, value in module.state_dict().items()} == dict(golden["state_dict"])
