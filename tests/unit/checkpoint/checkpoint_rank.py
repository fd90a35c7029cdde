"""Two processes load a checkpoint of one process, fail to save together, then save: `checkpoint_rank.py FOLDER`."""

import errno
import os
import sys
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from reelworks.core import storage
from reelworks.core.errors import UserError
from reelworks.data.checkpoint import save, shards
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.load import load
from reelworks.models.export import export


def build() -> nn.Module:
    """A model whose first dimensions (5 and 3) do not divide by two ranks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
        "replicated": torch.arange(7),
    }


def fail_together(store: CheckpointFolder, state: dict[str, Any], rank: int, folder: Path) -> None:
    """Rank 1's disk is full after the shards are written: both ranks must say the same."""

    def full(call: str, path: Path) -> None:
        if call == "fsync" and rank == 1:
            raise OSError(errno.ENOSPC, "No space left on device")

    try:
        with storage.guarded(full):
            save.save(store, 20, state)
    except save.DiskFull as error:
        (folder / f"error{rank}.txt").write_text(str(error), encoding="utf-8")


def export_together(model: nn.Module, rank: int, folder: Path) -> None:
    """Rank 0's disk is full: both ranks must say so, and neither wait for the other; then it has room."""

    def full(call: str, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    weights = get_model_state_dict(model)
    state = {"model": weights, "ema": {name: 2 * value for name, value in weights.items()}}
    target = folder / "exported.safetensors"
    given: dict[str, Any] = {"weights": "ema", "dtype": "float32", "about": {"rank": str(rank)}}
    try:
        with storage.guarded(full) if rank == 0 else nullcontext():
            export.export_weights(state, target, **given)
    except export.ExportFailed as error:
        (folder / f"unexported{rank}.txt").write_text(str(error), encoding="utf-8")
    export.export_weights(state, target, **given)


def main(rank: int, folder: Path) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2, timeout=timedelta(seconds=300)
    )
    model = build()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    state, store = state_of(model, optimizer), CheckpointFolder(folder / "checkpoints")
    load(store.path(10), state)
    try:
        load(store.path(10), {"model": {"other": torch.zeros(2)}}, fixed=True)
    except UserError as error:
        (folder / f"refused{rank}.txt").write_text(error.problem, encoding="utf-8")

    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = state_of(model, optimizer)
    fail_together(store, state, rank, folder)
    left = sorted(path.name for path in store.root.iterdir())
    (folder / f"left{rank}.txt").write_text(" ".join(left), encoding="utf-8")
    saved = save.save(store, 20, state, extra={"cursor.json": b"{}"})
    (folder / f"saved{rank}.txt").write_text(f"{saved.info.manifest.save_id} {saved.fresh}", encoding="utf-8")
    (folder / f"bytes{rank}.txt").write_text(str(shards.num_bytes(shards.tensors_in(state))), encoding="utf-8")
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    export_together(model, rank, folder)
    if rank == 0:
        torch.save(full, folder / "expected.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    # One import for both ranks: it takes most of the time. Nothing runs in threads before the fork.
    torch.optim.AdamW(build().parameters())
    child = os.fork()
    try:
        main(int(child == 0), Path(sys.argv[1]))
    finally:
        if child:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    # Threads of gloo may outlive their group, and abort a process whose interpreter is taken down under them.
    os._exit(status if child else 0)
