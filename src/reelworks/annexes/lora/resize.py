"""Give updates lower ranks by singular values; a LoHa or LoKr becomes a LoRA."""

from __future__ import annotations

import math

from reelworks.annexes.lora import output
from reelworks.annexes.lora.adapter_file import AdapterFile, open_adapter
from reelworks.annexes.lora.contents import StoredLayer
from reelworks.annexes.lora.output import NewAdapterFile, new_adapter_file
from reelworks.annexes.lora.request import ResizeLoraRequest
from reelworks.annexes.lora.results import LayerResult, LoraResult, ratio, share
from reelworks.core import log, requests
from reelworks.core.errors import UserError
from reelworks.models.adapters.adapter_types.registry import LORA
from reelworks.models.export import export


@requests.telling(ResizeLoraRequest)
def resize(request: ResizeLoraRequest) -> LoraResult:
    """Write a file whose updates have a lower rank, or the ranks that keep a share of each.

    Layers whose rank is as low already keep their numbers, and tensors that are no update stay as they are.

    Raises:
        UserError: The file is damaged, has no higher rank, or holds updates without a rank.
    """
    with (
        new_adapter_file(request.output, request.overwrite) as new,
        open_adapter(str(request.file), "file") as file,
    ):
        _require_higher_rank(file, request.rank)
        layers: list[LayerResult] = []
        with log.stage("decomposing", lambda: f"{len(layers)} of {len(file.layers)} layers"):
            for layer in file.layers:
                layers.append(_resized(file, layer, new, request))
        how = f"to rank {request.rank}" if request.keep is None else f"to keep {request.keep:g} of each layer"
        total = math.hypot(*(share(layer.norm, layer.relative_error) or 0.0 for layer in layers))
        error = ratio(total, math.hypot(*(layer.norm or 0.0 for layer in layers)))
        remark = f"resized {how}, with a relative error of {error:.3g}"
        kept = {key for key in file.others if file.facts[key].dtype is not None}
        for key in sorted(kept):
            new.add_as_stored(file.renamed(key), file.read_other(key))
        notes = [*file.contents.describe("kept as stored", kept.__contains__), *file.left_out(kept)]
        return output.finish(new, file, layers, remark=remark, notes=notes)


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


def _resized(file: AdapterFile, layer: StoredLayer, new: NewAdapterFile, request: ResizeLoraRequest) -> LayerResult:
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
    dtype = layer.dtype if request.dtype is None else export.DTYPES[request.dtype]
    written = new.add_product(file.stem_of(layer), product, dtype, file.names, layer.kernel)
    # What is left out and what is rounded are at right angles, but for products of two roundings.
    error = ratio(math.hypot(missing, product.distance(written)), norm)
    return LayerResult(file.stem_of(layer), LORA.name, written.rank, norm, error)
