"""LoKr, LoHa and OFT: plain peft and ComfyUI's formula give what was trained, and files bring every number back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from adapters import adapted
from presets import config_of
from pydantic import ValidationError
from refused import refused
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from reelworks.core.errors import UserError
from reelworks.models import registry
from reelworks.models.adapters import files, inject, release_layers
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.adapters.conventions import CONVENTIONS
from reelworks.testing import contract

# Alphas that are not the rank, and no power of two beside it. Rank 99 makes both factors of a LoKr full matrices.
SETTINGS = {
    "lokr": LoraConfig(type="lokr", rank=2, alpha=2.3),
    "lokr of low ranks": LoraConfig(type="lokr", rank=1, alpha=2.3, decompose_both=True, decompose_factor=4),
    "lokr of full factors": LoraConfig(type="lokr", rank=99, alpha=2.3, decompose_factor=2),
    "loha": LoraConfig(type="loha", rank=2, alpha=2.3),
    "oft": LoraConfig(type="oft", block_size=4),
}
every_kind = pytest.mark.parametrize("kind", SETTINGS)


def written(folder: Path, denoiser: Any, settings: LoraConfig, format: Any, name: str) -> Path:
    state = inject.weights(denoiser.module)
    file = files.to_file(state, format, adapter=settings.adapter, model=name)
    path = folder / f"{format}.safetensors"
    save_file({key: value.contiguous() for key, value in file.tensors.items()}, path, file.header)
    return path


def plain(name: str, path: Path, settings: LoraConfig) -> Any:
    """A plain network of diffusers into which diffusers, or peft alone, loads a file."""
    base = contract.build(name)
    if settings.type == "lokr":
        base.module.load_lora_adapter(str(path.parent), weight_name=path.name, prefix="transformer")
        return base
    with safe_open(path, "pt") as file:
        found = {key.removeprefix("transformer."): file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        told = json.loads(file.metadata()["lora_adapter_metadata"])
    made = {key.removeprefix("transformer."): value for key, value in told.items()}
    kind = {"LOHA": peft.LoHaConfig, "OFT": peft.OFTConfig}[made.pop("peft_type")]
    peft.inject_adapter_in_model(kind(**made), base.module)
    assert not peft.set_peft_model_state_dict(base.module, found).unexpected_keys
    return base


@every_kind
def test_plain_diffusers_answers_as_the_trained_network(tmp_path: Path, kind: str) -> None:
    """Diffusers loads a LoKr, and peft the others into diffusers' network: outputs are equal, alpha included."""
    name, settings = "wan-tiny", SETTINGS[kind]
    trained, inputs = adapted(name, settings), contract.example(contract.shapes(name)[-1], name)
    path = written(tmp_path, trained, settings, "diffusers", name)
    with torch.no_grad():
        expected, before = trained.predict(inputs), contract.build(name).predict(inputs)
        torch.testing.assert_close(plain(name, path, settings).predict(inputs), expected)
    assert (before - expected).norm() > 0.01 * expected.norm()


def comfyui_delta(kinds: dict[str, Tensor]) -> Tensor:
    """What ComfyUI's readers add to a weight: comfy/weight_adapter/lokr.py and loha.py."""
    alpha = float(kinds["alpha"])
    if "hada_w1_a" in kinds:
        one, other = kinds["hada_w1_a"] @ kinds["hada_w1_b"], kinds["hada_w2_a"] @ kinds["hada_w2_b"]
        return one * other * (alpha / kinds["hada_w1_b"].shape[0])
    factors, rank = [], None
    for factor in ("lokr_w1", "lokr_w2"):
        if factor in kinds:
            factors.append(kinds[factor])
        else:
            factors.append(kinds[f"{factor}_a"] @ kinds[f"{factor}_b"])
            rank = kinds[f"{factor}_b"].shape[0]
    return torch.kron(*factors) * (1.0 if rank is None else alpha / rank)


