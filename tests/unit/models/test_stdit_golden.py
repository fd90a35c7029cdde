"""STDiT2 and STDiT3 give the numbers that Open-Sora v1.1 and v1.2 give, from their weights, under their key names."""

import json
from pathlib import Path

import pytest
import torch
from closeness import relative
from presets import family_network, network_of
from safetensors.torch import load_file

from reelworks.models.registry import PRESETS

GOLDEN = Path(__file__).parents[2] / "golden"
SPECS = {
    name: json.loads((GOLDEN / name / f"{name}_tiny.json").read_text(encoding="utf-8")) for name in ("stdit2", "stdit3")
}
CASES = [(name, case["name"]) for name, spec in SPECS.items() for case in spec["cases"]]
INPUTS = ("x", "timestep", "y", "mask", "x_mask", "fps", "height", "width", "num_frames", "ar")


@pytest.fixture(scope="module")
def models():
    """The network of each with upstream's tiny weights."""
    made = {}
    for name, spec in SPECS.items():
        sizes = {k: v for k, v in spec["config"].items() if k != "class_dropout_prob"}
        config = type(PRESETS[f"{name}-xl"].config)(**sizes | {"patch_size": tuple(sizes["patch_size"])})
        made[name] = network_of(config)
        family_network(config).load(made[name], config, str(GOLDEN / name / f"{name}_tiny.weights.safetensors"))
    return made


@pytest.fixture(scope="module")
def tensors():
    return {name: load_file(GOLDEN / name / f"{name}_tiny.cases.safetensors") for name in SPECS}


def inputs_of(tensors, case):
    return {n: tensors[f"{case}/{n}"].clone() for n in INPUTS if f"{case}/{n}" in tensors}


@pytest.mark.parametrize(("name", "case"), CASES)
def test_outputs(models, tensors, name, case):
    """Outputs are upstream's for pictures, odd sizes, conditioning frames and no text mask."""
    with torch.no_grad():
        out = models[name](**inputs_of(tensors[name], case))
    wanted = tensors[name][f"{case}/out"]
    assert out.shape == wanted.shape
    assert relative(out, wanted) <= 1e-5


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_gradients(models, tensors, name, checkpointed):
    """Gradients of every parameter and input are upstream's, with and without checkpointing."""
    model, golden = models[name], tensors[name]
    inputs = inputs_of(golden, "grad")
    inputs["x"].requires_grad_()
    inputs["y"].requires_grad_()
    model.zero_grad()
    model.gradient_checkpointing = checkpointed
    try:
        (model(**inputs) * golden["grad/g"]).sum().backward()
    finally:
        model.gradient_checkpointing = False
    got = {f"grad/grad_param.{key}": p.grad for key, p in model.named_parameters()}
    got |= {"grad/grad_x": inputs["x"].grad, "grad/grad_y": inputs["y"].grad}
    assert set(got) == {key for key in golden if key.startswith("grad/grad_")}
    worst = max((relative(value, golden[key]), key) for key, value in got.items())
    # The embedders' sines of large timesteps and sizes differ between kinds of CPU, in upstream's numbers too.
    assert worst[0] <= 5e-5, worst


@pytest.mark.parametrize("name", SPECS)
def test_full_size_keys_and_shapes_equal_upstreams(name):
    """Published weights have a place for each of their tensors."""
    golden = json.loads((GOLDEN / name / f"{name}_xl_keys.json").read_text(encoding="utf-8"))
    with torch.device("meta"):
        module = network_of(PRESETS[f"{name}-xl"].config)
    assert {key: list(value.shape) for key, value in module.state_dict().items()} == dict(golden["state_dict"])
    if name == "stdit3":  # Upstream counts its fixed rotary frequencies as parameters; here they are a buffer.
        assert sum(p.numel() for p in module.parameters()) + module.rope.freqs.numel() == golden["num_parameters"]


def test_preset_sizes_of_the_larger_model():
    with torch.device("meta"):
        module = network_of(PRESETS["stdit3-3b"].config)
    assert (module.config.hidden_size, module.config.head_dim, len(module.spatial_blocks)) == (1872, 72, 28)
