"""Compiled blocks: one graph for all shapes of a token count, gradients of eager blocks, and a bound on graphs."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from refused import refused
from torch import Tensor, nn

from reelworks.core.shape import Geometry, Shape
from reelworks.data.buckets import table
from reelworks.data.buckets.config import DEFAULT_ASPECT_RATIOS, BucketEntryConfig, BucketsConfig
from reelworks.data.buckets.table import BucketTable
from reelworks.data.distributed.mesh import World
from reelworks.data.loader.micro_batch import MicroBatchRequest
from reelworks.models import components, recompute
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.api import Denoiser
from reelworks.models.config import ModelConfig
from reelworks.models.family import Network, PassRules
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.testing import contract
from reelworks.training.observers.step_reports import CompiledGraphs
from reelworks.training.step.compiled_blocks import CompiledBlocks


class Counting:
    """A backend that runs the traced operations as they are, and counts graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, traced: torch.fx.GraphModule, _inputs: list[Tensor]) -> Any:
        self.graphs += 1
        return traced.forward


def of(name: str) -> tuple[Geometry, Any]:
    model = ModelConfig(name=name)
    return components.geometry(model, contract.AUTOENCODER), components.family_config(model).network


def buckets_of(
    geometry: Geometry, resolution: str, num_frames: list[int], batch_size: int = 1, max_crop: float = 0.3
) -> BucketTable:
    entry = BucketEntryConfig(resolution=resolution, num_frames=num_frames, batch_size=batch_size)
    return table.build([entry], BucketsConfig(token_families=True, token_family_crop=max_crop), geometry)


def work(buckets: BucketTable, index: int, clips: int) -> MicroBatchRequest:
    uids, zeros = np.arange(clips, dtype=np.uint64), np.zeros(clips, dtype=np.int64)
    shape = buckets.buckets[index].shape
    drawn = {"uids": uids, "copies": zeros, "repeat_index": zeros.astype(np.int32), "requests": ()}
    return MicroBatchRequest(epoch=0, bucket=index, shape=shape, captions=(), fps=(), **drawn)


def gradients(denoiser: Denoiser, name: str, shape: Shape, geometry: Geometry, compiled: Any, asked: Any) -> Any:
    t, h, w = geometry.latent(shape)
    inputs = contract.example(Shape(t, h, w), name, batch=1)
    denoiser.module.zero_grad()
    with compiled.running(asked, inputs.text_mask):
        torch.autograd.backward(DtypeBoundary(denoiser)(inputs).square().mean())
    return {key: p.grad.clone() for key, p in denoiser.module.named_parameters() if p.grad is not None}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Any:
    torch._dynamo.reset()
    # Each record is formatted for pytest's handlers, which takes far longer than tracing.
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)
    yield
    torch._dynamo.reset()


def test_a_pass_without_a_graph_recomputes_where_compiled_ones_keep_all() -> None:
    """It would keep more than they do, which no memory was planned for."""
    geometry, network = of("stdit3-tiny")
    buckets = buckets_of(geometry, "32px", [1], batch_size=2)
    compiled = CompiledBlocks([nn.Linear(2, 2)], network, buckets, geometry, 1, Counting())
    seen = []
    for clips in (2, 1):
        for asked in (False, "selective", None):
            with compiled.running(work(buckets, 0, clips), torch.ones(clips, 3, dtype=torch.bool), asked):
                blocks = recompute._blocks.get()
                seen.append((compiled._on, None if blocks is None else blocks.next()))
    assert seen == [
        (True, False),
        (True, "selective"),
        (True, None),
        (False, True),
        (False, "selective"),
        (False, None),
    ]


@pytest.mark.slow
def test_nine_aspect_ratios_of_three_lengths_need_three_graphs_and_have_the_gradients_of_eager_blocks() -> None:
    name = "stdit2-tiny"  # all its blocks are of one kind
    geometry, network = of(name)
    buckets = buckets_of(geometry, "12px", [1, 2, 3], max_crop=0.35)
    assert {b.ratio for b in buckets.buckets} < set(DEFAULT_ASPECT_RATIOS)  # some of the nine share a size
    assert len({(b.shape.height, b.shape.width) for b in buckets.buckets}) == 3
    assert len({b.tokens for b in buckets.buckets}) == 3
    eager, plain = contract.build(name, gradient_checkpointing=True), CompiledBlocks.none()
    denoiser, backend = contract.build(name, gradient_checkpointing=True), Counting()
    names = list(denoiser.module.state_dict())
    compiled = CompiledBlocks(denoiser.sharding().blocks, network, buckets, geometry, 3, backend)
    assert list(denoiser.module.state_dict()) == names
    for index, bucket in enumerate(buckets.buckets):
        asked = work(buckets, index, 1)
        wanted = gradients(eager, name, bucket.shape, geometry, plain, asked)
        found = gradients(denoiser, name, bucket.shape, geometry, compiled, asked)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)
    assert backend.graphs == 3
    news = compiled.news()
    assert news is not None
    assert len(news["buckets"]) == 3
    assert news["seconds"] > 0
    assert compiled.news() is None


