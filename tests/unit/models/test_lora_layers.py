"""LoRA: which layers it adapts, and files that bring the same updates back in every convention."""

from __future__ import annotations

import json
from pathlib import Path

import diffusers
import peft
import pytest
import torch
from presets import config_of
from refused import refused
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from reelworks.core.errors import UserError
from reelworks.models.lora import files, inject
from reelworks.models.lora.config import LoraConfig
from reelworks.testing import contract

FORMATS = ("diffusers", "comfyui", "kohya")
# An alpha that is not the rank, and no power of two beside it.
SETTINGS = LoraConfig(rank=3, alpha=2.3)


def adapted(name="wan-tiny", settings=SETTINGS, seed=0):
    """A network with a LoRA of random numbers."""
    denoiser = contract.build(name)
    inject.inject(denoiser, settings, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in inject.weights(denoiser.module).values():
            value.add_(torch.randn(value.shape, generator=generator), alpha=0.3)
    return denoiser


def written(folder: Path, denoiser, format="diffusers", settings=SETTINGS, part="transformer", name="wan-tiny") -> Path:
    file = files.to_file(inject.weights(denoiser.module), format, alpha=settings.exact_alpha, part=part, model=name)
    path = folder / f"{format}.safetensors"
    save_file({name: value.contiguous() for name, value in file.tensors.items()}, path, file.header)
    return path


def load(denoiser, path, settings=SETTINGS, name="wan-tiny"):
    """Load a file into a network as a recipe that names it does."""
    settings = settings.model_copy(update={"weights": str(path)})
    files.load_into(denoiser.module, settings, config_of(name))


# Layers have the same names in all networks of a class, and in files of diffusers those of the network.
ALL_FORMATS = [
    pytest.param(name, False, format, marks=[] if name in quick else pytest.mark.slow)
    for name in contract.FAMILIES
    for format, quick in zip(FORMATS, (("wan-tiny", "sdxl-tiny"), contract.CLASSES, contract.CLASSES), strict=True)
]


@pytest.mark.parametrize(("name", "dora", "format"), [*ALL_FORMATS, ("wan-tiny", True, "diffusers")])
def test_a_file_brings_every_number_back(tmp_path, format, name, dora):
    """Read back into another LoRA of the same base, a file of any convention leaves no number different."""
    settings = SETTINGS.model_copy(update={"dora": dora, "targets": "blocks"})
    one = adapted(name, settings)
    path = written(tmp_path, one, format, settings, name=name)
    other = adapted(name, settings, seed=1)
    load(other, path, settings, name)
    wanted, found = inject.weights(one.module), inject.weights(other.module)
    assert wanted.keys() == found.keys()
    assert all(torch.equal(value, found[name]) for name, value in wanted.items())


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
        assert torch.equal(base.predict(inputs), trained.predict(inputs))
    assert not torch.allclose(base.predict(inputs), before)


def test_a_pipeline_takes_the_file(tmp_path):
    """What a person types in diffusers, pipeline.load_lora_weights, finds all of it."""
    trained, base = adapted(), contract.build("wan-tiny")
    path = written(tmp_path, trained)
    pipeline = diffusers.WanPipeline(None, None, None, None, base.module)
    pipeline.load_lora_weights(str(tmp_path), weight_name=path.name)
    inputs = contract.example(contract.shapes("wan-tiny")[-1], "wan-tiny")
    assert torch.equal(base.predict(inputs), trained.predict(inputs))


def test_names_and_alpha_of_each_convention(tmp_path):
    """The names that the conventions' readers look for, with alpha beside them in float32."""
    layer, released = "blocks.0.attn1.to_out.0", "blocks.0.self_attn.o"
    expected = {
        "diffusers": {f"transformer.{layer}.lora_A.weight", f"transformer.{layer}.lora_B.weight"},
        "comfyui": {f"diffusion_model.{released}.{end}" for end in ("lora_A.weight", "lora_B.weight", "alpha")},
        "kohya": {f"lora_unet_blocks_0_self_attn_o.{end}" for end in ("lora_down.weight", "lora_up.weight", "alpha")},
    }
    denoiser = adapted(settings=SETTINGS.model_copy(update={"targets": [layer]}))
    for format, names in expected.items():
        path = written(tmp_path, denoiser, format)
        tensors = load_file(path)
        assert tensors.keys() == names
        assert all(float(t) == pytest.approx(2.3) for n, t in tensors.items() if n.endswith("alpha"))
        with safe_open(path, "pt") as file:
            told = file.metadata()
        assert (told["ss_network_dim"], told["ss_network_alpha"]) == ("3", "2.3")
        assert told["modelspec.architecture"] == "wan-tiny/lora"


def test_a_lora_of_another_base_is_refused_with_numbers(tmp_path):
    """It says how many tensors fit nothing and how many layers stay empty, and changes nothing."""
    path = written(tmp_path, adapted())
    other = adapted("flux-tiny")
    before = {name: value.clone() for name, value in inject.weights(other.module).items()}
    settings = SETTINGS.model_copy(update={"weights": str(path)})
    with pytest.raises(
        UserError,
        match=rf"another base.*: {len(load_file(path))} of its .*{len(before)} of {len(before)} here",
    ):
        files.load_into(other.module, settings, config_of("flux-tiny"))
    assert all(torch.equal(value, before[n]) for n, value in inject.weights(other.module).items())


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("key", "value", "said"), [("rank", 4, "has rank 3"), ("alpha", 3.0, "has alpha 2.3")])
def test_another_rank_or_alpha_is_refused(tmp_path, format, key, value, said):
    """Updates would count another share; the error says what to set."""
    path = written(tmp_path, adapted(), format)
    settings = SETTINGS.model_copy(update={key: value})
    with pytest.raises(UserError, match=rf"lora.{key} = .*{said}"):
        load(adapted(settings=settings), path, settings)


