"""`reelworks new`: write a recipe to begin with."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import BadParameter, Option

from reelworks.cli import show
from reelworks.cli.app import App
from reelworks.cli.options import Json, Overrides
from reelworks.core.errors import UserError

if TYPE_CHECKING:
    from reelworks.quickstart.quickstart import QuickstartOptions, QuickstartResult


app = App(no_args_is_help=True, rich_markup_mode=None, add_completion=False)

MODEL = Option(metavar="NAME", help="A model, such as flux-dev, or a family, such as wan.")
Data = Annotated[
    list[Path] | None, Option(metavar="DIR", help="A folder or list of pictures and clips; may be given several times.")
]


def gigabytes(text: str) -> float:
    """Return the number of gigabytes that an option means: 24, 24GB or 24 GiB."""
    number = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:G|GB|GiB)?\s*", text, re.IGNORECASE)
    if number is None or not 1 <= float(number[1]) <= _MOST_GB:
        raise BadParameter(f"{text!r} is not a number of gigabytes, such as 24, from 1 to {_MOST_GB:,}")
    return float(number[1])


_MOST_GB = 100_000
Vram = Annotated[
    float | None,
    Option(
        metavar="GB",
        parser=gigabytes,
        help="GPU memory that settings are chosen to fit; default: that of this machine's GPU.",
    ),
]
Trigger = Annotated[
    str | None,
    Option(
        metavar="WORD",
        help="A rare word that is put before every caption, and that is the caption of clips without one.",
    ),
]
Weights = Annotated[str | None, Option(metavar="PATH|HUB", help="Weights to use in place of the published ones.")]


@app.callback()
def new() -> None:
    """Write a recipe to begin with."""


@app.command("lora", doing="choosing settings")
def lora(
    model: Annotated[str, MODEL],
    data: Data = None,
    vram: Vram = None,
    trigger: Trigger = None,
    weights: Weights = None,
    control: Annotated[Path | None, Option(metavar="DIR", help="Controls of the clips of --data, by name.")] = None,
    source: Annotated[
        list[Path] | None, Option(metavar="DIR", help="Sources of the edits in --data, by name; repeatable, in order.")
    ] = None,
    mask: Annotated[Path | None, Option(metavar="DIR", help="Masks of what is generated in --data, by name.")] = None,
    rank: Annotated[int | None, Option(min=1, help="Rank of the LoRA; default: 16.")] = None,
    steps: Annotated[
        int | None, Option(min=1, help="Optimizer steps; default: epochs that follow from the number of clips.")
    ] = None,
    resolution: Annotated[
        str | None,
        Option(metavar="SIDE|SIZE", help="Side of a square, or a size such as 480p; default: what most clips fill."),
    ] = None,
    overrides: Overrides = None,
    tflops: Annotated[
        float | None, Option(min=0.1, help="Speed of the GPU in bfloat16, to estimate training time; default: 165.")
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="RECIPE", help="Default: DIR-MODEL.toml in the current folder.")
    ] = None,
    force: Annotated[bool, Option("--force", help="Overwrite an existing recipe.")] = False,
    json: Json = False,
) -> None:
    """Write a recipe for a LoRA on folders of footage, and estimate its memory and time.

    Comments each value of the recipe with its reason. Prints the number of parameters, the memory of each part, whether
    that fits, and the training time. Writes nothing if no settings fit. Without --data the recipe has a placeholder for
    20 pictures. Downloads nothing and reads no weights.
    """
    default = _default_path(data or [], model)
    path = output or default
    if path.exists() and not force:
        raise UserError(
            "the recipe exists already",
            code="file-exists",
            field="--output",
            value=str(path),
            remedy="give --force to overwrite it, or another name with -o",
        )
    if not json:
        _announce(data or [], model)
    from reelworks.quickstart.quickstart import QuickstartOptions
    from reelworks.train.preflight.memory import ASSUMED_TFLOPS

    given = (("control", control), ("mask", mask))
    companions: dict[str, str | list[str]] = {name: str(path) for name, path in given if path is not None}
    if source:
        companions["source"] = [str(path) for path in source] if len(source) > 1 else str(source[0])
    tflops = tflops or ASSUMED_TFLOPS
    options = QuickstartOptions(
        model,
        tuple(data or ()),
        vram,
        trigger,
        weights,
        companions,
        tflops,
        rank,
        steps,
        resolution,
        tuple(overrides or ()),
    )
    write(path, options, json=json)


def _default_path(data: list[Path], model: str) -> Path:
    """Refuse an unknown model or a missing folder before the libraries are loaded, which takes a second or several."""
    from reelworks.models import registry

    preset = registry.preset_name(model)
    for folder in data:
        _require_folder(folder)
    return Path(f"{data[0].resolve().name if data else 'lora'}-{preset}.toml")


def _require_folder(path: Path) -> None:
    """Refuse a path that is neither a folder nor a list of files."""
    if path.is_dir():
        return
    from reelworks.catalog.config import is_list

    if not path.is_file() or not is_list(path):
        raise UserError(
            "this is a file, not a folder" if path.exists() else "there is no such folder",
            code="no-such-folder",
            field="--data",
            value=str(path),
            remedy="give the folder that holds the videos and pictures",
        )


def recipe_for(
    data: list[Path], model: str | None, vram: float | None, trigger: str | None, weights: str | None
) -> Path:
    """Return the recipe of `train --data DIR --model NAME`: that of an earlier such command, or a new one."""
    if not data or model is None:
        raise UserError(
            "there is neither a recipe nor data to train on",
            code="nothing-to-train",
            field="RECIPE",
            remedy="give a recipe, or --data DIR and --model NAME",
        )
    path = _default_path(data, model)
    if path.exists():
        show.line(f"recipe: {path}, which exists already; remove it to write a new one")
    elif "LOCAL_RANK" in os.environ:
        raise UserError(
            "several processes would write the same recipe",
            code="recipe-made-by-several-processes",
            field="--data",
            value=str(data[0]),
            remedy="run `reelworks new lora` first and train its recipe, or use --nproc-per-node",
        )
    else:
        _announce(data, model)
        from reelworks.quickstart.quickstart import QuickstartOptions

        write(path, QuickstartOptions(model, tuple(data), vram, trigger, weights), warns=False)  # training does
    return path


def _announce(data: list[Path], model: str) -> None:
    """Say what takes the next seconds, before the libraries are loaded, which takes some of them."""
    read = f"reading {', '.join(map(str, data))}, and " if data else ""
    show.line(f"{read}computing the memory that {model} takes, without its weights ...")


def write(path: Path, options: QuickstartOptions, *, json: bool = False, warns: bool = True) -> None:
    """Write the recipe and print a summary of it."""
    from reelworks.quickstart import quickstart
    from reelworks.recipe import validation

    with show.scan_progress(quiet=json) as on_progress:
        result = quickstart.lora(path, options, on_progress)
    show.json(result.to_json() | {"recipe": str(path)}) if json else _print_result(path, result)
    if not json and (note := validation.licence_note(result.recipe)) is not None:
        show.line(f"licence of {note}")
    if warns and not json and (warning := validation.distilled_warning(result.recipe)) is not None:
        show.line(f"warning: {warning}")


def _print_result(path: Path, new: QuickstartResult) -> None:
    from reelworks.train.preflight.memory import BUS_GB, UTILISATION

    found, estimate = new.found, new.choice.estimate
    show.line(f"data: {found.to_text()}" + (f", {found.uncaptioned} without a caption" if found.uncaptioned else ""))
    for remark in new.remarks:
        show.line(f"  {remark}")
    if found.uncaptioned and any(d.missing_caption is None for d in new.recipe.dataset):
        show.line("  clips without a caption are not trained; write text files, or give --trigger WORD")
    sizes = f"{estimate.parameters:,} parameters; the LoRA has {estimate.trained_parameters:,}"
    show.line(f"model: {new.recipe.model.name}, {sizes}")
    memory = estimate.memory
    show.line(f"memory, estimated: {memory.total / 1e9:.1f} GB ({memory.to_text()})")
    if memory.host >= 5e7:
        machine = "" if new.fits_host else f"; this machine has {new.host_bytes / 1e9:.0f} GB, so it does not fit here"
        show.line(f"  and {memory.host / 1e9:.1f} GB of CPU memory, for weights that stay there{machine}")
    if not estimate.measured:
        show.line("  without activations, so it may need more: this network does not run on the meta device")
    elif new.fits is None:
        show.line("  give --vram GB to check whether it fits, and to choose settings that do")
    for i, tier in enumerate(new.choice.tiers):
        without = new.choice.without
        why = f"at least {without[i] / 1e9:.1f} GB without it" if without else "nearly all need it"
        show.line(f"  {tier.to_text()}: {tier.why}; {why}")
    if new.fits:
        show.line("  it fits")
    moving = estimate.moving_seconds
    show.line(
        f"time, estimated: {new.steps:,} steps of {max(new.seconds_per_step, 0.001):.2g} s, {_duration(new)}, at {UTILISATION:.0%} "
        f"of {new.tflops:g} TFLOP/s"
        + (f" and {moving:.2g} s to move weights at {BUS_GB:g} GB/s" if estimate.moved_bytes else "")
        + "; decoding and encoding come on top"
    )
    show.line(f"\nwritten: {path}, with the reason of each value. Next:")
    for verb in ("plan", "train"):
        show.line(f"  reelworks {verb} {shlex.quote(str(path))}")


def _duration(new: QuickstartResult) -> str:
    minutes = new.steps * new.seconds_per_step / 60
    return f"{minutes / 60:.1f} hours" if minutes >= 90 else f"{minutes:.0f} minutes" if minutes >= 1.5 else "a minute"
