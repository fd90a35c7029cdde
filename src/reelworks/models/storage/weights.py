"""Locate weights by path or hub id, read them without running code, and load them into networks."""

from __future__ import annotations

import json
import pickle
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from reelworks.core import units, user_files
from reelworks.core.errors import UserError, first_few
from reelworks.models import hub
from reelworks.models.storage import gguf_files, scaled_weights, stored_weights

_T = TypeVar("_T")

_WEIGHT_FILES = ["*.safetensors", "*.json", "*.bin", "*.pt"]
# Names that diffusers and transformers give to weights without a variant, such as fp16 or non_ema.
_OWN_NAMES = ("diffusion_pytorch_model", "model", "pytorch_model")
# Copies of the weights that repositories have beside them: variants, and those of other libraries.
_COPIES = ["*.fp16*", "*.bf16*", "*.non_ema*", "*.onnx*", "*openvino*", "*.msgpack", "*.h5"]
_SHOWN = 3  # names that an error lists
_MOST_HEADER = 100_000_000  # bytes of the header of a .safetensors file, as the library itself has it
# Prefixes of all names in files of programs that wrap a network.
WRAPPERS = ("module.", "model.diffusion_model.", "diffusion_model.", "transformer.", "unet.", "model.")
_POINTER = b"version https://git-lfs"  # begins the placeholder of a large file that git did not fetch


def read(
    source: str,
    field: str = "model.weights",
    part: str | None = None,
    file: str | None = None,
    *,
    keep_codes: bool = False,
) -> dict[str, Tensor]:
    """Read all tensors of a folder, file or hub id on the CPU; files are memory-mapped, so only used values are read.

    Errors name `field`, the recipe key of the source. `part` is the folder of the weights if the source is a pipeline,
    and `file` their file if the source is a folder or repository that has it beside those of other models. The weights
    of GGUF files become float32; if `keep_codes`, they are on `meta`, see `stored_weights`.
    """
    state: dict[str, Tensor] = {}
    with telling(field, source):
        found = None if file is None else _locate(source, [file]) / file
        for path in [found] if found is not None and found.is_file() else files_of(source, field, part):
            state.update(_read_file(path))
    return state if keep_codes else stored_weights.values(state)


def files_of(source: str, field: str, part: str | None = None) -> list[Path]:
    """Return the files of weights in a folder, file or hub id, those that `read` reads."""
    with telling(field, source):
        place = _fetch(source, _WEIGHT_FILES if part is None else [f"{part}/*"], part or ".")
        if part is not None and place.is_dir():
            place = _part(source, place, part)
        return _files(place)


@contextmanager
def telling(field: str, source: str, *, anew: bool = True) -> Iterator[None]:
    """Let errors in the block name a field, with the source as its value; those that name one, too, if `anew`."""
    try:
        yield
    except UserError as error:
        if anew or error.field is None:
            error.reword(field=field, value=source)
        raise


def require_there(source: str, field: str) -> Path:
    """Return the local path of a source, whose configs are downloaded if it is a hub id.

    It refuses a source that is neither local nor on the hub; libraries would retry for a minute or two.
    """
    with telling(field, source):
        return _locate(source, ["*.json"])


def require_file(source: str, field: str) -> Path:
    """Return the local path of one `.safetensors` file, which is downloaded if it is on the hub.

    On the hub it is `owner/name/file`, or `owner/name` if the repository has one such file; `@revision` follows the name.
    """
    with telling(field, source):
        if (of_hub := hub.file_in(source)) is not None:
            path = hub.download(of_hub[0], [of_hub[1]]) / of_hub[1]
            if path.is_file():
                return path
        (only, *_) = _files(_locate(source, _WEIGHT_FILES))
        return only


def config(source: str, field: str, part: str) -> dict[str, Any] | None:
    """Return the diffusers config of weights: from the part's folder, the folder itself, or that of the file.

    It is None if there is none of a diffusers class.
    """
    place = require_there(source, field)
    for folder in (place / part, place) if place.is_dir() else (place.parent,):
        with suppress(OSError, ValueError):
            entries = user_files.read_json(folder / "config.json")
            if isinstance(entries, dict) and "_class_name" in entries:
                return entries
    return None