def test_layers_that_the_file_lacks_are_told(tmp_path):
    """A file of fewer layers than asked for is no silent half."""
    path = written(tmp_path, adapted(settings=SETTINGS.model_copy(update={"targets": ["to_q"]})))
    with refused("lora-does-not-fit", "lora.weights", says="0 of its 8 tensors.* and 24 of 32 here"):
        load(adapted(), path)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"transformer.use_rslora": True}, "use_rslora"),
        ({"transformer.alpha_pattern": {"to_q": 1}}, "alpha_pattern"),
    ],
)
def test_a_scale_by_another_rule_is_refused(tmp_path, header, said):
    """Where alpha / rank is not the scale, the same numbers would be another LoRA."""
    path = tmp_path / "other.safetensors"
    save_file({"x": torch.zeros(1)}, path, {"lora_adapter_metadata": json.dumps(header)})
    with pytest.raises(UserError, match=f"{said}, which is not supported"):
        load(adapted(), path)


def test_a_file_of_peft_counts_by_the_settings_beside_it(tmp_path):
    """Its alpha is right there, and not the rank; where alpha / rank is not the scale, it is refused."""
    base = contract.build("wan-tiny")
    made = peft.LoraConfig(r=SETTINGS.rank, lora_alpha=SETTINGS.exact_alpha, target_modules=list(base.lora_targets()))
    peft.PeftModel(base.module, made).save_pretrained(tmp_path)
    assert SETTINGS.exact_alpha != SETTINGS.rank
    load(adapted(), tmp_path / "adapter_model.safetensors")
    beside = tmp_path / "adapter_config.json"
    beside.write_text(json.dumps(json.loads(beside.read_text()) | {"lora_alpha": 7}))
    with refused("lora-settings-differ", "lora.alpha", says=" has alpha 7"):
        load(adapted(), tmp_path / "adapter_model.safetensors")
    beside.write_text(json.dumps(json.loads(beside.read_text()) | {"use_rslora": True}))
    with refused("lora-unreadable", "lora.weights"):
        load(adapted(), tmp_path / "adapter_model.safetensors")


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
    ("target", "near"),
    [("to_qq", '"to_q"'), ("blocks.0.attn1.to_w", "blocks.0.attn1.to_"), ("norm1", "known")],
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