@pytest.mark.parametrize("name", ["wan-tiny", "flux-tiny"])
@pytest.mark.parametrize("kind", [kind for kind in SETTINGS if kind != "oft"])
@pytest.mark.parametrize("format", ["comfyui", "kohya"])
def test_comfyui_adds_what_was_trained(tmp_path: Path, kind: str, name: str, format: str) -> None:
    """By its formula, each layer of the release, or its rows, gets the update that merging gives the network."""
    settings, config = SETTINGS[kind].model_copy(update={"targets": "blocks"}), config_of(name)
    if not (settings.type == "loha" or CONVENTIONS[format].names_parts(config.network)):
        pytest.skip("refused with the recipe")
    trained, before = adapted(name, settings), contract.build(name).module.state_dict()
    path = written(tmp_path, trained, settings, format, name)
    found: dict[str, dict[str, Tensor]] = {}
    for key, value in load_file(path).items():
        stem, _, part = key.rpartition(".")
        found.setdefault(stem, {})[part] = value
    deltas = {stem: comfyui_delta(kinds) for stem, kinds in found.items()}
    layers = {layer for layer, _ in inject.parts(inject.weights(trained.module)).values()}
    merged = inject.merge(trained.module)
    for layer in layers:
        place = release_layers.place(config, layer)
        released = f"diffusion_model.{place.layer}" if format == "comfyui" else f"lora_unet_{place.layer}"
        stem = released if format == "comfyui" else released.replace(".", "_")
        wanted = merged[f"{layer}.weight"] - before[f"{layer}.weight"]
        if stem not in deltas:  # ComfyUI maps this name to rows
            delta = deltas[f"transformer.{layer}"]
        else:
            unit = deltas[stem].shape[0] // sum(place.heights)
            top = unit * sum(place.heights[: place.part])
            delta = deltas[stem][top : top + wanted.shape[0]]
        delta = release_layers.swap_halves(delta) if place.swapped else delta
        torch.testing.assert_close(delta, wanted, rtol=1e-4, atol=1e-6, msg=layer)


@every_kind
@pytest.mark.parametrize("format", ["diffusers", "comfyui", "kohya"])
@pytest.mark.parametrize("name", ["wan-tiny", "flux-tiny"])
@pytest.mark.quick_cases(7)
def test_a_file_brings_every_number_back(tmp_path: Path, kind: str, format: str, name: str) -> None:
    """Read into another adapter of the same base, a file of any convention leaves no number different."""
    settings = SETTINGS[kind].model_copy(update={"targets": "blocks"})
    try:
        settings.require_writable(format, "exports.formats", config_of(name).network)
    except UserError:
        pytest.skip("refused with the recipe")
    one, other = adapted(name, settings), adapted(name, settings, seed=1)
    path = written(tmp_path, one, settings, format, name)
    named = settings.model_copy(update={"weights": str(path)})
    files.load_into(other.module, named, config_of(name))
    # The scale is rounded into the numbers of a file, and out of them.
    wanted, found = dict(inject.weights(one.module)), inject.weights(other.module)
    torch.testing.assert_close(found, wanted, rtol=2**-22, atol=0.0)


def test_a_file_of_another_type_rank_or_factor_is_refused(tmp_path: Path) -> None:
    """Nothing of it is loaded."""
    settings = SETTINGS["lokr"]
    path = written(tmp_path, adapted("wan-tiny", settings), settings, "comfyui", "wan-tiny")
    for changed, code in (
        ({"type": "loha"}, "lora-does-not-fit"),
        ({"rank": 3}, "lora-settings-differ"),
        ({"decompose_factor": 2}, "lora-does-not-fit"),
    ):
        other = settings.model_copy(update=changed | {"weights": str(path)})
        denoiser = adapted("wan-tiny", other, seed=1)
        before = {key: value.clone() for key, value in inject.weights(denoiser.module).items()}
        with refused(code):
            files.load_into(denoiser.module, other, config_of("wan-tiny"))
        assert all(torch.equal(v, before[key]) for key, v in inject.weights(denoiser.module).items())


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"type": "oft", "alpha": 3.0}, "lora.alpha"),
        ({"type": "oft", "rank": 3}, "lora.rank"),
        ({"type": "lokr", "dora": True}, "lora.dora"),
        ({"decompose_factor": 8}, "lora.decompose_factor"),
        ({"type": "loha", "block_size": 8}, "lora.block_size"),
    ],
)
def test_settings_that_a_type_does_not_read_are_refused(values: dict[str, Any], field: str) -> None:
    """Rather than left without effect."""
    with pytest.raises(ValidationError, match=rf"{field} = .* has no such setting"):
        LoraConfig(**values)
    with pytest.raises(ValidationError):
        LoraConfig(type="lycoris")


