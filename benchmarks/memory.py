"""Memory of whole trainings beside what is estimated, on a CPU with real tensors: `python -m benchmarks.memory --save`.

Each row trains a small network with the trainer, from its start to the last step, and counts the bytes of all live tensors
with a dispatch mode of its own, which knows nothing of the estimate. `error` is the estimate over the peak that was counted.
On a CPU torch computes an RMS norm with trained weights in many operations, which keep more than the one kernel of a GPU
does. So these norms are computed here in one piece that keeps what torch's own derivative of that kernel asks for.

`held` is what torch's allocator for CUDA would have reserved for the same passes, over the tensors' peak, by a model of it:
the shares in `training.memory.memory` come from there.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from caching_allocator import CachingAllocator
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from benchmarks._results import keep
from reelworks import testing
from reelworks.models import registry
from reelworks.models.api import Denoiser, DenoiserInputs
from reelworks.training.assembly import build
from reelworks.training.loop import trainer
from reelworks.training.loop.request import TrainRequest
from reelworks.training.memory import dry_run, estimate, memory, meter
from reelworks.training.recipe import dataset, recipe_file

RESULTS = Path(__file__).parent / "results" / "memory.json"
_TORCHS_RMS_NORM = functional.rms_norm
_MODEL = "wan-tiny"
_SIZES = {"num_attention_heads": 4, "attention_head_dim": 64, "ffn_dim": 1024, "num_layers": 5}
_BASES = ("full", "bfloat16", "int8", "float8", "nf4", "gguf")
_RECOMPUTED = (False, "selective", True)
_MORE: dict[str, dict[str, Any]] = {
    "micro-batches": {"train": {"max_steps": 2, "gradient_accumulation_steps": 2}},
    "compiled": {"train": {"max_steps": 2, "compile": True, "compile_backend": "aot_eager"}},
    "validation and previews": {
        "validation": {"split": 0.2, "every_steps": 1},
        "samples": {"prompts": ["a kite"], "num_inference_steps": 2},
    },
    "average on the CPU": {"train": {"max_steps": 2, "ema_device": "cpu"}},
}


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the bytes of live tensors that operations made while this was entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, list | tuple) else (result,):
            if isinstance(tensor, Tensor) and tensor.device.type == "cpu":
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: Any) -> None:
        if storage not in self._known:
            self._known.add(storage)
            size = storage.nbytes()
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.now -= size


class _RmsNorm(torch.autograd.Function):
    """An RMS norm that keeps its input, its weight and a factor for each row, and whose workings nobody counts."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, eps: float) -> Tensor:
        with _disable_current_modes():
            factor = (input.square().mean(-1, keepdim=True) + eps).rsqrt()
            scaled = input * factor * weight
        ctx.save_for_backward(input, weight, factor.clone())
        return scaled.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        input, weight, factor = ctx.saved_tensors
        with _disable_current_modes():
            normed, scaled = input * factor, grads[0] * weight
            to_input = factor * (scaled - normed * (scaled * normed).mean(-1, keepdim=True))
            to_weight = (grads[0] * normed).flatten(0, -2).sum(0)
        return to_input.clone(), to_weight.clone(), None


