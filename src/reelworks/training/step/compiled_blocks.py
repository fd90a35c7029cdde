"""Blocks of a network, compiled in place with static shapes, and only for the shapes that have a graph.

`torch.compile` replaces `forward` of each block, so that no name in a state dict changes, and hooks around it (of
FSDP2) stay outside the graph. Blocks are compiled after LoRA layers are injected and weights are sharded, and as
whole blocks: with activation checkpointing, the backward pass runs the same compiled block again. Blocks of one kind
share their graphs, so that a graph of `data.buckets.graphs` is compiled once for each kind, whatever the depth.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from reelworks.core.context_variables import at_end
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.core.shape import Geometry
from reelworks.data.buckets import graphs, table
from reelworks.data.buckets.entry import Recomputation
from reelworks.data.buckets.graphs import Key
from reelworks.data.buckets.table import BucketTable
from reelworks.data.loader.micro_batch import MicroBatchRequest
from reelworks.models import components, recompute
from reelworks.models.api import Denoiser
from reelworks.models.family import Network
from reelworks.training.recipe.dataset import RecipeData

# Graphs of one class of blocks per graph of the plan: a first and a last block may differ from those between them in
# what needs gradients, in strides and in layers. At most 3 were seen.
_KINDS_PER_CLASS = 8
_BLOCKS = "the blocks"
_LIMITS = ("recompile_limit", "accumulated_recompile_limit")


def compile_in_place(
    module: nn.Module, backend: str | Callable[..., Any], runs: Callable[..., bool], most: tuple[int, int], what: str
) -> None:
    """Compile a module's `forward` with static shapes, and run that where `runs`, which is given the inputs, says so.

    Of one piece of code, and of all, a thread may compile so many graphs; checkpointed blocks run again in autograd's
    thread. Errors of the compiler tell `what` could not be compiled.
    """
    eager, config = module.forward, cast(Any, torch._dynamo.config)
    compiled = torch.compile(eager, dynamic=False, backend=backend)
    for name in _LIMITS:
        at_end(setattr, config, name, getattr(config, name))

    @functools.wraps(eager)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if not runs(*args, **kwargs):
            return eager(*args, **kwargs)
        if config.recompile_limit != most[0]:
            config.recompile_limit, config.accumulated_recompile_limit = most
        try:
            return compiled(*args, **kwargs)
        except Exception as error:
            raise_explained(error, what)
            raise

    module.forward = forward


class FirstShapes:
    """The first shapes that come, which are compiled; others run without for good, of which the sums may differ in last bits.

    `chosen` keeps their order; a checkpoint has them, so that a resumed run compiles what this one does.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.chosen: dict[tuple[int, ...], None] = {}

    def take(self, shape: tuple[int, ...]) -> bool:
        """Whether a shape is compiled."""
        if len(self.chosen) < self.most:
            self.chosen[shape] = None
        return shape in self.chosen


def raise_explained(error: Exception, what: str) -> None:
    """Raise an error of the compiler in words for people; return if it is another one."""
    of_compiler: type[Exception] = torch._dynamo.exc.TorchDynamoException
    if isinstance(error, of_compiler):
        reason = " ".join(str(error).split("Set TORCHDYNAMO_VERBOSE")[0].split())
        raise UserError(
            f"{what} could not be compiled ({reason[:300]})",
            code="not-compiled",
            field="train.compile",
            value=True,
            remedy="install a C++ compiler such as gcc if there is none, or set it to false",
        ) from error


