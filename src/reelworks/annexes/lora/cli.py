"""`reelworks lora`: tell, convert, merge, resize, extract, apply and average LoRA files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Option

from reelworks.annexes.lora.request import (
    ApplyLorasRequest,
    AverageRunRequest,
    ConvertLoraRequest,
    ExtractLoraRequest,
    LoraInfoRequest,
    MergeLorasRequest,
    ResizeLoraRequest,
)
from reelworks.commands import show
from reelworks.commands.app import App
from reelworks.commands.options import Json
from reelworks.core import units

if TYPE_CHECKING:
    from reelworks.annexes.lora.info import LoraInfo
    from reelworks.annexes.lora.results import LayerResult, LoraResult

app = App(no_args_is_help=True, rich_markup_mode=None)
Layers = Annotated[bool, Option("--layers", help="Print a line for each layer.")]
_WORST = 3  # layers that are named without --layers
_LONGEST = 100  # letters of a value of a header


@app.callback()
def lora() -> None:
    """Tell, convert, merge, resize, extract, apply and average LoRA files.

    Files are read a layer at a time, whatever their convention, and nothing in them is executed. Each command tells how far
    what it wrote is from the exact result, by layer and in all.
    """


@app.command("info", doing="reading the file")
def info(request: LoraInfoRequest, layers: Layers = False, json: Json = False) -> None:
    """Tell what is in a file: convention, model, ranks, norms, other tensors, metadata, and which programs read how much of it."""
    with show.loading():
        from reelworks.annexes.lora import info
    found = info.info(request)
    show.json(found) if json else _print_info(found, layers)


@app.command("convert", doing="converting")
def convert(request: ConvertLoraRequest, layers: Layers = False, json: Json = False) -> None:
    """Write a file in another convention: other names, and layers joined or split as the model's release has them.

    The scale alpha / rank becomes part of the numbers. A LoKr, LoHa or OFT stays what it is, where the convention holds it.
    """
    with show.loading():
        from reelworks.annexes.lora import convert
    _print(convert.convert(request), layers, json)


@app.command("merge", doing="adding")
def merge(request: MergeLorasRequest, layers: Layers = False, json: Json = False) -> None:
    """Add LoRAs, each times a number: exactly by concatenation, or with --rank by singular values.

    Names and conventions may differ, and so may ranks and layers. A LoHa or LoKr takes part as the product of two matrices
    that it is, if that is smaller than the weights.
    """
    with show.loading():
        from reelworks.annexes.lora import merge
    _print(merge.merge(request), layers, json)


@app.command("resize", doing="decomposing")
def resize(request: ResizeLoraRequest, layers: Layers = False, json: Json = False) -> None:
    """Lower the ranks of a LoRA by singular values, or make a LoRA of a LoHa or LoKr."""
    with show.loading():
        from reelworks.annexes.lora import resize
    _print(resize.resize(request), layers, json)


@app.command("extract", doing="comparing weights")
def extract(request: ExtractLoraRequest, layers: Layers = False, json: Json = False) -> None:
    """Make a LoRA of what tuned weights differ by from their base.

    Layers that do not differ are left out. Differences of norms, biases and convolutions are told, and not held.
    """
    with show.loading():
        from reelworks.annexes.lora import extract
    found = extract.extract(request)
    _print(found, layers, json, found.result)
    if json:
        return
    show.line(f"network: {found.model or 'not known'}; {units.plural(found.equal, 'linear layer')} equal, and left out")
    for other in found.not_held:
        show.line(
            f"not held: {units.plural(other.tensors, 'tensor')}, {other.kind}, {other.share or 0:.2%} of the squared difference"
        )
    show.line(f"relative error of the whole difference: {_share(found.relative_error_in_all)}")


@app.command("apply", doing="adding")
def apply(request: ApplyLorasRequest, layers: Layers = False, json: Json = False) -> None:
    """Add LoRAs to full weights, and write these in shards, in the dtypes of the base.

    Holds one weight in memory at a time. The error is what rounding to the dtype of the base takes from an update.
    """
    with show.loading():
        from reelworks.annexes.lora import apply
    _print(apply.apply(request), layers, json)


@app.command("average", doing="averaging")
def average(request: AverageRunRequest, layers: Layers = False, json: Json = False) -> None:
    """Average the checkpoints of a run by a power of the step, chosen after training (arXiv 2312.02696).

    Writes a LoRA, or full weights. Stored averages are weighted so that their profile is nearest to the wanted one, and
    trained weights by the share of their steps. The error of a LoRA is how far the update of averaged tensors is from the
    average of the updates.
    """
    with show.loading():
        from reelworks.annexes.lora import average
    found = average.average(request)
    _print(found, layers, json, found.result)
    if json:
        return
    what = "stored averages" if found.averaged == "ema" else "trained weights"
    show.line(
        f"{what}, σ_rel {found.sigma_rel:g}: " + ", ".join(f"step {c.step} × {c.weight:.4g}" for c in found.checkpoints)
    )
    if found.profile_error is not None:
        show.line(f"distance from the wanted profile: {found.profile_error:.2%}")


def _print(value: object, layers: bool, json: bool, result: LoraResult | None = None) -> None:
    """Print a result, or the JSON of a value that has it."""
    if json:
        show.json(value)
        return
    from reelworks.annexes.lora.results import LoraResult

    told = value if isinstance(value, LoraResult) else result
    assert told is not None
    if layers:
        _print_layers(told.layers)
    for note in told.notes:
        show.line(note)
    ranks = sorted({layer.rank for layer in told.layers if layer.rank is not None})
    rank = f", rank {ranks[0]}" + (f" to {ranks[-1]}" if len(ranks) > 1 else "") if ranks else ""
    show.line(
        f"{units.plural(len(told.layers), 'layer')}{rank}, norm {_number(told.norm)}, relative error {_share(told.relative_error)}"
    )
    worst = sorted(told.layers, key=lambda layer: -(layer.relative_error or 0.0))[:_WORST]
    for layer in worst if not layers else ():
        if round(layer.relative_error or 0.0, 5):  # as it is printed
            show.line(f"  {layer.layer}: {_share(layer.relative_error)}")
    for path in told.files:
        show.line(str(path))


def _print_layers(layers: list[LayerResult]) -> None:
    rows = (
        (each.layer, each.type, each.rank or "", _number(each.norm), _share(each.relative_error)) for each in layers
    )
    show.table(("layer", "type", "rank", "norm", "relative error"), rows)


def _print_info(found: LoraInfo, layers: bool) -> None:
    if layers:
        _print_layers(found.result.layers)
    (path,) = found.result.files
    show.line(", ".join(filter(None, [f"{path}: {units.size(found.bytes)}", _counts(found.dtypes)])))
    for note in found.result.notes:
        show.line(note)
    if found.types:
        show.line(f"convention: {found.result.convention or 'none known: names have no prefix'}")
        show.line(f"layers: {_counts(found.types)}; by rank: {_counts(found.ranks)}")
    if found.others:
        show.line(f"other tensors: {_counts(found.others)}")
    if found.text_encoder_layers:
        show.line(f"text encoders: {units.plural(found.text_encoder_layers, 'layer')}")
    total = len(found.result.layers)
    if total:
        of_network = total - found.text_encoder_layers
        known = " or ".join(found.models) or "not known"
        is_whole = found.fitting == of_network or not found.models
        fits = "" if is_whole else f", of which {found.fitting} of {of_network} layers fit"
        show.line(f"model: {known}{fits}")
        show.line(f"norm of the updates: {_number(found.result.norm)}")
        readers = [f"{name} ({count} of {units.plural(total, 'layer')})" for name, count in found.readers.items()]
        show.line(f"read by: {', '.join(readers) or 'no program that is known'}")
    for key, value in sorted(found.metadata.items()):
        short = value if len(value) <= _LONGEST else f"{value[:_LONGEST]} … ({len(value):,} characters)"
        show.line(f"  {key}: {short}")


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} × {count}" for name, count in counts.items())


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3%}" if value else "0"