def test_conventions_that_cannot_hold_an_adapter_are_refused() -> None:
    """OFT goes into diffusers' alone, and a LoKr where a part of a layer has a name."""
    lokr, oft = LoraConfig(type="lokr"), LoraConfig(type="oft")
    networks = {
        name: registry.PRESETS[name].config.network for name in ("wan-2.1-14b", "flux-dev", "hunyuan-video-1.5")
    }
    for format in ("comfyui", "kohya"):
        with refused("adapter-not-writable"):
            oft.require_writable(format, "exports.formats", networks["wan-2.1-14b"])
        lokr.require_writable(format, "exports.formats", networks["wan-2.1-14b"])
        with refused("adapter-not-writable"):
            lokr.require_writable(format, "exports.formats", networks["hunyuan-video-1.5"])
    lokr.require_writable("comfyui", "exports.formats", networks["flux-dev"])
    with refused("adapter-not-writable"):
        lokr.require_writable("kohya", "exports.formats", networks["flux-dev"])


def test_blocks_that_do_not_divide_a_layer_are_refused() -> None:
    """Peft would take another size there, and the file would have it."""
    with refused("block-size-not-a-divisor", "lora.block_size"):
        inject.inject(contract.build("wan-tiny"), LoraConfig(type="oft", block_size=5), seed=0)


@every_kind
def test_adapters_are_switched_off_and_begin_alike_on_every_base(kind: str) -> None:
    """Without the adapter the base answers; first values depend on the seed alone, in float32."""
    name, settings = "wan-tiny", SETTINGS[kind]
    trained, inputs = adapted(name, settings), contract.example(contract.shapes(name)[-1], name)
    with torch.no_grad(), inject.disable_adapters(trained.module):
        assert torch.equal(trained.predict(inputs), contract.build(name).predict(inputs))
    states = []
    for base in ("float32", "bfloat16", "nf4"):
        lora = settings.model_copy(update={"base": base})
        states.append(inject.weights(contract.build(name, compute=torch.bfloat16, lora=lora).module))
    for state in states:
        assert state.keys() == states[0].keys()
        assert all(v.dtype == torch.float32 and torch.equal(v, states[0][key]) for key, v in state.items())


@every_kind
@pytest.mark.quick_cases(3)
def test_a_compiled_layer_has_one_graph(kind: str) -> None:
    """No random draw and no value breaks the graph, and a second step traces nothing anew."""
    graphs = []

    def counting(traced: torch.fx.GraphModule, _inputs: list[Tensor]) -> Any:
        graphs.append(traced)
        return traced.forward

    layer = nn.ModuleDict({"to_q": nn.Linear(16, 32)})
    settings = inject.peft_config(peft, SETTINGS[kind], ["to_q"])
    peft.inject_adapter_in_model(settings, layer)
    inject.replace_forward(layer, SETTINGS[kind])
    torch._dynamo.reset()
    compiled = torch.compile(layer["to_q"], backend=counting, fullgraph=True, dynamic=False)
    for _ in range(3):
        compiled(torch.randn(2, 4, 3, 16)).square().mean().backward()
    assert len(graphs) == 1
    torch._dynamo.reset()
