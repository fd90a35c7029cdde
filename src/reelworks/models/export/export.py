"""Export weights from a checkpoint or a live state to a .safetensors file with the model's own key names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from reelworks.core import digests, storage, toml, version
from reelworks.core.errors import UserError
from reelworks.data.checkpoint import disk_space, load, read_lock, safetensors_header, state_file, tree, verify
from reelworks.data.checkpoint.safetensors_header import TensorRange
from reelworks.data.checkpoint.state_file import StoredState
from reelworks.data.distributed import collectives
from reelworks.models.export import safetensors_file
from reelworks.models.export.config import Dtype, Weights
from reelworks.models.export.lora import LoraFile, lora_base_of

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class ExportFailed(UserError):  # noqa: N818
    """Weights could not be written. Raised equally on all ranks."""


def describe_run(*, run_id: str, recipe: Path, step: int, epoch: int | None) -> dict[str, str]:
    """Return the texts of a file's header that say which run, resolved recipe, step and epoch (from 0) it is from."""
    data = recipe.read_bytes()
    resolved = toml.parse(data.decode())
    model, autoencoder, text = (resolved.get(part, {}) for part in ("model", "autoencoder", "text_encoder"))
    header = {
        "format": "pt",  # common loaders require it
        "reelworks": version.__version__,
        "run_id": run_id,
        "recipe_digest": digests.digest_bytes(data),
        "model": model.get("name"),
        "autoencoder": autoencoder.get("name"),
        "text_encoder": text.get("name"),
        "license": model.get("license"),
        "step": step,
        "epoch": epoch,
    }
    return {key: str(value) for key, value in header.items() if value is not None}


def export_checkpoint(
    path: Path, target: Path, *, weights: Weights, dtype: Dtype, about: Mapping[str, str], lora: LoraFile | None = None
) -> list[Path]:
    """Write a checkpoint's weights, in one process and a few tensors at a time, and return the files written.

    Args:
        path: The checkpoint's folder, which is locked against deletion meanwhile.
        target: The file to write; `safetensors_file.write` cuts large ones into shards.
        weights: "ema" writes the averaged tensors, and the model's own for those that are not averaged.
        dtype: Data type of floating-point tensors; others keep theirs.
        about: Texts for the header (`describe_run`).
        lora: How to write the LoRA of a run that trained one (`lora.lora_file_of`).

    Raises:
        UserError: The checkpoint is damaged or has no average, or a value does not fit the dtype; names the tensor.
        OSError: The storage fails or has too little room, see `raising_export_failed`.
    """
    with read_lock.reading(path), ExitStack() as stack:
        stack.enter_context(verify.bad_told(path))
        verify.verify(path, full=False)  # the tensors are verified while they are read
        state = state_file.read(path)
        stored = stored_weights(path, state, weights)
        entries = _entries(stored, dtype)
        keys = (stored[entry.name].key for entry in entries)
        read = (tensor for key in keys for tensor in load.read_tensors(path, state, {key}).values())
        if lora is not None:
            lora = lora._replace(base=lora_base_of(path))
        return _write(target, entries, read, _header(about, weights, dtype), dtype, lora)


class CheckpointTensor(NamedTuple):
    """A tensor in a checkpoint, and its key there."""

    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]


def stored_weights(path: Path, state: StoredState, weights: Weights) -> dict[str, CheckpointTensor]:
    """Return the model's stored tensors by their names in its state dict."""
    parts: dict[str, dict[str, CheckpointTensor]] = {"model": {}, "ema": {}}
    for part in parts.keys() & state.parts.keys():
        for place, leaf in tree.leaves(state.node(part, 0)):
            if (key := tree.tensor_of(leaf)) is not None:
                parts[part][str(place[-1])] = CheckpointTensor(key, state.tensors[key].dtype, state.tensors[key].shape)
    missing = next((part for part in ("model", weights) if not parts[part]), None)
    if missing:
        raise UserError(
            "the checkpoint has no " + ("averaged weights" if missing == "ema" else "weights"),
            code="checkpoint-part-missing",
            field="checkpoint",
            value=str(path),
            remedy="export the trained weights with --weights" if missing == "ema" else "choose another checkpoint",
        )
    return parts["model"] | parts["ema"] if weights == "ema" else parts["model"]


def export_state_dict(
    state: Mapping[str, Tensor], target: Path, *, weights: Weights, dtype: Dtype, about: Mapping[str, str]
) -> list[Path]:
    """Write unsharded weights that are in memory; arguments as for `export_checkpoint`."""
    entries = _entries(state, dtype)
    tensors = (state[entry.name].cpu() for entry in entries)
    return _write(target, entries, tensors, _header(about, weights, dtype), dtype, None)


