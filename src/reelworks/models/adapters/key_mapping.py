"""Map the tensors of an adapter's file to layers of the network, or to rows of layers."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from reelworks.core import user_files
from reelworks.core.errors import UserError, first_few
from reelworks.models.adapters import other_tensors, release_layers, text_encoders
from reelworks.models.adapters.adapter_types.adapter_type import AdapterType
from reelworks.models.adapters.adapter_types.registry import TYPES
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.adapters.conventions import CONVENTIONS
from reelworks.models.adapters.release_layers import Layers, homes
from reelworks.models.family import FamilyConfig
from reelworks.models.storage.tensor_files import TensorFacts

METADATA = "lora_adapter_metadata"  # header key of diffusers' settings
_LARGEST = 1e8  # above all that training gives; products of four such numbers are within float32


def split_name(key: str, kind: AdapterType | None = None) -> tuple[str, str] | None:
    """Return the layer (as spelt in the file) and the kind of a tensor from its name in a file of an adapter type.

    Without a type it may be of any; None is returned if it is of none.
    """
    found = split_ending(key, kind)
    return None if found is None else (layer_of(found[0]), found[1])


def split_ending(key: str, kind: AdapterType | None = None) -> tuple[str, str] | None:
    """Return the same, but the layer with the prefix of its convention."""
    endings = {ending: name for each in ([kind] if kind else TYPES.values()) for ending, name in each.endings().items()}
    ending = next((ending for ending in endings if key.endswith(f".{ending}")), None)
    return None if ending is None else (key.removesuffix(f".{ending}"), endings[ending])


def type_of(kinds: Collection[str]) -> AdapterType | None:
    """Return the type that the kinds of a layer's tensors make a whole update of; None if they do not."""
    own = {*kinds} - {"alpha"}
    types = (kind for kind in TYPES.values() if own <= {*kind.endings().values()} and kind.is_whole(own))
    return next(types, None)


def is_part(kinds: Collection[str]) -> bool:
    """Whether the kinds of a layer's tensors are a part of an update, which is more than an alpha or magnitudes alone."""
    own = {*kinds} - {"alpha"}
    is_of_a_type = any(own <= {*kind.endings().values()} for kind in TYPES.values())
    return bool(own - {"magnitude_vector"}) and is_of_a_type and type_of(own) is None


def without_others(tensors: Mapping[str, Tensor], *, with_texts: bool = False) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors of a file that may be updates of a network's layers, and the names of the others.

    Those of text encoders are others, unless they are asked for. Those of a layer's update stay together, also if they are
    none that is read here.

    Raises:
        UserError: An update is damaged, only a part of one, or one of two of a layer.
    """
    found = {key: target for key in tensors if (target := split_ending(key)) is not None}
    layers: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for key, (stem, name) in found.items():
        if tensors[key] is not layers[stem].setdefault(name, tensors[key]):
            raise damaged(f"it has two tensors of one kind for a layer, such as {key}")
    whole = {stem: kind for stem, kinds in layers.items() if (kind := type_of(kinds)) is not None}
    if any(release_layers.is_by_columns(key, tensors[key].shape) for key, (stem, _) in found.items() if stem in whole):
        raise release_layers.refusal_of_columns()
    for stem, kind in whole.items():
        require_update(stem, kind, {name: value for name, value in layers[stem].items() if name != "alpha"})
    require_numbers({key: tensors[key] for key, (stem, name) in found.items() if stem in whole and name != "alpha"})
    require_once(whole)

    def is_other(key: str) -> bool:
        if key not in found:
            return other_tensors.layer_of(key, layers) is None
        stem = found[key][0]
        if text_encoders.part_of(stem) is not None and not with_texts:
            return True
        if is_part(layers[stem]):
            raise damaged(f"of the update of {stem} it has {', '.join(layers[stem])} alone, which is only a part")
        return layers[stem].keys() == {"alpha"}

    own = {key: value for key, value in tensors.items() if not is_other(key)}
    return own, [key for key in tensors if key not in own]


def require_update(stem: str, kind: AdapterType, stored: Mapping[str, Tensor | TensorFacts]) -> dict[str, Tensor]:
    """Return the tensors of a stored update, but its alpha, on `meta` with two axes each; refuses those of a damaged one."""
    shapes = {name: tuple(tensor.shape) for name, tensor in stored.items()}
    try:
        with torch.device("meta"):
            flat = kind.flat({name: torch.empty(shape) for name, shape in shapes.items()})
            with suppress(UserError):  # of a type whose update depends on the base
                kind.shape(flat)
        if any(tensor.ndim != 2 for name, tensor in flat.items() if name != "magnitude_vector"):
            raise ValueError("not two axes")  # some products of vectors are matrices
    except (RuntimeError, ValueError, IndexError) as error:
        raise damaged(f"the shapes of {stem} do not belong together: {shapes}") from error
    if not all(math.prod(shape) for shape in shapes.values()):
        raise damaged(f"{stem} has an update of rank 0")
    if any(tensor.dtype is not None and not tensor.dtype.is_floating_point for tensor in stored.values()):
        problem = f"{stem} is stored in whole numbers, which are no update without their scales"
        raise UserError(problem, code="lora-unreadable", remedy="name the file in bfloat16, float16 or float32")
    return flat


def require_numbers(tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors with numbers that no training gives."""
    for name, value in tensors.items():
        if value.numel() and not float(value.float().abs().max()) <= _LARGEST:
            raise damaged(f"{name} holds infinities, NaN or numbers above {_LARGEST:g}")