def test_outside_training_nothing_is_compiled() -> None:
    name = "stdit2-tiny"
    geometry, network = of(name)
    buckets = buckets_of(geometry, "16px", [1])
    denoiser, backend = contract.build(name), Counting()
    compiled = CompiledBlocks(denoiser.sharding().blocks, network, buckets, geometry, 3, backend)
    inputs = contract.example(Shape(1, 4, 4), name)
    DtypeBoundary(denoiser)(inputs)
    with compiled.running(work(buckets, 0, 1), inputs.text_mask), compiled.paused():
        DtypeBoundary(denoiser)(inputs)
    assert backend.graphs == 0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return out


def small(most_graphs: int, backend: Any, *, caption_multiple: int = 0) -> tuple[Block, CompiledBlocks, BucketTable]:
    geometry, _ = of("stdit2-tiny")
    network = Network("", (), passes=PassRules(caption_multiple=caption_multiple))
    buckets = buckets_of(geometry, "16px", [1, 2, 3], batch_size=2, max_crop=0.6)
    block = Block()
    return block, CompiledBlocks([block], network, buckets, geometry, most_graphs, backend), buckets


def test_a_bucket_beyond_the_bound_runs_eagerly_and_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    backend = Counting()
    block, compiled, buckets = small(2, backend)
    preferred = [(2, 1, b.tokens) for b in buckets.buckets if b.shape.num_frames == 1][:1]
    compiled.prefer(preferred)
    mask = torch.ones(2, 5, dtype=torch.bool)
    with caplog.at_level(logging.WARNING, logger="reelworks"):
        for _ in range(2):
            for index, bucket in enumerate(buckets.buckets):
                with compiled.running(work(buckets, index, 2), mask):
                    block(torch.ones(bucket.tokens, 4)).sum().backward()
    assert backend.graphs == 2
    three, two = ([b.name for b in buckets.buckets if b.shape.num_frames == n] for n in (3, 2))
    warned = [record.message for record in caplog.records]
    # Entries of three frames come first, and those of one have a graph reserved.
    assert len(warned) == len(two)
    assert all(message.startswith(name) for message, name in zip(warned, two, strict=True))
    assert not any(message.startswith(name) for message in warned for name in three)


def test_a_micro_batch_that_lacks_clips_runs_eagerly() -> None:
    backend = Counting()
    block, compiled, buckets = small(2, backend)
    with compiled.running(work(buckets, 0, 1), torch.ones(1, 5, dtype=torch.bool)):
        block(torch.ones(1, 4))
    assert backend.graphs == 0
    assert compiled.news() is None


