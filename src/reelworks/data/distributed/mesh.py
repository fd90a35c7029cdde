"""Process groups and sharding.

Several processes always use FSDP2 on a mesh with the dimensions replicate × shard: "replicated" is (ranks, 1), where
each rank holds a full copy and gradients are summed, "fsdp" is (1, ranks), and "hsdp" lies between them. This gives
one code path, one set of names in a state dict, and one dtype policy. A single process uses it too if its weights
lie in CPU memory, from where FSDP2 fetches them block by block.
"""

from __future__ import annotations

import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from reelworks.core import device_memory, launcher, machine, torch_state
from reelworks.core.errors import UserError
from reelworks.data.distributed import collectives, roll_call
from reelworks.data.distributed.config import ParallelConfig
from reelworks.data.distributed.contract import Contract
from reelworks.data.distributed.layout import Layout
from reelworks.data.distributed.roll_call import Facts
from reelworks.data.distributed.sequence import SequenceGroup
from reelworks.data.distributed.watch import ClipsOf, Watch


@dataclass(frozen=True)
class World:
    """Rank, number of ranks and device of this process, with small collectives."""

    rank: int
    size: int
    device: torch.device
    offload: bool = False  # whether the trained weights lie in CPU memory
    local_size: int = 1  # ranks on this machine
    watch: Watch | None = None  # None for one process
    # By degree, the ranks that share a clip of a bucket of that degree with this one; empty if none shares any.
    sequences: Mapping[int, SequenceGroup] = field(default_factory=dict)

    @property
    def sequence(self) -> SequenceGroup | None:
        """The ranks of the largest degree, which train a column of a plan together; None if each has its own."""
        return self.sequences.get(self.sequence_degree)

    @property
    def sequence_degree(self) -> int:
        """Ranks of a sequence group, the most that share the tokens of a clip."""
        return max(self.sequences, default=1)

    @property
    def data_rank(self) -> int:
        """Place of this rank's micro-batches among those of a step, which the ranks of a sequence group share."""
        return self.rank // self.sequence_degree

    @property
    def data_size(self) -> int:
        """Micro-batches that ranks work on at once."""
        return self.size // self.sequence_degree

    def leads(self, degree: int) -> bool:
        """Whether this rank is the first of those that share a clip of that degree."""
        group = self.sequences.get(degree)
        return group is None or group.rank == 0

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes and prints."""
        return self.rank == 0

    @property
    def shards(self) -> bool:
        """Whether FSDP2 manages the trained weights and their compute dtype."""
        return self.size > 1 or self.offload

    @property
    def home(self) -> torch.device:
        """Device on which a network is built and its weights are stored between uses."""
        return torch.device("cpu") if self.offload else self.device

    @property
    def device_bytes(self) -> int:
        """Memory of the device; on a CPU, this rank's share of the machine's memory."""
        return device_memory.total_bytes(self.device) or machine.memory_bytes() // self.local_size

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of a small float64 tensor over ranks."""
        if self.size == 1:
            return values
        moved = values.to(self.device)
        dist.all_reduce(moved)
        return moved.to(values.device)

    def any(self, flag: bool) -> bool:
        """Whether the flag is True on any rank; equal on all."""
        return bool(self.sum(torch.tensor([float(flag)], dtype=torch.float64, device="cpu")) > 0)

    def broadcast(self, value: object) -> object:
        """Return rank 0's picklable value on every rank."""
        if self.size == 1:
            return value
        holder = [value]
        dist.broadcast_object_list(holder, src=0)
        return holder[0]

    def gather(self, value: object) -> list[object]:
        """Return every rank's picklable value, by rank, on every rank."""
        return collectives.gather(value)

    def gather_data(self, value: object) -> list[object]:
        """Return the value of one rank of each sequence group, on every rank."""
        return self.gather(value)[:: self.sequence_degree]

    def mark(self, doing: str, step: int, clips_of: ClipsOf | None = None, *, limited: bool = True) -> None:
        """Begin a phase of a step, as `Watch.mark` does; nothing for one process."""
        if self.watch is not None:
            self.watch.mark(doing, step, clips_of, limited=limited)

    def take_along(self, code: int, said: str) -> None:
        """End the other ranks, as `Watch.take_along` does; nothing for one process."""
        if self.watch is not None:
            self.watch.take_along(code, said)

    def stay(self) -> None:
        """Let the other ranks end after this one, as `Watch.stay` does; nothing for one process."""
        if self.watch is not None:
            self.watch.stay()

    def meets(self, seconds: float) -> bool:
        """Whether all ranks come here within some time of this one, as `Watch.meets` does; True for one process."""
        return self.watch is None or self.watch.meets(seconds)

    def wait(self) -> None:
        """Wait for all ranks however long one takes, as during a first scan, and handle signals meanwhile."""
        self.meets(math.inf)

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def join(
    *, offload: bool = False, parallel: ParallelConfig | None = None, facts: Callable[[], Facts] = dict
) -> Iterator[World]:
    """Initialize the process group of the ranks that a launcher started, if any, and yield this process's `World`.

    `facts` returns values that must be equal on all ranks; it is not called for one process.

    What the program has set in torch does not matter meanwhile, as `torch_state.own` says.

    Raises:
        UserError: On every rank, if a rank does not arrive, has other facts, or is in a process group already.
    """
    local_rank = launcher.number("LOCAL_RANK")
    local_size = launcher.number("LOCAL_WORLD_SIZE")
    device = machine.default_device(local_rank)
    if device.type == "cuda":
        _require_gpus(max(local_size, local_rank + 1), torch.cuda.device_count())
        torch.cuda.set_device(device)
    with torch_state.own(device), _joined(device, local_size, offload, parallel or ParallelConfig(), facts) as world:
        yield world