def require_once(stems: Iterable[str]) -> None:
    """Refuse several updates of a layer, whose names are those of several conventions."""
    if twice := [layer for layer, count in Counter(map(folded, stems)).items() if count > 1]:
        raise damaged(f"it has several updates of one layer, under other names: {first_few(twice)}")


def folded(stem: str) -> str:
    """Return the layer that the names of tensors begin with, as all conventions spell it that have the same layers."""
    return text_encoders.folded(stem) or layer_of(stem).replace(".", "_")


def damaged(problem: str) -> UserError:
    """Return the error for a file that is damaged."""
    return UserError(problem, code="lora-unreadable", remedy="download or export it again")


def layer_of(stem: str) -> str:
    """Return the layer that the names of tensors begin with, without the prefix of its convention."""
    prefixes = (prefix for convention in CONVENTIONS.values() for prefix in convention.prefixes)
    return next((stem.removeprefix(p) for p in prefixes if stem.startswith(p)), stem)


def place_tensors(
    tensors: Mapping[str, Tensor],
    layers: Iterable[str],
    config: LoraConfig,
    family: FamilyConfig | None,
    metadata: Mapping[str, str],
) -> tuple[Layers, list[str]]:
    """Return the tensors of a file by layer of the network that has an adapter, and the names that belong to none."""
    kind, targets = TYPES[config.type], homes(layers, family)
    stored: Layers = defaultdict(dict)
    unknown, placed, result = [], list[str](), Layers()
    for key, value in tensors.items():
        found = split_ending(key, kind)
        if found is None or layer_of(found[0]) not in targets:
            unknown.append(key)
        else:
            stored[found[0]][found[1]] = value if value.dtype.itemsize > 1 else value.float()  # float8 has no sums
    for stem, kinds in stored.items():
        spelling = layer_of(stem)
        if not kinds.keys() >= kind.required:
            unknown += [f"{spelling} ({each})" for each in kinds]
            continue
        values = _rescale(kinds, settings_of(metadata, stem), config, spelling)
        parts = kind.split_layer(values, targets[spelling], config.rank)
        unknown += [spelling] * (not parts)
        placed += parts
        result |= parts
    require_once(placed)
    return result, unknown


def multiply(kind: AdapterType, kinds: Mapping[str, Tensor], factor: float) -> dict[str, Tensor]:
    """Return an update multiplied by a factor: exact for powers of two, else rounded once, in float32 or float64."""
    if math.isclose(factor, 1, rel_tol=1e-6):  # files store alphas in 32 bits
        return dict(kinds)
    name = next(name for name in kind.multiplied if name in kinds)
    value = kinds[name]
    return {**kinds, name: (value if value.dtype.itemsize > 2 else value.float()) * factor}


