"""Add the updates of several files, each times a number, by concatenation or by singular values.

The sum of B1 A1 and B2 A2 is [B1 B2] times A1 above A2: exact, and ranks add up. Its best approximation of a lower rank follows
from these thin matrices too; the whole matrix is never built.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from reelworks.annexes.lora import base_network, convert
from reelworks.annexes.lora.adapter_file import AdapterFile, open_adapter
from reelworks.annexes.lora.contents import StoredLayer, written_dtype
from reelworks.annexes.lora.output import NewAdapterFile, rewriting
from reelworks.annexes.lora.request import MergeLorasRequest
from reelworks.annexes.lora.results import LoraResult
from reelworks.core import files, requests, storage, torch_state
from reelworks.core.errors import UserError, first_few
from reelworks.models.adapters import low_rank
from reelworks.models.adapters.adapter_types.registry import LORA
from reelworks.models.adapters.low_rank import LowRank


class _Weighted(NamedTuple):
    """A file, and what its updates are multiplied by."""

    file: AdapterFile
    weight: float


class _Term(NamedTuple):
    """A layer of a file."""

    file: AdapterFile
    weight: float
    layer: StoredLayer


@requests.telling(MergeLorasRequest)
@torch_state.own()
def merge(request: MergeLorasRequest) -> LoraResult:
    """Write the sum of the updates of files as one LoRA; layers that a file lacks count nothing there.

    LoHas and LoKrs take part as the products that they are, as long as these are smaller than the weights.

    Raises:
        UserError: A file is damaged, the files are of different networks, or an update has no sum.
    """
    with rewriting(request) as new, ExitStack() as stack:
        notes: list[str] = []
        weighted = _opened(request, stack, notes)
        layers = _layers(weighted, request.model)
        with new.stage("adding", len(layers)):
            for terms in layers:
                _add_sum(terms, new, request.rank)
        first, *others = (file for file, _ in weighted)
        notes += [
            f"{file.source} was trained on another base than {first.source}, by their headers"
            for file in others
            if base_network.describes_another(first, file)
        ]
        notes += _add_differences(weighted, new)
        remark = "merged: " + ", ".join(f"{Path(each.path).name}={each.weight:g}" for each in request.weighted)
        common = {key: value for key, value in first.header.items() if all(o.header.get(key) == value for o in others)}
        names = ", ".join(Path(file.source).name for file, _ in weighted)
        return new.finish_as(first, remark, notes, common | {"modelspec.merged_from": names})


def _opened(request: MergeLorasRequest, stack: ExitStack, notes: list[str]) -> list[_Weighted]:
    """Open all files, those of other conventions as converted ones, which has what is left out among the notes."""
    found: list[_Weighted] = []
    for path, weight in request.weighted:
        file = stack.enter_context(open_adapter(path, "files"))
        for layer in file.layers:
            if layer.type.depends_on_weight(layer.keys):
                raise layer.type.no_answer()
        if found and not _names_alike(found[0].file, file):
            file = _converted(found[0].file, file, request, stack, notes)
        found.append(_Weighted(file, weight))
    return found


def _names_alike(first: AdapterFile, other: AdapterFile) -> bool:
    """Whether two files surely spell layers alike: in one convention, or where one file has the layers of the other."""
    # Names of text encoders say what they are.
    if first.convention is other.convention is not None or (first.convention is None and not other.has_network):
        return True
    names, others = ({layer.folded for layer in file.layers} for file in (first, other))
    return names <= others or others <= names


def _converted(
    first: AdapterFile, other: AdapterFile, request: MergeLorasRequest, stack: ExitStack, notes: list[str]
) -> AdapterFile:
    """Return a file in the convention of the first one, exactly, from a temporary file beside the output."""
    if first.convention is None:
        raise UserError(
            f"its names are those of another convention than those of {first.source}, which have no prefix",
            code="lora-conventions-differ",
            field="files",
            value=other.source,
            remedy="convert both with `reelworks lora convert`",
        )
    with files.writing("output", request.output):
        request.output.parent.mkdir(parents=True, exist_ok=True)
        storage.mkdir(folder := files.temporary_name(request.output))
        stack.callback(storage.rmtree_if_possible, folder)
        files.hold(stack.enter_context(storage.create(folder / "held")))  # a conversion may take long
    new = NewAdapterFile(folder / "converted.safetensors", torch.float32, stack)
    try:
        converted = convert.write_as(other, new, first.convention, request.model)
    except UserError as error:
        raise UserError(
            f"it has another convention than {first.source}, and cannot be converted: {error.problem}",
            code=error.code,
            field="model" if error.field == "model" else "files",
            value=other.source,
            remedy=error.remedy,
        ) from error
    notes += converted.notes
    (path,) = converted.files
    return stack.enter_context(open_adapter(str(path), "files"))


def _layers(weighted: list[_Weighted], model: str | None) -> list[list[_Term]]:
    """Return the layers of all files, those of the same name together.

    Raises:
        UserError: A layer has several shapes, or the files have no layer in common and are of no common network.
    """
    by_name: dict[str, list[_Term]] = defaultdict(list)
    for file, weight in weighted:
        for layer in file.layers:
            by_name[layer.folded].append(_Term(file, weight, layer))
    for terms in by_name.values():
        shapes = {term.layer.shape for term in terms}
        if len(shapes) > 1:
            raise UserError(
                f"of another network than {weighted[0].file.source}: {terms[-1].layer.stem} has the shapes "
                f"{' and '.join(map(str, sorted(shapes)))}",
                code="lora-does-not-fit",
                field="files",
                value=terms[-1].file.source,
                remedy="merge files of one network",
            )
    _require_one_network(weighted, by_name, model)
    return [*by_name.values()]


def _require_one_network(weighted: list[_Weighted], by_name: dict[str, list[_Term]], model: str | None) -> None:
    shared = {id(term.file) for terms in by_name.values() if len(terms) > 1 for term in terms}
    of_networks = [file for file, _ in weighted if file.has_network]
    alone = [file for file in of_networks if id(file) not in shared]
    if len(of_networks) < 2 or not alone:
        return  # text encoders go with any network
    candidates = [{*found.names} for file in of_networks if (found := base_network.closest_to(file, model)).is_whole]
    if len(candidates) < len(of_networks) or not set.intersection(*candidates):
        told = [first_few(sorted(names)) for names in candidates]
        raise UserError(
            f"no layer of it is in another file, and no known network has the layers of all ({' and '.join(told) or 'none'})",
            code="lora-does-not-fit",
            field="files",
            value=alone[0].source,
            remedy="merge files of one network",
        )


def _add_sum(terms: list[_Term], new: NewAdapterFile, rank: int | None) -> None:
    """Write a sum under the name that the first file has for the layer, in a type that holds the numbers of all."""
    exact = low_rank.add([_factors(term) for term in terms])
    product, missing = exact, 0.0
    if rank is not None and rank < exact.rank:
        spectrum = low_rank.spectrum(exact)
        product, missing = spectrum.truncate(rank), spectrum.left_out(rank)
    file, _, layer = terms[0]
    kernel = max((term.layer.kernel for term in terms), key=len)
    widest = functools.reduce(torch.promote_types, (term.layer.dtype for term in terms))
    new.add_update(file, replace(layer, kernel=kernel, dtype=widest), product, norm=exact.norm(), missing=missing)


def _add_differences(weighted: list[_Weighted], new: NewAdapterFile) -> list[str]:
    """Write the sums of differences of weights and biases, and return notes on these, and on other tensors without a sum.

    A difference of a weight that has an update too is left out: readers take one of the two.
    """
    terms: dict[str, list[tuple[_Weighted, str]]] = defaultdict(list)
    for each in weighted:
        for key in each.file.others:
            target, name = each.file.added_to(key), each.file.renamed(key)
            if target is not None and (target[1] == "bias" or each.file.renamed(target[0]) not in new.layers):
                terms[name].append((each, key))
    held: set[tuple[int, str]] = set()
    for name, each_term in terms.items():
        facts = [each.file.facts[key] for each, key in each_term]
        if len({fact.shape for fact in facts}) == 1:
            values = [each.weight * each.file.read_other(key).float() for each, key in each_term]
            dtype = new.dtype_of(written_dtype({fact.dtype for fact in facts}))
            new.add(name, sum(values[1:], values[0]), dtype)
            held |= {(id(each.file), key) for each, key in each_term}
    notes = []
    for file, _ in weighted:
        own = {key for key in file.others if (id(file), key) in held}
        notes += [f"{file.source}: {told}" for told in file.contents.describe("added", own.__contains__)]
        notes += file.left_out(own)
    return notes


def _factors(term: _Term) -> LowRank:
    """Return an update as a product times its weight; refuses one that is as large as the weight that it is added to."""
    layer, (rows, columns) = term.layer, term.layer.shape
    kinds = term.file.read(layer)
    with term.file.telling():
        product = layer.type.factors(kinds)
    if layer.type is not LORA and product.rank * (rows + columns) >= rows * columns:
        raise UserError(
            f"the {layer.type.name} of {layer.stem} is a product of rank {product.rank}, as large as the weight itself, and sums "
            f"of {layer.type.name}s are none",
            code="adapter-without-sum",
            field="files",
            value=term.file.source,
            remedy="make a LoRA of it first with `reelworks lora resize`",
        )
    return product.scaled(term.weight)