def _rms_norm(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Norm the last axis as a GPU does, where autocast widens the input of norms."""
    if weight is None or not weight.requires_grad:
        return _TORCHS_RMS_NORM(input, normalized_shape, weight, eps)
    narrow = torch.is_autocast_enabled("cpu") and input.dtype == torch.bfloat16
    wide = input.float() if narrow else input
    return _RmsNorm.apply(wide, weight, eps or torch.finfo(wide.dtype).eps)  # type: ignore[no-untyped-call]


def recipe_in(folder: Path, base: str, recomputed: Any, **changes: Any) -> dict[str, Any]:
    """Return the recipe of a row."""
    recipe: dict[str, Any] = {
        "version": 1,
        "output": str(folder / "run"),
        "dataset": [{"path": str(testing.sample_folder()), "repeats": 8}],
        "bucket": [{"resolution": "96px", "num_frames": 5, "batch_size": 2}],
        "buckets": {"upscale": True, "max_crop": 0.9, "aspect_ratios": ["16:9"]},
        "data": {"num_workers": 0, "clip_start": "start"},
        "model": {"name": _MODEL, "gradient_checkpointing": recomputed},
        "autoencoder": {"stride": 4},
        "text_encoder": {"dim": 32, "max_length": 12},
        "encode": {"store": True},
        "validation": {"split": 0.0},
        "train": {"max_steps": 2},
        "checkpoints": {"every_steps": 1000},
    }
    if base != "full":
        recipe["lora"] = {"rank": 16, "base": base}
    if base == "gguf":
        recipe["model"]["weights"] = str(gguf_file(recipe, folder))
    return recipe | changes


def gguf_file(values: dict[str, Any], folder: Path) -> Path:
    """Write the network's weights with its layers in Q8_0."""
    import gguf

    plain = recipe_file.parse({key: value for key, value in values.items() if key != "lora"})
    path, kind = folder / "base.gguf", gguf.GGMLQuantizationType.Q8_0
    writer = gguf.GGUFWriter(path, "wan")
    for name, value in build.denoiser(plain, torch.device("cpu")).module.state_dict().items():
        if value.ndim == 2 and value.shape[0] > 1 and value.shape[1] % 32 == 0:
            writer.add_tensor(name, gguf.quantize(value.numpy(), kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def row(base: str, recomputed: Any, name: str = "") -> dict[str, Any]:
    """Train, and compare."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = recipe_file.parse(recipe_in(Path(folder), base, recomputed, **_MORE.get(name, {})))
        loaded, table = dataset.bucket_table(recipe)
        found = estimate.estimate(loaded, table).memory
        said = found.total - found.reserve + (found.host if name == "average on the CPU" else 0)
        gc.collect()
        with patch.object(functional, "rms_norm", _rms_norm), Live() as live:
            trainer.run(recipe, TrainRequest())
        made, bucket = estimate.network(loaded), memory.largest_of_entries(table)[0]
        inputs = dry_run.blank(
            build.lazy_encoder(loaded, torch.device("meta")), bucket, bucket.batch_size, torch.device("meta")
        )
        return {
            "base": base,
            "recomputed": {False: "none", True: "full"}.get(recomputed, recomputed),
            "with": name,
            "counted_mb": round(live.peak / 1e6, 3),
            "estimated_mb": round(said / 1e6, 3),
            "error": round(said / live.peak - 1, 4),
            "activations_mb": round(found.activations / 1e6, 3),
            "held": round(held(made, inputs), 3),
        }


def held(denoiser: Denoiser, inputs: DenoiserInputs, passes: int = 3) -> float:
    """Return what the allocator would have reserved over the tensors' peak, after some passes."""
    allocator, follow = CachingAllocator(), meter.Meter.follow

    def simulated(counted: meter.Meter, tensor: Tensor) -> None:
        storage: Any = tensor.untyped_storage()
        is_new = storage not in counted._known
        follow(counted, tensor)
        if is_new and storage.nbytes():
            weakref.finalize(storage, allocator.free, allocator.allocate(storage.nbytes()))

    with patch.object(meter.Meter, "follow", simulated):
        for _ in range(passes):
            meter.measure(denoiser, inputs)
    return allocator.most_reserved / allocator.most_allocated


@contextmanager
def small_network() -> Iterator[None]:
    """Let the preset have the sizes of the rows while open."""
    preset = registry.PRESETS[_MODEL]
    registry.PRESETS[_MODEL] = replace(preset, config=preset.config.model_copy(update=_SIZES))
    try:
        yield
    finally:
        registry.PRESETS[_MODEL] = preset


def rows() -> Iterator[dict[str, Any]]:
    """Yield all rows."""
    with small_network():
        for base in _BASES:
            for recomputed in _RECOMPUTED:
                yield row(base, recomputed)
        for name in _MORE:
            for base in ("full", "int8"):
                yield row(base, True, name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    asked = parser.parse_args()
    made = []
    for each in rows():
        made.append(each)
        print(json.dumps(each), flush=True)
    if asked.save:
        keep(RESULTS, {"rows": made})


if __name__ == "__main__":
    main()
