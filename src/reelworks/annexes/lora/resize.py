"""Give updates lower ranks by singular values; a LoHa or LoKr becomes a LoRA."""

from __future__ import annotations

import math

from reelworks.annexes.lora.adapter_file import AdapterFile, open_adapter
from reelworks.annexes.lora.contents import StoredLayer
from reelworks.annexes.lora.output import NewAdapterFile, rewriting
from reelworks.annexes.lora.request import ResizeLoraRequest
from reelworks.annexes.lora.results import LoraResult, ratio, share
from reelworks.core import requests, torch_state
from reelworks.core.errors import UserError
from reelworks.models.adapters.adapter_types.registry import LORA


@requests.telling(ResizeLoraRequest)
@torch_state.own()
def resize(request: ResizeLoraRequest) -> LoraResult:
    """Write a file whose updates have a lower rank, or the ranks that keep a share of each.

    Layers whose rank is as low already keep their numbers, and tensors that are no update stay as they are.

    Raises:
        UserError: The file is damaged, has no higher rank, or holds updates without a rank.
    """
    with rewriting(request) as new, open_adapter(str(request.file), "file") as file:
        _require_higher_rank(file, request.rank)
        with new.stage("decomposing", len(file.layers)):
            for layer in file.layers:
                _add_resized(file, layer, new, request)
        how = f"to rank {request.rank}" if request.keep is None else f"to keep {request.keep:g} of each layer"
        total = math.hypot(*(share(layer.norm, layer.relative_error) or 0.0 for layer in new.results))
        error = ratio(total, math.hypot(*(layer.norm or 0.0 for layer in new.results)))
        kept = {key for key in file.others if file.facts[key].dtype is not None}
        for key in sorted(kept):
            new.add_as_stored(file.renamed(key), file.read_other(key))
        notes = [*file.contents.describe("kept as stored", kept.__contains__), *file.left_out(kept)]
        return new.finish_as(file, f"resized {how}, with a relative error of {error:.3g}", notes)


def _require_higher_rank(file: AdapterFile, rank: int | None) -> None:
    highest = max((layer.rank or 0 for layer in file.layers if layer.type is LORA), default=0)
    if rank is not None and all(layer.type is LORA for layer in file.layers) and highest <= rank:
        raise UserError(
            f"no layer of the file has a higher rank: the highest is {highest}",
            code="rank-not-higher",
            field="rank",
            value=rank,
            remedy=f"give a rank below {highest}, or --keep" if highest > 1 else "use the file as it is",
        )


def _add_resized(file: AdapterFile, layer: StoredLayer, new: NewAdapterFile, request: ResizeLoraRequest) -> None:
    kinds, own = file.read(layer), layer.rank if layer.type is LORA else None
    rank, missing = request.rank, 0.0
    if rank is None or own is None or own > rank:
        spectrum = layer.type.spectrum(kinds)
        rank = rank or spectrum.rank_for(request.keep or 1.0)
        product, norm = spectrum.truncate(rank), spectrum.norm()
        missing = spectrum.left_out(rank)
    if own is not None and own <= rank:
        product, missing = layer.type.factors(kinds), 0.0
        norm = product.norm()
    new.add_update(file, layer, product, norm=norm, missing=missing)