def shapes(source: str, field: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of one `.safetensors` file, of which only the header is read."""
    path = Path(source).expanduser()
    with telling(field, source), opened(path) as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open one `.safetensors` file, which is memory-mapped until the block ends; refuses one that is damaged."""
    with _reading(path) as begins:
        if hub.is_file_of(path, hub.PICKLED):
            raise _unreadable(path, "it is a pickle, which may hold code, and only .safetensors files are read here")
        if begins.startswith(b"GGUF"):
            raise _unreadable(path, "it is a GGUF file, and only .safetensors files are read here")
        _require_whole(path)
        opening = safe_open(path, framework="pt")
    with opening as mapped:
        yield mapped


@contextmanager
def _reading(path: Path) -> Iterator[bytes]:
    """Give the first bytes of a file; what is raised in the block tells that it cannot be read."""
    try:
        with user_files.opened(path) as file:
            begins = file.read(len(_POINTER))
        if begins == _POINTER:
            raise _unreadable(path, "it is a Git LFS pointer; `git lfs pull` fetches the file")
        yield begins
    except UserError:
        raise
    except pickle.UnpicklingError as error:  # whose text suggests to run the code in the file
        raise _unreadable(path, "it is not a file of tensors, or holds other objects too") from error
    except Exception as error:  # damaged files raise errors of any kind
        raise _unreadable(path, str(error).partition("\n")[0] or type(error).__name__) from error


def by_bare_name(tensors: Mapping[str, _T]) -> dict[str, _T]:
    """Return tensors, or what is known of them, by their names without the prefixes of wrappers; refuses two of one name."""
    return renamed(tensors, lambda name: reduce(str.removeprefix, WRAPPERS, name))


def renamed(tensors: Mapping[str, _T], rename: Callable[[str], str]) -> dict[str, _T]:
    """Return tensors, or what is known of them, by other names; refuses two that get one name."""
    names: dict[str, list[str]] = defaultdict(list)
    for name in tensors:
        names[rename(name)].append(name)
    if several := [name for alike in names.values() if len(alike) > 1 for name in alike]:
        raise UserError(
            f"it has several tensors for one of the network, in other spellings: {first_few(several)}",
            code="weights-unreadable",
            remedy="keep one of each",
        )
    return {new: tensors[name] for new, (name,) in names.items()}


def _locate(source: str, patterns: list[str], without: list[str] | None = None) -> Path:
    path = Path(source).expanduser()
    if path.exists():
        return path
    if hub.is_id(source) and not hub.is_file_of(path):
        return hub.download(source, patterns, without)
    raise UserError(
        "no such file or folder, and not a hub id (owner/name or owner/name@revision)",
        code="weights-not-found",
        remedy="check the path",
    )


def _fetch(source: str, patterns: list[str], folder: str = ".", without: Sequence[str] = ()) -> Path:
    """Return the local place of a source; of a repository, copies of weights are fetched where there is nothing else."""
    place = _locate(source, patterns, [*without, *_COPIES])
    if not place.is_file() and not any(map(hub.is_file_of, place.glob(f"{folder}/*"))):
        place = _locate(source, patterns, [*without])
    return place


def _part(source: str, place: Path, part: str) -> Path:
    """Return the folder of a part in a pipeline, or `place` itself if it is no pipeline."""
    if (place / part).is_dir():
        return place / part
    if (place / "model_index.json").is_file():
        raise UserError(
            f"this pipeline has no folder {part}",
            code="weights-part-missing",
            remedy="set it to a folder or hub id that has it, or to a file",
        )
    return place if Path(source).expanduser().exists() else _fetch(source, _WEIGHT_FILES, without=["*/*"])


def _files(path: Path) -> list[Path]:
    """Return the files to read: the shards of an index, the file without a variant, or the only file."""
    if not path.is_dir():
        return [path]

    def found(*endings: str) -> list[Path]:
        return sorted(file for file in path.glob("[!.]*") if hub.is_file_of(file.name, endings))

    def own(ending: str) -> list[Path]:
        return [file for name in _OWN_NAMES if (file := path / f"{name}{ending}").is_file()][:1]

    indexes = own(".safetensors.index.json") or found(".index.json")
    candidates = (
        (indexes if len(indexes) == 1 else [])
        or own(".safetensors")
        or found(*hub.SAFETENSORS)
        or own(".bin")
        or found(hub.GGUF, *hub.PICKLED[:-1])
        or found(*hub.PICKLED)  # checkpoints of trainings, too, are called .ckpt
    )
    if len(candidates) != 1:
        names = ", ".join(p.name for p in candidates[:_SHOWN]) or "none"
        raise UserError(
            f"a folder must hold one file of weights or an index; this one holds: {names}",
            code="weights-folder-ambiguous",
            remedy="set it to the path of one file",
        )
    return _shards(candidates[0]) if candidates[0].suffix == ".json" else candidates


def _shards(index: Path) -> list[Path]:
    try:
        weight_map: dict[str, str] = user_files.read_json(index)["weight_map"]
        # Beside the index, wherever it leads: it may come from anybody.
        shards = sorted({index.with_name(Path(name).name) for name in weight_map.values()})
        missing = [shard.name for shard in shards if not shard.is_file()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(index, "it is not an index of weights") from error
    if missing:
        raise UserError(
            f"{len(missing)} of the {len(shards)} files of {index.name} {units.verb(len(missing), 'are')} missing: {first_few(missing)}",
            code="weights-shards-missing",
            remedy="download them too",
        )
    names = Counter(name for path in shards for name in _names(path))
    lies = [name for name, count in names.items() if count > 1] or [*(weight_map.keys() - names.keys())]
    if lies:
        raise _unreadable(index, f"its files hold none or several of some of its tensors: {first_few(lies)}")
    return shards


def _names(path: Path) -> Iterable[str]:
    """Return the names of the tensors of a file, of whose values as few are read as its format allows."""
    return shapes(str(path), path.name) if hub.is_file_of(path, hub.SAFETENSORS) else _read_file(path)


def _read_file(path: Path) -> dict[str, Tensor]:
    with _reading(path) as begins:
        if begins.startswith(b"GGUF"):
            return gguf_files.read(path)
        # The header of a .safetensors file begins with a brace.
        if hub.is_file_of(path, hub.PICKLED) and begins[8:9] != b"{":
            state = _unpickle(path, mapped=begins.startswith(b"PK"))
        else:
            description = _require_whole(path)
            state = scaled_weights.marked(load_file(path), description)
    if not isinstance(state, dict) or not all(isinstance(key, str) and _is_plain(state[key]) for key in state):
        raise _unreadable(path, "it is not a flat table of tensors")
    if not state:
        raise _unreadable(path, "it holds no tensors")
    return state


def _is_plain(value: object) -> bool:
    """Whether a value is a tensor of numbers in memory, and not a sparse, nested or empty one, which pickles may hold."""
    return isinstance(value, Tensor) and value.layout == torch.strided and not (value.is_meta or value.is_nested)


def _unpickle(path: Path, mapped: bool) -> Any:
    """Read tensors only, since a pickle can run code; the zip files of current torch can be memory-mapped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    nested = isinstance(state, dict) and isinstance(state.get("state_dict"), dict)
    return state["state_dict"] if nested else state


def _require_whole(path: Path) -> dict[str, str]:
    """Refuse a truncated .safetensors file, such as a broken download; returns what it says of itself."""
    size = path.stat().st_size
    with user_files.opened(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(size - 8, _MOST_HEADER):
            raise _unreadable(path, "it has no header of a .safetensors file, or is truncated within it")
        tensors = json.loads(file.read(length))
    description: dict[str, str] = tensors.pop("__metadata__", {})
    expected = 8 + length + max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
    if size < expected:
        raise _unreadable(path, f"it is truncated: {size:,} of {expected:,} bytes")
    return description


def _unreadable(path: Path, why: str) -> UserError:
    return UserError(
        f"{path.name} cannot be read: {why}",
        code="weights-unreadable",
        remedy="download or export it again, as .safetensors or a plain state dict",
    )


Shapes = Mapping[str, tuple[int, ...]]  # of tensors by name


class ShapeMismatch(UserError):  # noqa: N818
    """Weights of these `shapes` do not fit their network; `identify.explain` adds which model they are of."""

    def __init__(self, own: Shapes, loaded: Shapes, field: str, source: str) -> None:
        self.shapes = loaded
        super().__init__(
            f"these weights do not fit the model: {_differences(own, loaded)}",
            code="weights-do-not-fit",
            field=field,
            value=source,
            remedy="choose the model, autoencoder and text encoder that the weights were trained with",
        )


def shapes_of(state: Mapping[str, Tensor]) -> Shapes:
    """Return the shapes of tensors by name."""
    return {name: tuple(value.shape) for name, value in state.items()}


def require_fit(own: Shapes, loaded: Shapes, source: str, field: str) -> None:
    """Raise `ShapeMismatch` for weights whose names or shapes differ from those of a network."""
    if own != loaded:
        raise ShapeMismatch(own, loaded, field, source)


def load_into(module: nn.Module, state: Mapping[str, Tensor], source: str, field: str = "model.weights") -> None:
    """Load a state dict into a module with the same keys and shapes, in the dtypes of the module.

    If parameters are on `meta`, the state's tensors replace them, with their own dtypes and devices.

    Raises:
        ShapeMismatch: If keys or shapes differ; nothing is loaded then.
        UserError: If the state has whole numbers where the module has others, or some that are not finite.
    """
    own = module.state_dict()
    require_fit(shapes_of(own), shapes_of(state), source, field)
    codes = [key for key, value in state.items() if own[key].is_floating_point() and not value.is_floating_point()]
    if codes:
        with telling(field, source):
            raise stored_weights.unsupported(f"{codes[0]} has {state[codes[0]].dtype}")
    with telling(field, source):
        stored_weights.require_finite(state)
    if any(parameter.is_meta for parameter in module.parameters()):
        module.load_state_dict(state, strict=True, assign=True)
    else:
        module.load_state_dict({key: value.to(own[key].dtype) for key, value in state.items()}, strict=True)


def _differences(own: Shapes, loaded: Shapes) -> str:
    kinds = {
        "missing": [key for key in own if key not in loaded],
        "unexpected": [key for key in loaded if key not in own],
        "of another shape": [
            f"{key} {list(loaded[key])} instead of {list(shape)}"
            for key, shape in own.items()
            if loaded.get(key, shape) != shape
        ],
    }
    differing = {kind: names for kind, names in kinds.items() if names}
    counts = ", ".join(f"{len(names):,} {kind}" for kind, names in differing.items())
    lines = "".join(f"\n    {kind}: {first_few(names)}" for kind, names in differing.items())
    return f"{counts} of {len(own):,} tensors{lines}"
