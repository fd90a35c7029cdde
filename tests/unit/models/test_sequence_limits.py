"""Ranks that cannot share the tokens of a recipe's clips are refused before anything is trained."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from reelworks.core.errors import UserError
from reelworks.data.buckets import table
from reelworks.data.buckets.config import BucketEntryConfig, BucketsConfig
from reelworks.data.distributed.config import ParallelConfig
from reelworks.models import components, registry
from reelworks.models.config import AutoencoderConfig, ModelConfig, TextEncoderConfig
from reelworks.models.sequence import sequence_limits, sequence_parallel
from reelworks.testing import contract

HASHED = TextEncoderConfig(dim=32, max_length=6, pooled_dim=16)


def network(name, degree, **sizes):
    return sequence_limits.require_network(ModelConfig(name=name, **sizes), AutoencoderConfig(), HASHED, degree)


def buckets(name, degree, sizes, num_frames, unused=()):
    model, autoencoder = ModelConfig(name=name), AutoencoderConfig(stride=8)
    entries = [
        BucketEntryConfig(resolution=size, num_frames=num_frames, batch_size=1, keep_prob=float(size not in unused))
        for size in sizes
    ]
    made = table.build(entries, BucketsConfig(), components.geometry(model, autoencoder))
    sequence_limits.require_buckets(model, made.shared_by(degree))


def test_degrees_that_divide_the_heads_are_taken():
    for degree in (1, 2, 4, 8, 16):
        network("stdit3-xl", degree)
    network("stdit3-tiny", 3, hidden_size=36, num_heads=3)


@pytest.mark.parametrize(
    ("name", "degree", "code", "words"),
    [
        ("stdit3-xl", 3, "heads-not-divisible", "a divisor of 16: 1, 2, 4, 8, 16"),
        ("wan-2.1-1.3b", 8, "heads-not-divisible", "a divisor of 12: 1, 2, 3, 4, 6, 12"),
        ("flux-dev", 4, "tokens-not-divisible", "a multiple of 4"),
        ("sdxl", 2, "sequence-not-shared", "stdit3-xl"),
    ],
)
def test_networks_that_cannot_share_are_refused(name, degree, code, words):
    with pytest.raises(UserError) as refused:
        network(name, degree)
    assert refused.value.code == code
    assert words in str(refused.value)


def test_uneven_buckets_are_named_unless_the_network_pads():
    sizes = ["24x24", "32x32"]  # 9 and 16 tokens
    buckets("ltx-tiny", 1, sizes, 1)
    for name in ("stdit3-tiny", "wan-tiny"):
        buckets(name, 2, ["48x48"], 1)  # 9 tokens a frame
    buckets("ltx-tiny", 2, ["32x32"], 5)
    buckets("ltx-tiny", 2, sizes, 1, unused=["24x24"])  # which no clip is drawn for
    with pytest.raises(UserError, match="1 of 2 buckets") as refused:
        buckets("ltx-tiny", 2, sizes, 1)
    assert "9 tokens" in str(refused.value)
    assert "24×24" in str(refused.value)


def test_ranks_are_counted_by_group():
    assert ParallelConfig(sequence_degree=4).data_ranks(8) == 2
    assert ParallelConfig().data_ranks(3) == 3
    with pytest.raises(UserError, match="3 ranks cannot be divided into groups of 2"):
        ParallelConfig(sequence_degree=2).data_ranks(3)


def by_diffusers(name):
    split = registry.PRESETS[name].config.network.sequence
    return split is not None and not split.divided and not name.startswith(("stdit", "opensora"))  # networks of our own


@pytest.mark.parametrize("name", [name for name in registry.PRESETS if name.endswith("-tiny") and by_diffusers(name)])
def test_as_many_attentions_as_are_declared_are_shared_between_start_and_stop(name):
    """Where diffusers divides the tokens: those among shared tokens, and no other module."""
    denoiser, calls, ranks = contract.build(name), [], SimpleNamespace(context_parallel_config="ranks")
    split, module = denoiser.config.network.sequence, denoiser.module
    one = sequence_parallel._OfDiffusers(module, split, ranks)
    one._hooks = SimpleNamespace(
        apply_context_parallel=lambda *given: calls.append(given),
        remove_context_parallel=lambda *given: calls.append(given),
    )

    def shared():
        processors = [getattr(child, "processor", None) for child in module.modules()]
        return sum(getattr(processor, "_parallel_config", None) is ranks for processor in processors)

    one.start()
    assert shared() == sum(getattr(module.config, field) for field in split.attentions)
    one.stop()
    assert shared() == 0
    assert calls == [(module, "ranks", one._plan), (module, one._plan)]


@pytest.mark.parametrize(("name", "ranks"), [("ltx-tiny", [1, 3]), ("wan-tiny", [1, 2, 3, 4])])
def test_ranks_that_may_share_clips_divide_their_tokens_unless_the_network_pads(name, ranks):
    assert sequence_limits.degrees_of(ModelConfig(name=name), [9, 15], [1, 2, 3, 4]) == ranks