def test_captions_of_their_own_length_have_graphs_of_their_own() -> None:
    backend = Counting()
    block, compiled, buckets = small(2, backend, caption_multiple=4)
    for length in (1, 4, 5, 8):
        with compiled.running(work(buckets, 0, 2), torch.arange(8).expand(2, 8) < length):
            block(torch.ones(-(-length // 4), 4))
    assert backend.graphs == 2


def chosen_graphs(
    most: int, *, buckets_digest: str, observed: Any = None, stage: bool = False, rank: int = 0, size: int = 1
) -> Any:
    """Return an observer of small compiled blocks after it has begun, with what it observes."""
    block, compiled, buckets = small(most, Counting(), caption_multiple=4)
    state = SimpleNamespace(observed={} if observed is None else observed)
    model = SimpleNamespace(compiled=compiled, compiled_shapes=(compiled.first_shapes,), state=state)
    recipe = SimpleNamespace(train=SimpleNamespace(compile=True))
    training: Any = SimpleNamespace(
        model=model, world=World(rank, size, torch.device("cpu")), data=SimpleNamespace(recipe=recipe)
    )
    graphs = CompiledGraphs(training)
    position = SimpleNamespace(spec=SimpleNamespace(buckets_digest=buckets_digest))
    graphs.begin(cast("Any", SimpleNamespace(position=position, begins_stage=stage)))

    def compiles(length: int) -> bool:
        with compiled.running(work(buckets, 0, 2), torch.arange(8).expand(2, 8) < length):
            block(torch.ones(-(-length // 4), 4))
            return compiled._on

    return graphs, compiles


def test_a_resumed_run_compiles_the_shapes_that_the_run_before_it_had_chosen() -> None:
    """Compiled sums may differ in last bits, so what is compiled must not depend on where a run was killed."""
    graphs, compiles = chosen_graphs(1, buckets_digest="a")
    assert (compiles(8), compiles(3)) == (True, False)
    kept = graphs.files(2)
    assert list(kept) == ["compiled_shapes.json"]
    _, compiles = chosen_graphs(1, buckets_digest="a", observed=kept)
    assert (compiles(3), compiles(8)) == (False, True)
    _, compiles = chosen_graphs(2, buckets_digest="a", observed=kept)  # train.compile_graphs was raised
    assert (compiles(3), compiles(8)) == (True, True)


def test_each_rank_compiles_the_shapes_that_it_had_chosen_itself() -> None:
    kept = []
    for length in (8, 3):
        graphs, compiles = chosen_graphs(1, buckets_digest="a")
        compiles(length)
        kept += json.loads(graphs.files(2)["compiled_shapes.json"])["ranks"]
    observed = {"compiled_shapes.json": json.dumps({"buckets": "a", "ranks": kept})}
    for rank, chosen in enumerate([(True, False), (False, True)]):
        _, compiles = chosen_graphs(1, buckets_digest="a", observed=observed, rank=rank, size=2)
        assert (compiles(8), compiles(3)) == chosen


@pytest.mark.parametrize("change", [{"buckets_digest": "b"}, {"stage": True}], ids=["other buckets", "a new stage"])
def test_shapes_of_other_buckets_take_no_place(change: dict[str, Any]) -> None:
    graphs, compiles = chosen_graphs(1, buckets_digest="a")
    compiles(8)
    _, compiles = chosen_graphs(1, **{"buckets_digest": "a", "observed": graphs.files(2)} | change)
    assert (compiles(3), compiles(8)) == (True, False)


def test_settings_of_the_compiler_reach_the_threads_of_autograd() -> None:
    """Each thread has its own; one that calls a block for the first time must not stop at the default of 8 graphs."""
    import threading

    backend = Counting()
    block, compiled, _ = small(20, backend)
    compiled._on = True

    def call() -> None:
        for rows in range(1, 13):
            block(torch.ones(rows, 4))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert backend.graphs == 12


def test_a_compiler_that_fails_is_told_as_the_recipes_key() -> None:
    def broken(_traced: Any, _inputs: Any) -> Any:
        raise RuntimeError("no C++ compiler")

    block, compiled, buckets = small(1, broken)
    mask = torch.ones(2, 5, dtype=torch.bool)
    with refused("not-compiled", "train.compile", says="no C"), compiled.running(work(buckets, 0, 2), mask):
        block(torch.ones(2, 4))
    with pytest.raises(ZeroDivisionError), compiled.running(work(buckets, 0, 2), mask):
        _ = 1 / 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")  # of torch, when it is imported
@pytest.mark.parametrize("kind", ["eager", "inductor"])
@pytest.mark.parametrize("name", ["stdit2-tiny", "wan-tiny"])
def test_lora_and_checkpointing_keep_their_gradients(name: str, kind: str) -> None:
    geometry, network = of(name)
    buckets = buckets_of(geometry, "16px", [5 if geometry.accepts_frames(5) else 1])
    kinds: dict[str, Any] = {"gradient_checkpointing": True, "lora": LoraConfig(rank=2)}
    asked, shape = work(buckets, 0, 1), buckets.buckets[0].shape
    backend = Counting() if kind == "eager" else kind
    wanted = gradients(contract.build(name, **kinds), name, shape, geometry, CompiledBlocks.none(), asked)
    denoiser = contract.build(name, **kinds)
    compiled = CompiledBlocks(denoiser.sharding().blocks, network, buckets, geometry, 1, backend)
    found = gradients(denoiser, name, shape, geometry, compiled, asked)
    if isinstance(backend, Counting):
        assert backend.graphs == 2  # the first block's input needs no gradient
    assert any("lora" in key and value.any() for key, value in found.items())
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)
