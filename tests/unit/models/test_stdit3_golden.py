"""STDiT3 gives the numbers that Open-Sora v1.2 gives, from its weights, under its key names."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from reelworks.models.families.stdit3 import network
from reelworks.models.families.stdit3.model import STDiT3
from reelworks.models.families.stdit3.spec import STDiT3Config
from reelworks.models.registry import PRESETS

GOLDEN = Path(__file__).parents[2] / "golden" / "stdit3"
SPEC = json.loads((GOLDEN / "stdit3_tiny.json").read_text())
CASES = [case["name"] for case in SPEC["cases"]]


@pytest.fixture(scope="module")
def model():
    sizes = {k: v for k, v in SPEC["config"].items() if k != "class_dropout_prob"}
    module = STDiT3(STDiT3Config(**sizes | {"patch_size": tuple(sizes["patch_size"])}))
    network.NETWORK.load(module, module.config, str(GOLDEN / "stdit3_tiny.weights.safetensors"))
    return module


@pytest.fixture(scope="module")
def tensors():
    return load_file(GOLDEN / "stdit3_tiny.cases.safetensors")


def inputs_of(tensors, name):
    names = ("x", "timestep", "y", "mask", "x_mask", "fps", "height", "width")
    return {n: tensors[f"{name}/{n}"].clone() for n in names if f"{name}/{n}" in tensors}


def relative(got, want):
    return ((got - want).abs().max() / want.abs().max()).item()


@pytest.mark.parametrize("name", CASES)
def test_outputs(model, tensors, name):
    with torch.no_grad():
        out = model(**inputs_of(tensors, name))
    error = relative(out, tensors[f"{name}/out"])
    print(f"{name}: relative error {error:.1e}")
    assert out.shape == tensors[f"{name}/out"].shape
    assert error <= 1e-5


@pytest.mark.parametrize("checkpointed", [False, True])
def test_gradients(model, tensors, checkpointed):
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
    golden = json.loads((GOLDEN / "stdit3_xl_keys.json").read_text())
    with torch.device("meta"):
        module = STDiT3(PRESETS["stdit3-xl"].config)
    own = {key: list(value.shape) for key, value in module.state_dict().items()}
    assert own == dict(golden["state_dict"])
    # Upstream counts its fixed rotary frequencies as parameters; here they are a buffer.
    assert sum(p.numel() for p in module.parameters()) + module.rope.freqs.numel() == golden["num_parameters"]


def test_preset_sizes_of_the_larger_model():
    with torch.device("meta"):
        module = STDiT3(PRESETS["stdit3-3b"].config)
    assert (module.config.hidden_size, module.config.head_dim, len(module.spatial_blocks)) == (1872, 72, 28)