class CompiledBlocks:
    """Blocks that run compiled inside `running`, and as they were everywhere else: validation, previews, checks.

    At most `most_graphs` kinds of micro-batches are compiled; further ones run without, with one warning per bucket.
    Without blocks, nothing is compiled.
    """

    def __init__(
        self,
        blocks: Iterable[nn.Module],
        network: Network,
        buckets: BucketTable,
        geometry: Geometry,
        most_graphs: int,
        backend: str | Callable[..., Any] = "inductor",
    ) -> None:
        self._blocks = tuple(blocks)
        self._network, self._table, self._geometry = network, buckets, geometry
        self.first_shapes = FirstShapes(most_graphs)
        self._on = False
        self._used: set[Key] = set()
        self._new: list[str] = []  # names of buckets that were compiled for since the last report
        self._reported_seconds = 0.0
        self._warned: set[int] = set()
        # When torch traces a block, it asks for the gradient of inputs that have none.
        warnings.filterwarnings("ignore", message=r"The \.grad attribute of a Tensor that is not a leaf")
        limit, classes = most_graphs * _KINDS_PER_CLASS, len({type(block) for block in self._blocks})
        for block in self._blocks:
            compile_in_place(block, backend, lambda *_, **__: self._on, (limit, limit * classes), _BLOCKS)

    @classmethod
    def of_recipe(cls, denoiser: Denoiser, data: RecipeData) -> Self:
        """Compile the blocks of a recipe's network, or none if it does not say so; after LoRA layers and sharding."""
        recipe = data.recipe
        blocks = denoiser.sharding().blocks if recipe.train.compile else ()
        network, train = components.family_config(recipe.model).network, recipe.train
        return cls(blocks, network, data.table, data.geometry, train.compile_graphs, train.compile_backend)

    @classmethod
    def none(cls) -> Self:
        """Return the value for a network that is not compiled."""
        return cls((), Network("", ()), table.EMPTY, Geometry((1, 1, 1), (1, 1, 1)), 1)

    def prefer(self, keys: Sequence[Key]) -> None:
        """Reserve graphs for these keys, first ones first, as far as graphs are left."""
        if not self._network.passes.caption_multiple:  # else keys depend on captions too
            for key in keys:
                self.first_shapes.take(key)

    @contextmanager
    def running(
        self, work: MicroBatchRequest, text_mask_BL: Tensor, recomputed: Recomputation | None = None
    ) -> Iterator[None]:
        """Run blocks compiled within the context if the micro-batch has a graph; for its forward and backward pass.

        Args:
            work: The micro-batch.
            text_mask_BL: True for the tokens of captions.
            recomputed: What the backward pass computes again, for a network that leaves it to the bucket.

        Raises:
            UserError: The blocks could not be compiled.
        """
        self._on = bool(self._blocks) and self._has_graph(work, text_mask_BL)
        level = recompute.of_eager_pass(recomputed or False, compiles=bool(self._blocks) and not self._on)
        try:
            with nullcontext() if recomputed is None else recompute.by(level):
                yield
        except Exception as error:
            if self._on:
                raise_explained(error, _BLOCKS)
            raise
        finally:
            self._on = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run blocks without compilation within the context."""
        former, self._on = self._on, False
        try:
            yield
        finally:
            self._on = former

    def news(self) -> dict[str, Any] | None:
        """Return what was compiled since the last call, None if nothing was.

        Returns:
            `buckets`, names of those that were new; `graphs`, the number of graphs so far over all kinds of blocks and
            the autoencoder; and `seconds` spent.
        """
        if not self._new:
            return None
        utils: Any = torch._dynamo.utils
        total = float(utils.calculate_time_spent().get("total_wall_time", 0.0))
        seconds, self._reported_seconds = total - self._reported_seconds, total
        buckets, self._new = self._new, []
        count = int(utils.counters["stats"]["unique_graphs"])
        logger.info(f"compiled {', '.join(buckets)} in {seconds:.1f} s; graphs so far: {count}")
        return {"buckets": buckets, "graphs": count, "seconds": round(seconds, 3)}

    def _has_graph(self, work: MicroBatchRequest, text_mask_BL: Tensor) -> bool:
        """Whether a micro-batch is compiled; remembers it, and warns of a bucket for which no graph is left."""
        bucket = self._table.buckets[work.bucket]
        clips = len(work.uids)
        if clips < bucket.batch_size:  # it may come once in an epoch
            return False
        key = graphs.key(bucket, clips, self._geometry, by_shape=self._network.passes.blocks_see_shapes)
        if multiple := self._network.passes.caption_multiple:
            rounded = {-(-length // multiple) for length in text_mask_BL.sum(1).tolist()}
            key += (max(rounded), len(rounded))
        if not self.first_shapes.take(key):
            if work.bucket not in self._warned:
                self._warned.add(work.bucket)
                logger.warning(
                    f"{bucket.name} runs without compilation, since train.compile_graphs = "
                    f"{self.first_shapes.most} leaves no graph for it"
                )
            return False
        if key not in self._used:
            self._used.add(key)
            self._new.append(bucket.name)
        return True