@contextmanager
def _joined(
    device: torch.device, local_size: int, offload: bool, limits: ParallelConfig, facts: Callable[[], Facts]
) -> Iterator[World]:
    rank, size = launcher.place()
    if size > 1 and machine.is_apple(device):
        raise UserError(
            "torch has no collectives between processes on Apple's GPU",
            code="ranks-on-apple-gpu",
            field="WORLD_SIZE",
            value=size,
            remedy="train with one process, or set REELWORKS_DEVICE=cpu",
        )
    limits.data_ranks(size)
    if collectives.is_distributed() and (offload or max(size, collectives.world_size()) > 1):
        raise UserError(
            f"there is a process group of {collectives.world_size()} already, and ranks make one with other backends and limits",
            code="process-group-exists",
            field="torch.distributed",
            remedy="call torch.distributed.destroy_process_group() before; ranks find each other by RANK, WORLD_SIZE, MASTER_ADDR "
            "and MASTER_PORT",
        )
    if size == 1 and not offload:
        yield World(0, 1, device)
        return
    # gloo in addition to nccl, which Windows lacks, since checkpoints and objects are exchanged in CPU memory.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"
    if size == 1:
        # torch for Windows has no store in memory.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            alone = dist.FileStore(str(Path(folder, "store")), 1)  # type: ignore[attr-defined]
            dist.init_process_group(backend, store=alone, rank=0, world_size=1)
            with _formed():
                yield World(0, 1, device, offload, local_size)
        return
    if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]:
        raise UserError(
            f"it is above 1, and {', '.join(missing)} is not set, so ranks cannot find each other",
            code="launcher-variable-missing",
            field="WORLD_SIZE",
            value=size,
            remedy="start with `reelworks train --nproc-per-node N`, with torchrun, or as in examples/launch; or unset WORLD_SIZE",
        )
    store = roll_call.hold(rank, size, facts(), limits.join_seconds)
    with Watch(PrefixStore("watch", roll_call.another_connection(store)), rank, size, limits) as watch:
        # Later than the watch, which names the rank that is late.
        timeout = timedelta(seconds=limits.step_seconds + 60)
        dist.init_process_group(
            backend, store=PrefixStore("groups", store), rank=rank, world_size=size, timeout=timeout
        )
        with _formed(), collectives.patience():
            sequences = _sequence_groups(rank, size, limits, timeout)
            yield World(rank, size, device, offload, local_size, watch, sequences)


def _require_gpus(processes: int, gpus: int) -> None:
    """Refuse more processes on a machine than GPUs that each sees, on all of them alike, so that one tells it."""
    if processes > gpus:
        raise UserError(
            f"this machine has more processes than GPUs that each sees, {gpus}",
            code="ranks-without-gpu",
            field="LOCAL_WORLD_SIZE",
            value=processes,
            remedy=f"start at most {gpus} on it, or let each see all GPUs of the machine: for Slurm, write --gpus-per-node={processes} in place of "
            "--gpus-per-task and --gpu-bind, as in examples/launch/slurm.sbatch",
        )


def _sequence_groups(rank: int, size: int, config: ParallelConfig, timeout: timedelta) -> dict[int, SequenceGroup]:
    """Return this rank's group of each degree that a bucket may have. Every rank takes part in the making of all."""
    found = {}
    for degree in config.degrees()[1:]:
        groups = [dist.new_group(range(first, first + degree), timeout=timeout) for first in range(0, size, degree)]
        found[degree] = SequenceGroup(groups[rank // degree], rank % degree, degree)
    return found


@contextmanager
def _formed() -> Iterator[None]:
    """Destroy the default process group on leaving."""
    try:
        yield
    finally:
        dist.destroy_process_group()


def shard(module: nn.Module, units: Sequence[nn.Module], contract: Contract, world: World, layout: Layout) -> None:
    """Wrap a model, equal on all ranks and on `world.home`, and before it its units in FSDP2, in place.

    Does nothing for one process without offloading.
    """
    if not world.shards:
        return
    grid = (layout.replicas, layout.shards)
    mesh = init_device_mesh(world.device.type, grid, mesh_dim_names=("replicate", "shard"))
    # Casting inputs, the default, would round timesteps and sizes to the compute dtype.
    dtypes = {"param_dtype": contract.compute, "reduce_dtype": contract.reduction}
    policy = MixedPrecisionPolicy(**dtypes, cast_forward_inputs=False)
    offload = CPUOffloadPolicy(pin_memory=world.device.type == "cuda") if world.offload else OffloadPolicy()
    # Networks return views of their last layer's output, which is harmless as they are not modified in place.
    warnings.filterwarnings("ignore", message=".*returned a view tensor")
    for unit in (*units, module):
        # Reshard after forward, the root too, because validation swaps weights between two forward passes.
        fully_shard(unit, mesh=mesh, mp_policy=policy, offload_policy=offload, reshard_after_forward=True)


def set_gradient_sync(module: nn.Module, on: bool) -> None:
    """Turn the reduction of gradients over ranks on or off; it is on for a step's last micro-batch only."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(on)


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor, or the tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_parts(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return what `local` does of each; of hundreds of tensors in every step, calls would be a cost."""
    return [tensor.to_local() if type(tensor) is DTensor else tensor for tensor in tensors]
