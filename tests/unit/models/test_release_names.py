"""Networks in the names of releases: by diffusers' mapping, with and without the prefix of ComfyUI's files."""

import contextlib
import importlib

import diffusers
import pytest
import torch
from refused import refused
from safetensors.torch import save_file

from reelworks.core.shape import Shape
from reelworks.models import identify, registry
from reelworks.models.families.ltx import network as ltx
from reelworks.models.storage import weights
from reelworks.testing import contract

CLASSES = importlib.import_module("diffusers.loaders.single_file_model").SINGLE_FILE_LOADABLE_CLASSES


@contextlib.contextmanager
def mapping(kind, monkeypatch, *, prefix):
    """A mapping of diffusers that knows names with a prefix, and fails at others as theirs do."""

    def rename(checkpoint, config):
        if not all(name.startswith(f"{prefix}released.") for name in checkpoint):
            raise UnboundLocalError("new_q_name")
        return {name.removeprefix(f"{prefix}released."): value for name, value in checkpoint.items()}

    monkeypatch.setitem(CLASSES, kind, {**CLASSES[kind], "checkpoint_mapping_fn": rename})
    yield


@pytest.mark.parametrize("knows", ["", "model.diffusion_model."])
@pytest.mark.parametrize("prefix", ["", "model.diffusion_model.", "module."])
def test_names_are_mapped_with_and_without_a_prefix(tmp_path, monkeypatch, knows, prefix):
    config = registry.PRESETS["lumina-image-2.0-tiny"].config
    family = registry.load_network(registry.family_of("lumina-image-2.0-tiny"))
    state = family.build(config).state_dict()
    file = tmp_path / "released.safetensors"
    save_file({f"{prefix}released.{name}": value for name, value in state.items()}, file)
    with mapping("Lumina2Transformer2DModel", monkeypatch, prefix=knows):
        loaded = family.build(config)
        family.load(loaded, config, str(file))
    assert all(torch.equal(loaded.state_dict()[name], value) for name, value in state.items())


def test_what_a_mapping_raises_is_not_told(tmp_path, monkeypatch):
    """It tells that a file is of another model, whose tensors are counted."""
    save_file({"other.weight": torch.ones(2)}, tmp_path / "other.safetensors")
    config = registry.PRESETS["lumina-image-2.0-tiny"].config
    family = registry.load_network(registry.family_of("lumina-image-2.0-tiny"))
    with mapping("Lumina2Transformer2DModel", monkeypatch, prefix=""), refused("weights-do-not-fit", "model.weights"):
        family.load(family.build(config), config, str(tmp_path / "other.safetensors"))


def _taken_out(checkpoint, config):
    return {name.removeprefix("released."): checkpoint.pop(name) for name in [*checkpoint] if "released." in name}


def _copied(checkpoint, config):
    return {name.removeprefix("released."): value for name, value in checkpoint.items() if "released." in name}


@pytest.mark.parametrize("rename", [_taken_out, _copied])
def test_what_a_mapping_leaves_out_is_refused_as_what_a_network_does_not_have(tmp_path, monkeypatch, rename):
    config = registry.PRESETS["lumina-image-2.0-tiny"].config
    family = registry.load_network(registry.family_of("lumina-image-2.0-tiny"))
    kind = "Lumina2Transformer2DModel"
    monkeypatch.setitem(CLASSES, kind, {**CLASSES[kind], "checkpoint_mapping_fn": rename})
    state = {f"released.{name}": value for name, value in family.build(config).state_dict().items()}
    save_file(state, tmp_path / "released.safetensors")
    family.load(family.build(config), config, str(tmp_path / "released.safetensors"))
    save_file(state | {"blocks.0.smooth": torch.ones(2)}, tmp_path / "more.safetensors")
    with refused("weights-do-not-fit", "model.weights", says="1 unexpected .*: blocks.0.smooth"):
        family.load(family.build(config), config, str(tmp_path / "more.safetensors"))


def test_two_names_that_become_one_are_refused():
    own, config = identify.network("wan-flf2v-tiny"), registry.PRESETS["wan-flf2v-tiny"].config
    name = "condition_embedder.image_embedder.pos_embed"
    state = {"img_emb.emb_pos": own.state_dict()[name], name: own.state_dict()[name]}
    with refused("weights-unreadable", says=f"img_emb.emb_pos, {name}"):
        registry.load_network(registry.family_of("wan-flf2v-tiny")).rename_keys(own, config, state)


def test_wan_with_two_given_frames_has_places_of_pictures_in_its_releases_too():
    own = identify.network("wan-flf2v-tiny")
    config = registry.PRESETS["wan-flf2v-tiny"].config
    state = {
        name.replace("condition_embedder.image_embedder.pos_embed", "img_emb.emb_pos"): value
        for name, value in own.state_dict().items()
    }
    assert "img_emb.emb_pos" in state
    renamed = registry.load_network(registry.family_of("wan-flf2v-tiny")).rename_keys(own, config, state)
    assert weights.shapes_of(renamed) == weights.shapes_of(own.state_dict())


@pytest.mark.parametrize("preset", ["ltx-video-2b", "ltx-video-13b"])
def test_frames_of_ltx_have_the_times_of_their_releases_pipeline(preset):
    """Later releases are drawn by `LTXConditionPipeline`, in which the first latent frame lasts as long as its one frame."""
    kind = diffusers.LTXConditionPipeline
    inputs = contract.example(Shape(4, 2, 3), "ltx-tiny")
    ids = kind._prepare_video_ids(1, 4, 2, 3, patch_size=1, patch_size_t=1, device=torch.device("cpu"))
    wanted = kind._scale_video_ids(
        ids, scale_factor=32, scale_factor_t=8, frame_index=0, device=torch.device("cpu")
    ).float()
    if preset == "ltx-video-2b":
        wanted[:, 0] = 8.0 * ids[:, 0]
    wanted[:, 0] /= inputs.fps[0]
    found = ltx._positions(inputs, registry.PRESETS[preset].config.causal_times)[
        :1, :, : ids.shape[2]
    ]  # sources follow
    torch.testing.assert_close(found, wanted)
