"""Ranks whose network takes a pass for each clip compute equally many, and copies that fill up change nothing."""

import dataclasses

import numpy as np
import pytest
import torch
from presets import every_class

from reelworks.data.schedule.plan import EpochPlan, ForwardCounts
from reelworks.models import components
from reelworks.models.config import ModelConfig
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.testing import contract
from reelworks.training.step.examples import Predicted, filled_up


def plan(sizes):
    """A plan of one step with micro-batches of these numbers of clips."""
    count = sum(sizes)
    zeros = np.zeros(count, dtype=np.int64)
    steps = np.arange(len(sizes), dtype=np.int64)[None]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return EpochPlan(zeros.astype(np.uint64), zeros, zeros, zeros, zeros.astype(np.int32), offsets, steps)


@pytest.mark.parametrize(
    ("sizes", "ranks", "parts", "columns"),
    [
        ([3, 1, 2, 2], 2, 1, (3, 2)),
        ([3, 1, 2], 2, 1, (3, 2)),  # a filler repeats the last one
        ([1, 4], 4, 1, (4,)),
        ([2, 1], 1, 1, (2, 1)),
        ([7, 4], 1, 2, (4, 2)),  # two micro-batches of each column side by side
    ],
)
def test_a_column_counts_as_many_passes_as_its_largest_rank_has_clips(sizes, ranks, parts, columns):
    passes = ForwardCounts.from_step(plan(sizes), 0, ranks, np.array([parts]))
    assert passes.columns == columns
    assert passes.most == max(columns)


@every_class
def test_a_network_declares_whether_it_takes_a_pass_for_each_clip(name):
    """Else ranks whose micro-batches have other numbers of clips would wait for each other's shards for ever."""
    denoiser, inputs, calls = contract.build(name), contract.example(contract.shapes(name)[-1], name), []
    lengths = torch.tensor([[inputs.text_mask.shape[1]], [1]])  # captions of two lengths
    mask = torch.arange(inputs.text_mask.shape[1]) < lengths
    denoiser.sharding().blocks[0].register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        DtypeBoundary(denoiser)(dataclasses.replace(inputs, text_mask=mask.to(inputs.text_mask.dtype)))
    passes = components.family_config(ModelConfig(name=name)).network.passes
    assert len(calls) == (2 if passes.clip_by_clip else 1)


@pytest.mark.parametrize("name", ["minimax-h3-sound-tiny", "qwen-image-2.1-edit-tiny"])
def test_copies_change_neither_outputs_nor_gradients(name):
    """Two clips give the same as the first two of five, with sources and sound."""
    inputs, found = contract.example(contract.shapes(name)[-1], name), []
    assert [len(value) for value in filled_up(inputs, 5).tensors().values()] == [5] * len(inputs.tensors())
    assert filled_up(inputs, 2) is inputs
    for at_least in (0, 5):
        denoiser = contract.build(name)
        output = Predicted.from_inputs(DtypeBoundary(denoiser), inputs, at_least=at_least)
        torch.autograd.backward(output.picture.square().mean())
        gradients = [p.grad for p in denoiser.module.parameters() if p.grad is not None]
        found.append([output.picture, *([] if output.sound is None else [output.sound]), *gradients])
    for alone, beside in zip(*found, strict=True):
        assert alone.shape == beside.shape
        torch.testing.assert_close(alone, beside, rtol=1e-4, atol=1e-6)
