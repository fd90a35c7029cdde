"""`reelworks new`: write a recipe to begin with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from reelworks.commands import show
from reelworks.commands.app import App
from reelworks.commands.options import Json
from reelworks.core import gpus, system, units
from reelworks.core.errors import UserError
from reelworks.quickstart.request import FootageRequest, NewLoraRequest

if TYPE_CHECKING:
    from reelworks.quickstart.quickstart import QuickstartResult


app = App(no_args_is_help=True, invoke_without_command=True, rich_markup_mode=None, add_completion=False)


@app.callback()
def new(
    listed: Annotated[bool, Option("--list", help="List recipes for 20 pictures that fit, by model and GPU.")] = False,
    gpu: Annotated[str | None, Option(metavar="NAME", help=f"With --list: {gpus.OPTION_HELP}.")] = None,
    json: Json = False,
) -> None:
    """Write a recipe to begin with."""
    if listed:
        _list(gpu, json=json)


def _list(gpu: str | None, *, json: bool) -> None:
    """Print the recipes that are ready, whose files are in the project's recipes/lora."""
    with show.loading():
        from reelworks.quickstart import ready_recipes

    ready = [one for model in ready_recipes.models() for one in ready_recipes.of_model(model, gpu)]
    if json:
        show.json(ready)
        return
    rows = []
    for one in ready:
        made = one.result
        size, memory = f"{one.vram_gb} GB", units.size(made.choice.estimate.memory.total)
        rows.append((made.model, size, memory, f"{made.steps:,}", _duration(made)))
    show.table(("model", "GPU of", "takes", "steps", "in all"), rows)
    show.line(
        f"LoRAs of 20 pictures by `reelworks new lora --model NAME --vram GB`; times are estimated for one {ready[0].result.gpu}"
    )


@app.command("lora", doing="choosing settings")
def lora(request: NewLoraRequest, json: Json = False) -> None:
    """Write a recipe for a LoRA on folders of footage, and estimate its memory and time.

    Comments each value of the recipe with its reason. Prints the number of parameters, the memory of each part, whether
    that fits, and the training time. Writes nothing if no settings fit. Without --data the recipe has a placeholder for
    20 pictures. Downloads nothing and reads no weights.
    """
    if not json:
        _announce(request)
    _write(request, json=json)


def recipe_for(footage: FootageRequest) -> Path:
    """Return the recipe of `train --data DIR --model NAME`: that of an earlier such command, or a new one."""
    if not footage.data or footage.model is None:
        problem = "there is neither a recipe nor data to train on"
        if footage.data:
            problem = f"there is no model to train on {', '.join(map(str, footage.data))}"
        elif footage.model is not None:
            problem = f"there is no data to train {footage.model} on"
        raise UserError(
            problem,
            code="nothing-to-train",
            field="--model" if footage.data else "--data" if footage.model is not None else "RECIPE",
            remedy="give a recipe, or --data DIR and --model NAME",
        )
    request = NewLoraRequest(**vars(footage), force=True)
    if request.path.exists():
        request.require_made_with()
        show.line(f"recipe: {request.path}, which exists already; remove it to write a new one")
    elif "LOCAL_RANK" in os.environ:
        raise UserError(
            "several processes would write the same recipe",
            code="recipe-made-by-several-processes",
            field="--data",
            value=str(request.data[0]),
            remedy="run `reelworks new lora` first and train its recipe, or use --nproc-per-node",
        )
    else:
        _announce(request)
        _write(request, warns=False)  # training does
    return request.path


def _announce(request: NewLoraRequest) -> None:
    """Say what takes the next seconds, before the libraries are loaded, which takes some of them."""
    read = f"reading {', '.join(map(str, request.data))}, and " if request.data else ""
    show.line(f"{read}computing the memory that {request.model} takes, without its weights ...")


def _write(request: NewLoraRequest, *, json: bool = False, warns: bool = True) -> None:
    """Write the recipe and print a summary of it."""
    from reelworks.quickstart import quickstart
    from reelworks.training.recipe import release_notes

    with show.scan_progress(quiet=json) as on_progress:
        result = quickstart.lora(request, on_progress)
    if json:
        show.json(result)
        return
    _print_result(request.path, result)
    if (note := release_notes.licence_note(result.recipe)) is not None:
        show.line(f"licence of {note}")
    if warns and (warning := release_notes.distilled_warning(result.recipe)) is not None:
        show.line(f"warning: {warning}")


def _print_result(path: Path, new: QuickstartResult) -> None:
    from reelworks.training.memory import recomputation
    from reelworks.training.memory.memory import BUS_GB

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
    for line in recomputation.lines_of_entries(new.recomputation):
        show.line(f"  {line}")
    if new.fits:
        show.line("  it fits")
    moving = estimate.moving_seconds
    show.line(
        f"time, estimated: {new.steps:,} steps of {units.number(max(new.seconds_per_step, 0.001), 2)} s, {_duration(new)}, "
        f"on one {new.gpu}"
        + (f" and {units.number(moving, 2)} s to move weights at {BUS_GB:g} GB/s" if estimate.moved_bytes else "")
        + "; decoding and encoding come on top"
    )
    show.line(f"\nwritten: {path}, with the reason of each value. Next:")
    for verb in ("plan", "train"):
        show.line(f"  reelworks {verb} {system.quoted(str(path))}")


def _duration(new: QuickstartResult) -> str:
    minutes = new.steps * new.seconds_per_step / 60
    return f"{minutes / 60:.1f} hours" if minutes >= 90 else f"{minutes:.0f} minutes" if minutes >= 1.5 else "a minute"
