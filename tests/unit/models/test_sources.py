"""Where weights are looked for: on this machine, in a pipeline's parts, on the hub; what is not there is told at once."""

from __future__ import annotations

import fnmatch
import pickle
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import tiny_families
import torch
from pydantic import ValidationError
from refused import refused
from safetensors.torch import save_file

from reelworks.core.errors import UserError
from reelworks.models import factory
from reelworks.models.config import AutoencoderConfig, ModelConfig, TextEncoderConfig
from reelworks.models.storage import weights
from reelworks.models.vision import VisionEncoder

STATE = {"a.weight": torch.ones(2, 3)}
BUILDERS = {
    "autoencoder.weights": lambda s: factory.build_autoencoder(AutoencoderConfig(name="flux", weights=s)),
    "text_encoder.weights": lambda s: factory.build_text_encoder(TextEncoderConfig(name="t5", weights=s)),
    "model.image_encoder": lambda s: VisionEncoder("clip", s),
    "model.weights": weights.read,
}


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    return tiny_families.write("wan-2.2-tiny", tmp_path_factory.mktemp("family"))


@pytest.mark.parametrize("field", BUILDERS)
@pytest.mark.parametrize("source", ["owner/name", "a-name"])
def test_what_is_neither_here_nor_on_the_hub_is_told_at_once(field, source, monkeypatch):
    """Without a connection the cache is asked too, without retries; the key that named it is told."""
    asked = []

    def silent(hub_id, **_):
        asked.append(hub_id)
        raise huggingface_hub.errors.LocalEntryNotFoundError("no connection\nand much more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", silent)
    with pytest.raises(UserError) as caught:
        BUILDERS[field](source)
    assert (caught.value.field, caught.value.value) == (field, source)
    said = "did not answer with these weights (no connection)" if "/" in source else "no such file"
    assert said in caught.value.problem
    assert asked == ["owner/name"] * 2 * source.count("/")
    assert "path" in caught.value.remedy


@pytest.mark.parametrize(
    ("folder", "only"), [("vae", "model.safetensors"), (".", "model.safetensors"), ("vae", "model.fp16.safetensors")]
)
def test_a_hub_repository_may_be_a_pipeline_or_one_part(folder, only, tmp_path, monkeypatch):
    """The part is fetched alone from a pipeline; where the repository is the part, its own files are.

    Copies of the weights are fetched only where there is nothing else.
    """
    there, fetched = tmp_path / "there", tmp_path / "fetched"
    for name in (folder, "text_encoder"):
        (there / name).mkdir(parents=True, exist_ok=True)
        for file in (only, "model.fp16.safetensors", "model.onnx"):
            save_file(STATE, there / name / file)

    def download(_hub_id, allow_patterns, ignore_patterns=None, dry_run=False):
        if dry_run:
            return []
        for path in (p.relative_to(there).as_posix() for p in there.rglob("*") if p.is_file()):
            wanted, unwanted = (
                any(fnmatch.fnmatch(path, p) for p in ps or ()) for ps in (allow_patterns, ignore_patterns)
            )
            if wanted and not unwanted:
                (fetched / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(there / path, fetched / path)
        fetched.mkdir(exist_ok=True)
        return str(fetched)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert weights.read("owner/name", part="vae").keys() == STATE.keys()
    found = {p.relative_to(fetched) for p in fetched.rglob("*.*")}
    assert found == {Path(folder) / only} | ({Path(folder) / "model.onnx"} if "fp16" in only else set())


@pytest.mark.parametrize("which", ["low", "both"])
def test_a_pipeline_without_a_part_is_told_by_the_part(experts, tmp_path, which):
    """Of two networks one may not be there."""
    place = shutil.copytree(experts, tmp_path / "half")
    shutil.rmtree(place / "transformer_2")
    tables = tiny_families.recipe_of("wan-2.2-tiny", place)
    with refused(
        "weights-part-missing",
        "model.weights",
        says="this pipeline has no folder transformer_2.*remedy: set it to a folder",
    ):
        factory.build_denoiser(
            ModelConfig(**tables["model"], experts=which),
            autoencoder=AutoencoderConfig(**tables["autoencoder"]),
            text=TextEncoderConfig(**tables["text_encoder"]),
            device="cpu",
            seed=0,
        )


@pytest.mark.parametrize("damage", [b"", b"cut"])
def test_a_damaged_text_encoder_is_told_as_such(experts, tmp_path, damage):
    """A download that was cut off, or left nothing, is an error for people."""
    place = shutil.copytree(experts, tmp_path / "damaged")
    (file,) = (place / "text_encoder").glob("*.safetensors")
    file.write_bytes(damage and file.read_bytes()[:-50])
    with refused(
        "text-encoder-unloadable", "text_encoder.weights", says="no text encoders of WanPipeline can be loaded"
    ) as caught:
        factory.build_text_encoder(TextEncoderConfig(**tiny_families.recipe_of("wan-2.2-tiny", place)["text_encoder"]))
    assert (caught.value.field, caught.value.value) == ("text_encoder.weights", str(place))


def test_nobody_is_told_to_run_what_is_in_a_file(tmp_path):
    """Not even by torch, whose own text offers it."""
    (tmp_path / "a.pt").write_bytes(pickle.dumps({"a": object()}))
    with refused("weights-unreadable", "model.weights") as caught:
        weights.read(str(tmp_path / "a.pt"))
    assert "weights_only" not in str(caught.value)


def test_an_empty_name_is_no_path():
    """It would be the folder in which the command is given."""
    with pytest.raises(ValidationError, match=r"model\.weights|at least 1 character"):
        ModelConfig(weights="")