def _rescale(
    kinds: Mapping[str, Tensor], settings: Mapping[str, Any], config: LoraConfig, layer: str
) -> dict[str, Tensor]:
    """Return a stored update, without alpha, as its numbers are in an adapter of the config's alpha and rank."""
    kind = TYPES[config.type]
    own = config.exact_alpha / config.rank if kind.rank_of(kinds) else 1.0
    values = {name: value for name, value in kinds.items() if name != "alpha"}
    return multiply(kind, values, stored_scale(kind, kinds, settings, layer) / own)


def stored_scale(kind: AdapterType, kinds: Mapping[str, Tensor], settings: Mapping[str, Any], layer: str) -> float:
    """Return the number that a stored update is multiplied by: alpha / rank, or 1 without an alpha.

    Alpha is beside the tensors or in peft's settings, which may have one for each layer. Nor has a LoKr of two full factors
    a scale, except in files of peft.

    Raises:
        UserError: An alpha or a setting is none, or makes another update of the numbers.
    """
    kind.require_readable(settings)
    try:
        scale = _scale(kind, kinds, settings, text_encoders.within(layer))
    except UserError:
        raise
    except Exception as error:  # settings of other programs may be of any type
        raise damaged("an alpha, or the settings in its header, are not understood") from error
    if not math.isfinite(scale):
        raise damaged(f"the alpha of {layer or 'a layer'} is no number")
    if scale == 0:
        raise UserError(
            f"the alpha of {layer or 'a layer'} is 0: kohya's scripts read that as the rank, others as no update",
            code="lora-unreadable",
            remedy="write what is meant with the program that trained it: the rank for a scale of 1, or no such layer",
        )
    return scale


def _scale(kind: AdapterType, kinds: Mapping[str, Tensor], settings: Mapping[str, Any], layer: str) -> float:
    rank = kind.rank_of(kinds)
    if "alpha" in kinds:
        return float(kinds["alpha"]) / rank if rank else 1.0
    alpha = _of_layer(layer, settings.get("alpha_pattern"), settings.get("lora_alpha", settings.get("alpha")))
    if alpha is None or not kind.multiplied:
        return 1.0
    divisor = rank or _of_layer(layer, settings.get("rank_pattern"), settings.get("r"))
    return float(alpha / (math.sqrt(divisor) if settings.get("use_rslora") else divisor))


def _of_layer(layer: str, numbers: Mapping[str, Any] | None, of_others: Any) -> Any:
    """Return the number that a pattern of peft's settings has for a layer, or that of layers without one in it."""
    ends = {"^" + layer, *(layer.split(".", at)[-1] for at in range(layer.count(".") + 1))}
    return next((value for pattern, value in (numbers or {}).items() if _end_of(pattern) in ends), of_others)


@functools.lru_cache(1 << 16)  # since each layer is asked about
def _end_of(pattern: str) -> str:
    """Return the end of a layer's name that a key of peft's patterns means, and ^ before a whole name; patterns proper are refused."""
    start, name = pattern[: pattern.startswith("^")], text_encoders.within(pattern.removeprefix("^"))
    if not re.fullmatch(r"[\w.-]+", name):
        problem = f"its header has alphas or ranks for layers by a pattern, {pattern!r}, and only names are read"
        raise UserError(problem, code="lora-unreadable", remedy="name another file")
    return start + name


def settings_of(metadata: Mapping[str, str], stem: str) -> dict[str, Any]:
    """Return peft's settings in a header for the part of a pipeline that a layer is of, without its name before theirs.

    A layer whose name begins with no part of the header is one of the network.
    """
    settings, encoder = stored_settings(metadata.get(METADATA, "{}")), text_encoders.part_of(stem)
    parts = {key.rpartition(".")[0] for key in settings}
    own = parts & {stem.partition(".")[0], encoder}  # T5's folder is that of diffusers' names
    if not own and encoder is None:
        own = {part for part in parts if not text_encoders.is_part(part)}
    return {key.rpartition(".")[2]: value for key, value in settings.items() if key.rpartition(".")[0] in own}


@functools.lru_cache(4)
def stored_settings(text: str) -> dict[str, Any]:
    """Return peft's settings as they stand in a header's field; raises `UserError` if they are none."""
    try:
        return dict(user_files.parse_json(text).items())
    except (ValueError, AttributeError) as error:
        raise damaged(f"its header cannot be read: {error}") from error