def export_tensors(
    tensors: Mapping[str, CheckpointTensor],
    read: Callable[[str], Tensor],
    target: Path,
    *,
    weights: Weights,
    dtype: Dtype,
    about: Mapping[str, str],
    lora: LoraFile | None,
) -> list[Path]:
    """Write weights that `read` returns one at a time by their names; other arguments as for `export_checkpoint`.

    Raises OSError if the storage fails.
    """
    entries = _entries(tensors, dtype)
    values = (read(entry.name) for entry in entries)
    return _write(target, entries, values, _header(about, weights, dtype), dtype, lora)


def require_free_file(target: Path) -> None:
    """Refuse a target of `export_checkpoint` that exists or is not named .safetensors, and create its folder."""
    is_named = target.suffix == ".safetensors"
    if not is_named or target.exists() or target.with_name(target.name + safetensors_file.INDEX_SUFFIX).exists():
        raise UserError(
            "the file exists already" if is_named else "weights are written as .safetensors",
            code="output-file-invalid",
            field="--output",
            value=str(target),
            remedy="remove it, or name another file" if is_named else f"name it {target.stem or 'weights'}.safetensors",
        )
    with raising_export_failed(target, "--output"):
        storage.mkdirs(target.parent)


def export_weights(
    state: Mapping[str, Any],
    target: Path,
    *,
    weights: Weights,
    dtype: Dtype,
    about: Mapping[str, str],
    lora: LoraFile | None = None,
) -> list[Path]:
    """Write the weights of a live state; arguments as for `export_checkpoint`. Collective over the process group.

    The tensors or DTensors in `{"model": ..., "ema": ...}` are gathered one by one. The file's folder must exist.
    """
    model, ema = state["model"], state["ema"] if weights == "ema" else {}
    values = {name: ema.get(name, value) for name, value in model.items() if isinstance(value, Tensor)}
    entries = _entries(values, dtype)
    ordered = (values[entry.name] for entry in entries)
    gathered = (value.full_tensor() if isinstance(value, DTensor) else value for value in ordered)

    def work() -> list[Path]:
        try:
            if collectives.rank():
                return []
            return _write(target, entries, gathered, _header(about, weights, dtype), dtype, lora)
        finally:
            # Even if rank 0 has failed, since the others wait in the same collectives.
            for _ in gathered:
                pass

    with raising_export_failed(target):
        return collectives.on_all(work)[0]


@contextmanager
def raising_export_failed(target: Path, field: str = "exports") -> Iterator[None]:
    """Turn a failure of any rank or of the storage into `ExportFailed`, which names the key or option that asks for the target."""
    try:
        yield
    except (collectives.RanksFailed, OSError) as error:
        errnos = {error.errno} if isinstance(error, OSError) else error.errnos
        raise ExportFailed(
            f"no weights were written ({error})",
            code="export-failed",
            field=field,
            value=str(target),
            remedy="free disk space" if errnos & disk_space.FULL else "fix the cause named above",
        ) from error


def _write(
    target: Path,
    entries: Sequence[TensorRange],
    tensors: Iterable[Tensor],
    header: dict[str, str],
    dtype: Dtype,
    lora: LoraFile | None,
) -> list[Path]:
    if lora is None:
        return safetensors_file.write(target, entries, _cast(entries, tensors), header)
    state = {entry.name: tensor for entry, tensor in zip(entries, tensors, strict=True)}
    written = []
    for expert, path in zip(lora.experts or ("",), lora.files(target), strict=True):
        prefix = f"{expert}." if expert else ""
        own = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
        # Tensor names are the same in both files, since the user tells a loader which expert a file is for.
        file = lora.content(own)
        entries = _entries(file.tensors, dtype)
        values = (file.tensors[entry.name] for entry in entries)
        written += safetensors_file.write(path, entries, _cast(entries, values), header | file.header)
    return written


def _header(about: Mapping[str, str], weights: Weights, dtype: Dtype) -> dict[str, str]:
    return {**about, "weights": weights, "dtype": dtype}


def _entries(tensors: Mapping[str, Tensor | CheckpointTensor], dtype: Dtype) -> list[TensorRange]:
    """Return the tensors in the order of the file, floating-point ones with `dtype`; a LoRA's alphas keep theirs."""
    entries = []
    for name, tensor in tensors.items():
        written = DTYPES[dtype] if tensor.dtype.is_floating_point and not name.endswith(".alpha") else tensor.dtype
        entries.append(TensorRange(name, written, tuple(tensor.shape)))
    return safetensors_header.ordered(entries)


def _cast(entries: Sequence[TensorRange], tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    for entry, tensor in zip(entries, tensors, strict=True):
        yield cast(entry.name, tensor, entry.dtype)


def cast(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor in another dtype; refuses values that it cannot hold, and names the tensor."""
    value = tensor.to(dtype)
    if value.is_floating_point() and bool((value.isinf() & ~tensor.isinf()).any()):
        raise UserError(
            f"{name} has values up to {float(tensor.abs().max()):.3g}, too large for this dtype",
            code="dtype-too-narrow",
            field="dtype",
            value=str(dtype).removeprefix("torch."),
            remedy="take bfloat16 or float32",
        )
    return value
