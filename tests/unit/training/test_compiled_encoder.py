"""Compiled encoders give the latents of those that are not, with one graph for a shape, as far as graphs go."""

from __future__ import annotations

import json
import logging
import weakref
from pathlib import Path
from typing import Any

import diffusers
import pytest
import tiny_families
import tiny_recipe
import torch
from closeness import relative
from refused import refused
from safetensors.torch import load_file
from torch import Tensor, nn

from reelworks.core.shape import Geometry
from reelworks.models import factory, registry
from reelworks.models.api import Autoencoder
from reelworks.models.autoencoders import opensora
from reelworks.models.autoencoders.opensora import OpenSoraSizes, TemporalSizes
from reelworks.models.config import AutoencoderConfig
from reelworks.training.assembly import build
from reelworks.training.encoding.encoders import clips_at_once
from reelworks.training.precompute import encoding
from reelworks.training.recipe import recipe_file
from reelworks.training.step import compiled_encoder

GOLDEN = Path(__file__).parents[2] / "golden" / "opensora_autoencoder"
CPU = torch.device("cpu")
PUBLISHED = [name for name, facts in registry.AUTOENCODERS.items() if not facts.module and facts.compiles]


class Counting:
    """A backend that runs the traced operations as they are, and counts graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, traced: torch.fx.GraphModule, _inputs: list[Tensor]) -> Any:
        self.graphs += 1
        return traced.forward


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Any:
    torch._dynamo.reset()
    # Each record is formatted for pytest's handlers, which takes far longer than tracing.
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)
    yield
    torch._dynamo.reset()


def built(name: str, place: Path, dtype: str = "float32") -> Autoencoder:
    torch.manual_seed(0)
    kind: Any = getattr(diffusers, registry.AUTOENCODERS[name].network)
    kind(**tiny_families.AUTOENCODERS[name]).save_pretrained(place / "vae")
    settings: dict[str, Any] = {"name": name, "weights": str(place), "dtype": dtype}
    return factory.build_autoencoder(AutoencoderConfig(**settings))


def video(geometry: Geometry, clips: int = 1, frames: int = 13, width: int = 2) -> Tensor:
    size = geometry.nearest_frames(frames), 2 * geometry.stride[1], width * geometry.stride[2]
    return torch.rand(clips, 3, *size, generator=torch.Generator().manual_seed(1)) * 2 - 1


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_latents_are_those_without_compilation_and_a_shape_has_one_graph(name: str, tmp_path: Path) -> None:
    autoencoder = built(name, tmp_path)
    clip, again = video(autoencoder.geometry), video(autoencoder.geometry) * 0.5
    wanted = [autoencoder.encode(each) for each in (clip, again)]
    backend = Counting()
    (network,) = autoencoder.encoding_networks
    compiled_encoder.compile_network(network, 8, backend)
    # One that goes through a clip part by part has one for the first, the second and all others.
    found = [autoencoder.encode(each) for each in (clip, again)]
    assert backend.graphs == (3 if name.startswith("wan") else 1)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.quick_cases(1)
def test_latents_with_channels_last_differ_in_the_order_of_sums(name: str, dtype: str, tmp_path: Path) -> None:
    autoencoder = built(name, tmp_path, dtype)
    clip = video(autoencoder.geometry, frames=5)
    wanted, (network,) = autoencoder.encode(clip), autoencoder.encoding_networks
    shapes = {key: value.shape for key, value in network.state_dict().items()}
    compiled_encoder.store_channels_last(network)
    assert {key: value.shape for key, value in network.state_dict().items()} == shapes
    kernels = [p for p in network.parameters() if p.dim() == 5 and min(p.shape[1:]) > 1]
    kernels += [p for p in network.parameters() if p.dim() == 4 and min(p.shape[1:]) > 1]
    assert kernels
    assert all(kernel.stride(1) == 1 for kernel in kernels)
    distance = (autoencoder.encode(clip) - wanted).norm() / wanted.norm()
    assert distance < (1e-5 if dtype == "float32" else 0.03)


SPEC = json.loads((GOLDEN / "vae_tiny.json").read_text(encoding="utf-8"))
SIZES = OpenSoraSizes({**SPEC["pipeline"]["spatial_config"]}, TemporalSizes(filters=8, num_res_blocks=2, num_groups=4))


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")  # of torch, when it is imported
@pytest.mark.parametrize(("backend", "halves"), [("aot_eager", 2), ("inductor", 1)])
def test_golden_latents_stay(backend: str, halves: int) -> None:
    """Both halves of Open-Sora's autoencoder give upstream's numbers, to the tolerance that they have without.

    Inductor needs minutes on a CPU for both.
    """
    weights = str(GOLDEN / "vae_pipeline_tiny.weights.safetensors")
    autoencoder = opensora.build(AutoencoderConfig(name="opensora-1.2", weights=weights), SIZES)
    for network in autoencoder.encoding_networks[-halves:]:
        if backend == "aot_eager":
            compiled_encoder.store_channels_last(network)
        compiled_encoder.compile_network(network, 8, backend)
    cases = load_file(GOLDEN / "vae_pipeline_tiny.cases.safetensors")
    name = min((case["name"] for case in SPEC["pipeline"]["cases"]), key=lambda name: cases[f"{name}/x"].numel())
    assert relative(autoencoder.encode(cases[f"{name}/x"]), cases[f"{name}/z"]) <= 1e-5


class Doubling(nn.Module):
    def forward(self, x: Tensor, scale: int = 2) -> Tensor:
        return x * scale


@torch.no_grad()
def test_shapes_beyond_the_bound_run_without_compilation_and_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    network, backend = Doubling(), Counting()
    compiled_encoder.compile_network(network, 2, backend)
    with caplog.at_level(logging.INFO, logger="reelworks"):
        for size in (1, 2, 3, 3, 1, 4):
            assert network(torch.ones(2, size)).sum() == 4 * size
    assert backend.graphs == 2
    assert [record.message.split(",")[0] for record in caplog.records] == [
        "compiling the autoencoder for 2 × 1: shape 1 of at most 2",
        "compiling the autoencoder for 2 × 2: shape 2 of at most 2",
        "the autoencoder runs without compilation for 2 × 3",
        "the autoencoder runs without compilation for 2 × 4",
    ]


def test_what_cannot_be_compiled_is_told() -> None:
    def broken(_traced: torch.fx.GraphModule, _inputs: list[Tensor]) -> Any:
        raise RuntimeError("there is no compiler")

    network = Doubling()
    compiled_encoder.compile_network(network, 1, broken)
    with refused("not-compiled", "train.compile", says="the autoencoder could not be compiled"):
        network(torch.ones(1))


def recipe(place: Path, *, compile: bool, dtype: str = "float32") -> Any:
    autoencoder = {"name": "sd3", "weights": str(place), "dtype": dtype}
    made = tiny_recipe.of_family("sd3-tiny", place / "run", {"path": "unused"}, autoencoder=autoencoder)
    return recipe_file.parse(made | {"train": {"max_steps": 1, "compile": compile, "compile_backend": "aot_eager"}})


@pytest.mark.slow
def test_a_recipe_compiles_the_encoder_with_the_model(tmp_path: Path) -> None:
    built("sd3", tmp_path)
    frames = torch.randint(0, 256, (2, 1, 16, 16, 3), dtype=torch.uint8)
    found = []
    for compile in (False, True):
        torch._dynamo.utils.counters.clear()
        encoders: Any = build.lazy_encoder(recipe(tmp_path, compile=compile), CPU)
        found.append(encoders.latents(frames))
        network = weakref.ref(encoders.autoencoder.encoding_networks[0])
        encoders.autoencoder.drop()
        assert network() is None  # its memory is free for the model
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == int(compile)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


def test_stored_latents_of_a_compiled_encoder_in_bfloat16_have_keys_of_their_own(tmp_path: Path) -> None:
    """Its graphs round in fewer places; in float32 they differ as those of another batch size do."""
    built("sd3", tmp_path)
    keys = {
        (dtype, compile): encoding.encoder_ids(recipe(tmp_path, compile=compile, dtype=dtype), tmp_path).autoencoder
        for dtype in ("float32", "bfloat16")
        for compile in (False, True)
    }
    assert keys["float32", False] == keys["float32", True]
    assert len(set(keys.values())) == 3


@pytest.mark.parametrize(
    ("shape", "clips"),
    [((4, 17, 480, 832), 1), ((16, 1, 1024, 1024), 4), ((3, 1, 1024, 1024), 3), ((1, 81, 720, 1280), 1)],
)
def test_a_gpu_encodes_as_many_clips_at_once_as_its_memory_is_to_hold(shape: tuple[int, ...], clips: int) -> None:
    assert clips_at_once((*shape, 3)) == clips
