"""Small states, and checkpoints made of them."""

from pathlib import Path
from typing import Any

import torch

from reelworks.core import digests
from reelworks.data.checkpoint import manifest, names
from reelworks.data.checkpoint import save as commit
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.manifest import FileEntry, Manifest

EXTRA = {"cursor.json": b'{"plan_step": 7}', "excluded.npy": b"\x01\x02\x03"}


def state(seed: int) -> dict[str, Any]:
    """What a trainer saves: weights of several dtypes, optimizer state with scalars and lists."""
    g = torch.Generator().manual_seed(seed)
    return {
        "model": {"a.weight": torch.randn(5, 3, generator=g), "a.bias": torch.randn(5, generator=g).bfloat16()},
        "optimizer": {
            "state": {"a.weight": {"step": torch.tensor(float(seed)), "exp_avg": torch.randn(5, 3, generator=g)}},
            "param_groups": [{"params": ["a.weight", "a.bias"], "lr": 1e-4 * seed, "amsgrad": False}],
        },
        "num_clips": seed * 1000,
    }


def assert_equal(a: Any, b: Any) -> None:
    """Bit-equal, dtypes included."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_equal(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal(x, y)
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    else:
        assert a == b


def save(store: CheckpointFolder, step: int, **kwargs: Any) -> commit.Saved:
    return commit.save(store, step, state(step), extra=EXTRA, run_id="run", **kwargs)


def write_plain(
    store: CheckpointFolder, step: int, metrics: dict[str, float] | None = None, save_id: str = "0"
) -> Path:
    """Make a checkpoint that is valid to everything without torch: files and a true manifest."""
    folder = store.root / names.of_step(step)
    (folder / "tensors").mkdir(parents=True)
    entries = []
    for path, data in (("tensors/rank-00000.safetensors", bytes(range(200))), ("cursor.json", b"{}")):
        (folder / path).write_bytes(data)
        entries.append(FileEntry(path=path, size=len(data), digest=digests.of_bytes(data)))
    manifest.write(
        folder,
        Manifest(
            format=2,
            step=step,
            save_id=save_id,
            created=1.0,
            world_size=1,
            run_id="run",
            cursor_digest=None,
            files=tuple(entries),
            total_bytes=sum(entry.size for entry in entries),
            metrics=manifest.plain_metrics(metrics or {}),
            versions={},
        ),
    )
    return folder


class Killed(BaseException):
    """The process is gone: nothing that handles errors may help."""
