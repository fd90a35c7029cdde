"""Training adapters on networks: the same as their weights added, on any base, and nothing at all once dropped."""

from __future__ import annotations

import json

import pytest
import torch
from presets import config_of
from pydantic import ValidationError
from refused import refused
from safetensors.torch import load_file, save_file
from test_lora_layers import FORMATS, SETTINGS, adapted, written

from reelworks.core.errors import UserError
from reelworks.models import factory
from reelworks.models.adapters import inject, key_mapping, training_adapter
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.adapters.training_adapter import TrainingAdapter
from reelworks.models.config import ModelConfig
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.models.storage import weights
from reelworks.testing import contract

BF16 = torch.bfloat16


def said(denoiser, name="wan-tiny"):
    inputs = contract.example(contract.shapes(name)[0], name, seed=3)
    with torch.no_grad():
        return DtypeBoundary(denoiser)(inputs)


def attached(path, lora=None, **settings):
    """A network with a LoRA, as in training, and an adapter below it."""
    settings["lora"] = (lora or LoraConfig(rank=2)).model_copy(update={"training_adapter": str(path)})
    return contract.build("wan-tiny", **settings)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["wan-tiny", "flux-tiny"])
def test_it_counts_as_weights_that_were_added(tmp_path, name, format):
    """In any convention, fused layers of a release among them; no name or number of the checkpoint changes."""
    settings = SETTINGS.model_copy(update={"targets": "blocks"})
    one = adapted(name, settings)
    denoiser, plain = contract.build(name), contract.build(name)
    path = written(tmp_path, one, format, settings, name=name)
    TrainingAdapter.read(str(path)).attach(denoiser.module, config_of(name))
    assert denoiser.module.state_dict().keys() == plain.module.state_dict().keys()
    inject.merge(one.module)
    torch.testing.assert_close(said(denoiser, name), said(one, name), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(said(denoiser, name), said(plain, name), atol=1e-2)


@pytest.mark.parametrize("base", ["float32", "bfloat16", "float8", "int8", "nf4"])
@pytest.mark.quick_cases(4)
def test_dropped_it_leaves_no_trace(tmp_path, base):
    """On every storage of the base, to the last bit, and it is there again afterwards, behind an error too."""
    path = written(tmp_path, adapted(settings=SETTINGS))
    lora = LoraConfig(rank=2, base=base)
    compute = {"compute": torch.float32 if base == "float32" else BF16}
    denoiser, plain = attached(path, lora=lora, **compute), contract.build("wan-tiny", lora=lora, **compute)
    there = said(denoiser)
    with training_adapter.disable(denoiser.module):
        assert torch.equal(said(denoiser), said(plain))
    assert torch.equal(said(denoiser), there)
    with refused("x"), training_adapter.disable(denoiser.module):
        raise UserError("inside", code="x", remedy="none")
    assert torch.equal(said(denoiser), there)
    assert not torch.allclose(there, said(plain), atol=1e-2)


def test_running_the_base_of_a_lora_keeps_it(tmp_path):
    """Clips that preserve the base preserve what training stands on, so that the LoRA does not learn to undo it."""
    denoiser = attached(written(tmp_path, adapted(settings=SETTINGS)))
    with inject.disable_adapters(denoiser.module):
        there = said(denoiser)
        with training_adapter.disable(denoiser.module):
            assert not torch.allclose(said(denoiser), there, atol=1e-2)
    assert not torch.allclose(said(denoiser), there, atol=1e-2)


def test_its_digest_covers_all_that_its_product_depends_on(tmp_path):
    """A run with an adapter of other numbers, or of another scale in its header, is another run."""
    path = written(tmp_path, adapted(settings=SETTINGS))
    before, tensors = TrainingAdapter.read(str(path)), load_file(path)
    assert TrainingAdapter.read(str(path)).digest() == before.digest()
    settings = json.loads(before.header[key_mapping.METADATA])
    settings["transformer.lora_alpha"] += 1
    scaled = {**before.header, key_mapping.METADATA: json.dumps(settings)}
    save_file(tensors, path, scaled)
    digests = {before.digest(), TrainingAdapter.read(str(path)).digest()}
    save_file({name: value + 1 for name, value in tensors.items()}, path, before.header)
    digests.add(TrainingAdapter.read(str(path)).digest())
    assert len(digests) == 3
    save_file(tensors, path, {**before.header, "comment": "the same product"})
    assert TrainingAdapter.read(str(path)).digest() == before.digest()


def test_a_file_that_does_not_fit_is_refused(tmp_path):
    """One for another model; for or of a DoRA; one that is not there. A network is left as it was."""
    other = written(tmp_path, adapted("flux-tiny"), name="flux-tiny")
    module = contract.build("wan-tiny").module
    with refused("training-adapter-does-not-fit"):
        TrainingAdapter.read(str(other)).attach(module, config_of("wan-tiny"))
    assert not [name for name, _ in module.named_buffers() if "training_adapter" in name]
    assert LoraConfig(training_adapter="a.safetensors").training_adapter
    with pytest.raises(ValidationError, match=r"(?s)lora\.training_adapter = .*without lora\.dora"):
        LoraConfig(training_adapter="a.safetensors", dora=True)
    dora = SETTINGS.model_copy(update={"dora": True})
    with refused("training-adapter-does-not-fit"):
        TrainingAdapter.read(str(written(tmp_path, adapted(settings=dora), settings=dora))).attach(
            module, config_of("wan-tiny")
        )
    with refused("weights-not-found") as caught:
        TrainingAdapter.read("nowhere.safetensors")
    assert caught.value.field == "lora.training_adapter"


def test_a_file_of_a_repository_is_downloaded_alone(tmp_path, monkeypatch):
    """`owner/name/file` names one of several files on the hub; a path with as many parts stays a path."""
    asked = []
    file = tmp_path / "v2.safetensors"
    save_file({"x": torch.zeros(1)}, file)
    monkeypatch.setattr(weights.hub, "download", lambda name, files: asked.append((name, files)) or tmp_path)
    assert weights.require_file("someone/adapters/v2.safetensors", "lora.training_adapter") == file
    assert asked == [("someone/adapters", ["v2.safetensors"])]
    assert weights.require_file(str(file), "lora.training_adapter") == file
    assert len(asked) == 1


@pytest.mark.parametrize("type", ["lokr", "loha", "oft"])
def test_it_goes_with_every_kind_of_update(tmp_path, type):
    """On a fresh update of any kind, the network with it says what the base with it says."""
    path = written(tmp_path, adapted(settings=SETTINGS))
    lora = LoraConfig(type=type) if type != "oft" else LoraConfig(type=type, block_size=4)
    config = lora.model_copy(update={"training_adapter": str(path)})
    denoiser = factory.build_denoiser(
        ModelConfig(name="wan-tiny"),
        autoencoder=contract.AUTOENCODER,
        text=contract.TEXT,
        device="cpu",
        seed=0,
        lora=config,
    )
    plain = factory.build_denoiser(
        ModelConfig(name="wan-tiny"), autoencoder=contract.AUTOENCODER, text=contract.TEXT, device="cpu", seed=0
    )
    TrainingAdapter.read(str(path)).attach(plain.module, config_of("wan-tiny"))
    torch.testing.assert_close(said(denoiser), said(plain), rtol=1e-4, atol=1e-5)
    with training_adapter.disable(denoiser.module):
        assert not torch.allclose(said(denoiser), said(plain), atol=1e-3)
