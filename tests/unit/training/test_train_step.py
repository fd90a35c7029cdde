"""A step's loss and gradient are weighted means over its clips, whatever failed and however it is cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import examples
import numpy as np
import pytest
import tiny_recipe
import torch
from examples import training_example
from torch.utils._python_dispatch import TorchDispatchMode

from reelworks.core.errors import UserError
from reelworks.data.buckets import table
from reelworks.data.buckets.config import BucketEntryConfig, BucketsConfig
from reelworks.data.distributed.mesh import World
from reelworks.data.loader.micro_batch import MicroBatch, MicroBatchRequest, StreamState
from reelworks.data.media.decode import Request
from reelworks.data.schedule.plan import EpochPlan
from reelworks.models.components import geometry
from reelworks.models.config import AutoencoderConfig, ModelConfig
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.training.assembly import build
from reelworks.training.encoding.encode_prefetcher import EncodePrefetcher
from reelworks.training.memory import dry_run
from reelworks.training.recipe import recipe_file
from reelworks.training.step.examples import ExampleBuilder, Predicted
from reelworks.training.step.nonfinite import NonFiniteCause, NonFiniteSource, not_finite
from reelworks.training.step.optimizers import ShardedOptimizer
from reelworks.training.step.spikes import SpikeGroup
from reelworks.training.step.state import TrainState
from reelworks.training.step.step_sums import StepFlags, StepSums
from reelworks.training.step.train_step import StepResult, TrainStep

QUIET = StepFlags(stop=False, save=False, writing=False)

MODEL = ModelConfig(name="stdit3-tiny", hidden_size=32, depth=1, num_heads=2)
CPU = torch.device("cpu")


@pytest.fixture
def stepper():
    """Make a stepper around a model whose every layer reaches its output."""

    def make(**train: object) -> TrainStep:
        recipe = recipe_file.parse(
            tiny_recipe.least(
                objective={"caption_dropout": 0.3},
                bucket=[{"resolution": "32x32", "num_frames": [1, 4]}],
                model=MODEL.model_dump(exclude_none=True),
                text_encoder={"dim": 16, "max_length": 6},
                precision={"compute": "float32"},
                train={"max_steps": 1, "max_grad_norm": "none", "learning_rate": 1e-3, **train},
            )
        )
        torch.manual_seed(3)
        denoiser = build.denoiser(recipe, CPU)
        for parameter in denoiser.module.parameters():
            # Fresh models begin with zeros where these tests want gradients.
            torch.nn.init.normal_(parameter, std=0.2)
        buckets = table.build(
            [BucketEntryConfig(resolution="32x32", num_frames=[1, 4], batch_size=2)],
            BucketsConfig(),
            geometry(MODEL, AutoencoderConfig()),
        )
        state = TrainState.start(denoiser, recipe.train)
        recipe = recipe.model_copy(update={"seed": 5})
        builder = ExampleBuilder(recipe, buckets, examples.batch_encoder(build.encoder(recipe, CPU)))
        return TrainStep(DtypeBoundary(denoiser), builder, state, World(0, 1, CPU))

    return make


def micro_batch(stepper: TrainStep, bucket: int, uids: list[int], *, failed: tuple[int, ...] = (), last: bool = True):
    shape = stepper.table.buckets[bucket].shape
    frames = [
        np.random.default_rng(uid).integers(0, 256, (shape.num_frames, 32, 32, 3), dtype=np.uint8) for uid in uids
    ]
    for place in failed:
        frames[place][:] = 0
    counts = np.array([place not in failed for place in range(len(uids))])
    work = MicroBatchRequest(
        epoch=0,
        plan_step=0,
        index=0,
        ends_step=last,
        is_idle=False,
        bucket=bucket,
        shape=shape,
        uids=np.array(uids, dtype=np.uint64),
        copies=np.zeros(len(uids), dtype=np.int64),
        repeat_index=np.zeros(len(uids), dtype=np.int32),
        requests=tuple(
            Request(
                Path(f"{uid}.mp4"),
                is_image=False,
                shape=shape,
                step=1.0,
                first_frame_draw=0.0,
                crop_draw=(0, 0),
            )
            for uid in uids
        ),
        captions=tuple(f"clip {uid}" for uid in uids),
        fps=(24.0,) * len(uids),
    )
    failures = tuple((place, "damaged") for place in failed)
    return MicroBatch(work, torch.from_numpy(np.stack(frames)), torch.from_numpy(counts), failures)


def plan_of(batches: list[MicroBatch]) -> EpochPlan:
    """One step that holds the micro-batches."""
    sizes = [len(batch.request.uids) for batch in batches]
    uid = np.concatenate([batch.request.uids for batch in batches])
    bucket = np.repeat([batch.request.bucket for batch in batches], sizes).astype(np.int64)
    zeros = np.zeros(len(uid), dtype=np.int64)
    return EpochPlan(
        uid,
        zeros,
        zeros,
        bucket,
        np.zeros(len(uid), dtype=np.int32),
        np.r_[0, np.cumsum(sizes)].astype(np.int64),
        np.arange(len(batches))[None],
    )


def run_step(
    s: TrainStep,
    batches: list[MicroBatch],
    *,
    step: int = 0,
    flags: StepFlags = QUIET,
    ahead: EncodePrefetcher | None = None,
) -> StepResult:
    """Take a step with micro-batches, which `ahead` encodes, or which are encoded when they are trained."""
    where = {"plan": plan_of(batches), "plan_step": 0, "step": step}
    encoded = map(s.examples.encode, batches) if ahead is None else ahead.batches_of_step()
    return s.run(s.examples.of_step(encoded, **where), flags=flags, **where)


def encoding_ahead(s: TrainStep, batches: Iterator[MicroBatch], encode=None, *, is_ahead: bool = True):
    return EncodePrefetcher(batches, encode or s.examples.encode, CPU, is_ahead=is_ahead)


def take(stepper: TrainStep, batches: list[MicroBatch], monkeypatch) -> tuple[object, dict[str, torch.Tensor]]:
    """Run a step; returns its result and the gradient by which the optimizer was to update."""
    gradients: dict[str, torch.Tensor] = {}

    def remember(self, scale):
        gradients.update({name: parameter.grad * scale for name, parameter in self.trained.items()})

    with monkeypatch.context() as patch:
        patch.setattr(ShardedOptimizer, "step", remember)
        result = run_step(stepper, batches)
    return result, gradients


def assert_close(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=2e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("loss_reduction", ["token", "sample", "micro_batch"])
def test_a_failed_clip_leaves_the_gradient_of_the_others(stepper, monkeypatch, loss_reduction):
    """Of those in its micro-batch, and of those in another one."""
    s = stepper(loss_reduction=loss_reduction)
    batches = [micro_batch(s, 0, [1, 2], failed=(1,), last=False), micro_batch(s, 1, [3, 4])]
    with_failure, hurt = take(s, batches, monkeypatch)
    s = stepper(loss_reduction=loss_reduction)
    alone, calm = take(s, [micro_batch(s, 0, [1], last=False), micro_batch(s, 1, [3, 4])], monkeypatch)
    assert_close(hurt, calm)
    assert with_failure.loss == pytest.approx(alone.loss, rel=1e-5)
    assert (with_failure.clips, with_failure.failed) == (3, 1)
    assert with_failure.grad_norm == pytest.approx(alone.grad_norm, rel=1e-4)


@pytest.mark.parametrize("share", [0.5, 2.0])
def test_clipping_lowers_large_gradients_to_the_limit_and_leaves_small_ones(stepper, monkeypatch, share):
    s = stepper()
    whole, gradients = take(s, [micro_batch(s, 0, [1, 2])], monkeypatch)
    limit = share * whole.grad_norm
    s = stepper(max_grad_norm=limit)
    _, clipped = take(s, [micro_batch(s, 0, [1, 2])], monkeypatch)
    assert_close(clipped, {name: value * min(share, 1.0) for name, value in gradients.items()})


@pytest.mark.parametrize("loss_reduction", ["token", "sample", "micro_batch"])
def test_the_loss_is_the_weighted_mean_over_clips_of_all_shapes(stepper, monkeypatch, loss_reduction):
    s = stepper(loss_reduction=loss_reduction)
    batches = [micro_batch(s, 0, [1, 2], last=False), micro_batch(s, 1, [3])]
    losses = []
    for batch in batches:
        example = training_example(batch, s.examples.encoder.encoders, s.recipe.objective, seed=s.recipe.seed)
        losses.append(example.losses(Predicted.from_inputs(s.boundary, example.inputs)).detach().double().numpy())
    tokens = [s.table.buckets[batch.request.bucket].tokens for batch in batches]
    assert tokens[0] == 4 * tokens[1], "four frames have four times the tokens of one"
    weight = {
        "token": [np.full(2, tokens[0]), np.full(1, tokens[1])],
        "sample": [np.ones(2), np.ones(1)],
        "micro_batch": [np.full(2, 0.5), np.ones(1)],
    }[loss_reduction]
    expected = np.average(np.concatenate(losses), weights=np.concatenate(weight))
    result, _ = take(s, batches, monkeypatch)
    assert result.loss == pytest.approx(expected, rel=1e-5)
    assert result.loss_by_bucket == pytest.approx({0: losses[0].mean(), 1: losses[1].mean()}, rel=1e-5)


def test_accumulating_equals_one_batch(stepper, monkeypatch):
    s = stepper()
    _, together = take(s, [micro_batch(s, 0, [1, 2])], monkeypatch)
    s = stepper()
    _, apart = take(s, [micro_batch(s, 0, [1], last=False), micro_batch(s, 0, [2])], monkeypatch)
    assert_close(together, apart)


def test_what_a_clip_meets_does_not_depend_on_its_batch(stepper):
    s = stepper()
    both = training_example(micro_batch(s, 0, [1, 2]), s.examples.encoder.encoders, s.recipe.objective, seed=5)
    second = training_example(micro_batch(s, 0, [2]), s.examples.encoder.encoders, s.recipe.objective, seed=5)
    for name in ("latent", "time", "frame_mask", "drop_text", "text"):
        assert torch.equal(getattr(both.inputs, name)[1:], getattr(second.inputs, name)), name
    assert not torch.equal(both.noise[0], both.noise[1])
    assert both.inputs.time[0] != both.inputs.time[1]


def test_a_step_that_is_not_finite_changes_nothing(stepper):
    s = stepper()
    name, parameter = next(iter(s.state.module.named_parameters()))
    with torch.no_grad():
        parameter.fill_(float("nan"))
    before = {name: value.clone() for name, value in s.state.ema.items()}
    weights = [parameter.detach().clone() for parameter in s.state.module.parameters()]
    batch = micro_batch(s, 0, [1, 2])
    result = run_step(s, [batch])
    assert (result.applied, result.finite) == (False, False)
    assert result.blame.origin == NonFiniteSource("weight", name)
    assert [clip["path"] for clip in result.blame.clips] == ["1.mp4", "2.mp4"]
    assert s.state.not_finite() == [name]
    for parameter, former in zip(s.state.module.parameters(), weights, strict=True):
        assert torch.equal(parameter.nan_to_num(), former.nan_to_num())
    assert all(torch.equal(s.state.ema[name].nan_to_num(), value.nan_to_num()) for name, value in before.items())


def test_the_module_that_makes_numbers_infinite_is_named(stepper):
    """The first of those whose output is not finite, with the clips of the micro-batch it was in."""
    s = stepper()
    fine, bad = micro_batch(s, 0, [1, 2], last=False), micro_batch(s, 1, [3])
    frames = bad.frames.shape[1]
    s.state.module.spatial_blocks[0].mlp.register_forward_hook(
        lambda _module, _args, out: out / 0.0 if out.shape[1] == frames else out
    )
    result = run_step(s, [fine, bad])
    assert not result.applied
    assert result.blame == NonFiniteCause(
        NonFiniteSource("activation", "spatial_blocks.0.mlp"), ({"uid": 3, "path": "3.mp4"},)
    )
    assert "first in the activation of spatial_blocks.0.mlp; the loss of 3.mp4" in result.why_not


@pytest.mark.parametrize("max_grad_norm", [1.0, "none"])
def test_the_module_whose_gradient_breaks_is_named(stepper, max_grad_norm):
    """Where every loss is finite, the first in the order of the backward pass, whatever is clipped."""
    s = stepper(max_grad_norm=max_grad_norm)
    path = "spatial_blocks.0.attn.proj"

    def break_gradient(_module, _args, out):
        if out.requires_grad:
            out.register_hook(lambda gradient: gradient * float("inf"))

    s.state.module.get_submodule(path).register_forward_hook(break_gradient)
    batch = micro_batch(s, 0, [1, 2])
    result = run_step(s, [batch])
    assert not result.applied
    assert np.isfinite(result.loss)
    assert result.blame == NonFiniteCause(NonFiniteSource("gradient", path), ())


def test_blame_is_put_together_over_ranks():
    """The cause before its effects, and the clips of all."""
    one, two = {"uid": 1, "path": "1.mp4"}, {"uid": 2, "path": "2.mp4"}
    parts = [
        (NonFiniteSource("gradient", "a"), [one]),
        (None, []),
        (NonFiniteSource("activation", "b"), [two]),
    ]
    assert NonFiniteCause.from_parts(parts) == NonFiniteCause(NonFiniteSource("activation", "b"), (one, two))
    assert NonFiniteCause.from_parts([(None, [])]) == NonFiniteCause(None, ())


def test_what_is_large_but_finite_is_finite():
    """Values whose squares pass the range of float32 are no infinities; a single one among many is found."""
    large = torch.full((3, 4), 3e38)
    broken = torch.zeros(5, 7, dtype=torch.bfloat16)
    broken[4, 6] = float("nan")
    empty, whole = torch.zeros(0), torch.ones(3, dtype=torch.int64)
    assert not_finite({"large": large, "empty": empty, "whole": whole}) == []
    assert not_finite({"large": large, "broken": broken, "b": torch.tensor([float("-inf")])}) == [
        "broken",
        "b",
    ]


def test_a_state_names_all_that_is_not_finite(stepper):
    """Weights, averages and what the optimizer remembers."""
    s = stepper()
    name, _ = next(iter(s.state.module.named_parameters()))
    assert s.state.not_finite() == []
    s.state.ema[name].view(-1)[3] = float("inf")
    s.state.optimizer.tensors()[name, "exp_avg_sq"].view(-1)[0] = float("nan")
    assert s.state.not_finite() == [f"the average of {name}", f"the optimizer's exp_avg_sq of {name}"]


def test_a_step_without_a_clip_is_skipped(stepper):
    s = stepper()
    batch = micro_batch(s, 0, [1, 2], failed=(0, 1))
    result = run_step(s, [batch], flags=QUIET._replace(stop=True))
    assert (result.applied, result.clips, result.failed, result.flags.stop) == (False, 0, 2, True)
    assert result.why_not == "no clip could be decoded"


@pytest.mark.parametrize("is_here", [False, True])
def test_a_step_that_a_rank_cannot_take_is_taken_by_none(stepper, monkeypatch, is_here):
    """Whether this rank or another one has no clips, for a reason that is not theirs."""
    s, reason = stepper(), UserError("gives no clip", code="storage-away", remedy="restore it")
    before = {name: p.detach().clone() for name, p in s.state.module.named_parameters()}
    sum_up = StepSums.over_ranks
    monkeypatch.setattr(
        StepSums,
        "over_ranks",
        lambda sums, world, clips, flags: sum_up(sums, world, clips, flags._replace(stuck=flags.stuck or not is_here)),
    )
    result = run_step(s, [replace(micro_batch(s, 0, [1, 2]), stops=reason if is_here else None)])
    assert (result.flags.stuck, result.applied, result.stops) == (True, False, reason if is_here else None)
    assert all(torch.equal(before[name], p) for name, p in s.state.module.named_parameters())


def test_a_step_whose_masks_show_what_is_given_is_skipped_for_that_reason(stepper):
    """All of its clips were read."""
    s = stepper()
    config = s.recipe.objective.model_copy(update={"mask_ratios": {"image_head": 1.0}})
    s = replace(s, examples=replace(s.examples, recipe=s.recipe.model_copy(update={"objective": config})))
    batch = micro_batch(s, 0, [1, 2])
    masks = torch.zeros_like(batch.frames)
    masks[:, 0] = 255
    result = run_step(s, [replace(batch, companions={"loss_mask": masks})])
    assert (result.applied, result.clips, result.failed) == (False, 2, 0)
    assert result.why_not == "the loss masks of its clips show nothing that is trained"


class HostReads(TorchDispatchMode):
    """Counts operations whose result the host reads: on a GPU it would wait there for all that was launched."""

    READS = (
        torch.ops.aten._local_scalar_dense.default,
        torch.ops.aten.nonzero.default,
        torch.ops.aten.equal.default,
    )

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in self.READS
        return func(*args, **(kwargs or {}))


def test_the_host_reads_the_device_as_often_for_one_micro_batch_as_for_many(stepper, monkeypatch):
    """So a step of many micro-batches is launched in one go, however long each of them takes."""
    s = stepper()
    copied = []
    for name in ("cpu", "tolist"):
        whole = getattr(torch.Tensor, name)

        def noted(self, *args, name=name, whole=whole):
            copied.append(name)
            return whole(self, *args)

        monkeypatch.setattr(torch.Tensor, name, noted)
    reads = {}
    for number in (1, 2, 5):
        batches = [micro_batch(s, i % 2, [7 + i], last=i == number - 1) for i in range(number)]
        for caption in (c for batch in batches for c in batch.request.captions):
            s.examples.encoder.encoders.texts([caption], [False])  # an embedding comes to CPU memory once in a run
        copied.clear()
        with HostReads() as counted:
            result = run_step(s, batches)
        assert result.applied
        reads[number] = counted.count, sorted(copied)
    assert reads[1] == reads[2] == reads[5]


def test_gradients_are_clipped_to_the_norm(stepper, monkeypatch):
    s = stepper(max_grad_norm=0.01)
    result, gradients = take(s, [micro_batch(s, 0, [1, 2])], monkeypatch)
    norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
    assert result.grad_norm > 0.02
    assert float(norm) == pytest.approx(0.01, rel=1e-3)


def test_each_micro_batch_of_each_step_draws_its_own_dropout(stepper, monkeypatch):
    """What the model draws, by whichever generator, is of the step and the micro-batch, and equal where a step is taken again."""
    s, drawn = stepper(), []

    def draw(*_: object) -> None:
        drawn.append((*torch.rand(4).tolist(), random.random(), np.random.rand()))

    s.state.module.spatial_blocks[0].mlp.register_forward_hook(draw)
    batches = [micro_batch(s, 0, [1], last=False), micro_batch(s, 0, [1])]
    batches = [replace(b, request=replace(b.request, index=i)) for i, b in enumerate(batches)]
    for step in (0, 1, 0):
        run_step(s, batches, step=step)
    assert all(len(set(numbers)) == 4 for numbers in zip(*drawn[:4], strict=True))
    assert drawn[4:] == drawn[:2]


def test_the_gradients_of_each_step_are_noted_for_the_watch_of_adapters(stepper):
    rates = []
    s = replace(stepper(), watch=SimpleNamespace(note=rates.append))
    rate = run_step(s, [micro_batch(s, 0, [1])]).learning_rate
    assert rates == [rate]


def test_an_average_that_a_stage_begins_is_as_old_as_the_stage(stepper, monkeypatch):
    s, ages = stepper(), []
    s = replace(s, stage=replace(s.stage, average_step=7))
    monkeypatch.setattr(s.state, "update_ema", lambda age, decay: ages.append(age))
    run_step(s, [micro_batch(s, 0, [1])], step=9)
    assert ages == [2]


def test_the_average_follows_its_formula_and_steps_aside(stepper):
    s = stepper()
    name, start = next((n, v.clone()) for n, v in s.state.ema.items())
    parameter = dict(s.state.module.named_parameters())[name]
    with torch.no_grad():
        parameter.add_(1.0)
    s.state.update_ema(step=8, decay=0.999)
    torch.testing.assert_close(s.state.ema[name], start + (1 - 9 / 18))
    s.state.update_ema(step=10**6, decay=0.9)
    torch.testing.assert_close(s.state.ema[name], start + 0.5 + 0.1 * 0.5)
    former = parameter.detach().clone()
    with s.state.averaged():
        assert torch.equal(parameter, s.state.ema[name])
    assert torch.equal(parameter, former)


def test_a_part_that_a_network_keeps_in_eval_mode_stays_so(stepper):
    module = (s := stepper()).state.module
    module.spatial_blocks[0].mlp.eval()
    before = {name: part.training for name, part in module.named_modules()}
    with s.state.averaged():
        assert not any(part.training for part in module.modules())
    assert {name: part.training for name, part in module.named_modules()} == before
    assert not module.spatial_blocks[0].mlp.training


def test_the_rehearsal_leaves_buffers_as_they_were(stepper):
    """A resumed run would begin with others than an uninterrupted one."""
    module, calls = (s := stepper()).state.module, []
    module.register_buffer("mean", torch.zeros(2))
    module.register_buffer("codes", torch.zeros(2, dtype=torch.uint8))

    def change(*_: object) -> None:
        calls.append(module.mean.add_(1).tolist())

    module.spatial_blocks[0].register_forward_hook(change)
    dry_run.rehearse(s.boundary.denoiser, s.examples.encoder.encoders, s.state, s.table.buckets[0])
    assert calls
    assert module.mean.tolist() == [0, 0]


def test_losses_by_timestep_are_means_over_the_clips_in_each_range(stepper, monkeypatch):
    s = stepper()
    batches = [micro_batch(s, 0, [1, 2, 3, 4], last=False), micro_batch(s, 1, [5, 6, 7])]
    losses, times, weights = [], [], []
    for batch in batches:
        example = training_example(batch, s.examples.encoder.encoders, s.recipe.objective, seed=s.recipe.seed)
        losses += example.losses(Predicted.from_inputs(s.boundary, example.inputs)).tolist()
        times += example.inputs.time.tolist()
        weights += [s.table.buckets[batch.request.bucket].tokens] * len(batch.request.uids)
    result, _ = take(s, batches, monkeypatch)
    expected = {}
    for place in {int(time // 100) for time in times}:
        inside = [int(time // 100) == place for time in times]
        expected[place] = np.average(np.array(losses)[inside], weights=np.array(weights)[inside])
    assert len(expected) > 1
    assert result.loss_by_range == pytest.approx(expected, rel=1e-5)


def test_the_squares_of_block_norms_sum_to_the_whole(stepper):
    s = stepper(log_block_grad_norms_every=2)
    batch = micro_batch(s, 0, [1, 2])
    first = run_step(s, [batch])
    assert first.grad_norm_by_block == {}
    second = run_step(s, [batch], step=1)
    norms = second.grad_norm_by_block
    assert {"spatial_blocks.0", "temporal_blocks.0", "rest"} <= norms.keys()
    assert min(norms.values()) > 0
    assert np.sqrt(sum(norm**2 for norm in norms.values())) == pytest.approx(second.grad_norm, rel=1e-5)


@pytest.mark.parametrize("policy", ["report", "skip", "off"])
def test_a_spike_is_reported_with_its_clips_and_skipped_if_asked_for(stepper, policy):
    s = stepper(spikes=policy)
    bucket = s.table.buckets[0].name
    for _ in range(30):
        s.state.spikes.add({SpikeGroup(bucket): 1e-6}, 1e6, SpikeGroup(bucket), threshold=8)
    former = [parameter.detach().clone() for parameter in s.state.module.parameters()]
    batch = micro_batch(s, 0, [1, 2])
    result = run_step(s, [batch])
    changed = any(not torch.equal(a, b) for a, b in zip(former, s.state.module.parameters(), strict=True))
    assert changed == result.applied == (policy != "skip")
    if policy == "off":
        assert result.spike is None
        return
    assert (result.spike.what, result.spike.group) == ("loss", (bucket, ""))
    assert sorted(clip.path for clip in result.spike.clips) == ["1.mp4", "2.mp4"]
    assert np.mean([clip.loss for clip in result.spike.clips]) == pytest.approx(result.loss, rel=1e-5)


def three_steps(s: TrainStep) -> list[list[MicroBatch]]:
    """Three steps of one or two micro-batches."""
    return [
        [micro_batch(s, 0, [1, 2], last=False), micro_batch(s, 1, [3])],
        [micro_batch(s, 1, [4, 5])],
        [micro_batch(s, 0, [6], last=False), micro_batch(s, 0, [7, 8])],
    ]


def train(s: TrainStep, fetched: list[int], *, encodes_ahead: bool) -> list[tuple[float, float, int]]:
    """Take the three steps; returns loss and norm of each, and the micro-batches that were fetched by its end."""

    def stream():
        for batch in (batch for step in steps for batch in step):
            fetched.append(int(batch.request.uids[0]))
            yield batch

    steps = three_steps(s)
    ahead, results = encoding_ahead(s, stream(), is_ahead=encodes_ahead), []
    for step, batches in enumerate(steps):
        done = run_step(s, batches, step=step, ahead=ahead)
        results.append((done.loss, done.grad_norm, len(fetched)))
    return results


def test_encoding_ahead_changes_when_clips_are_encoded_and_nothing_else(stepper):
    plain, early = stepper(ema_decay=0.9), stepper(ema_decay=0.9)
    one, other = train(plain, [], encodes_ahead=False), train(early, [], encodes_ahead=True)
    assert [each[:2] for each in one] == [each[:2] for each in other]
    assert [each[2] for each in one] == [2, 3, 5]
    assert [each[2] for each in other] == [3, 4, 5]
    for name, average in plain.state.ema.items():
        assert torch.equal(average, early.state.ema[name]), name


def test_a_clip_that_cannot_be_fetched_or_encoded_ahead_concerns_its_own_step_only(stepper):
    s = stepper()
    first, second = micro_batch(s, 0, [1]), micro_batch(s, 0, [2])

    def broken():
        yield first
        raise OSError("the disk is gone")

    ahead = encoding_ahead(s, broken())
    assert run_step(s, [first], ahead=ahead).applied
    with pytest.raises(OSError, match="the disk is gone"):
        run_step(s, [second], ahead=ahead)

    tried = []

    def lacks_memory_ahead(batch):
        tried.append(batch)
        if batch is second and tried.count(second) == 1:
            raise torch.OutOfMemoryError("out of memory")
        return s.examples.encode(batch)

    ahead = encoding_ahead(s, iter([first, second]), lacks_memory_ahead)
    for step, batch in enumerate((first, second)):
        assert run_step(s, [batch], step=step, ahead=ahead).applied
    assert tried == [first, second, second]


def test_waiting_is_told_with_the_step_in_which_it_happened(stepper):
    """The next micro-batch is waited for while this one is trained: that is not of the next step, which may be shorter."""
    s = stepper()
    waits = [3.0, 2.0]
    batches = [replace(micro_batch(s, 0, [1]), stream=StreamState(wait_seconds=seconds)) for seconds in waits]
    ahead, told = encoding_ahead(s, iter(batches)), []
    for step, batch in enumerate(batches):
        run_step(s, [batch], step=step, ahead=ahead)
        told.append(ahead.waited_seconds())
    assert told == [5.0, 0.0]
