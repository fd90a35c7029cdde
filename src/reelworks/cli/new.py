"""`reelworks new`: a recipe to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reelworks.cli.options import Json

if TYPE_CHECKING:
    from reelworks.quickstart.quickstart import QuickstartOptions, QuickstartResult

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)

MODEL = typer.Option(metavar="NAME", help="A model, such as flux-dev, or a family, such as wan.")
Data = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="DIR", help="A folder of pictures and clips, or a list of them; may be given several times."
    ),
]
Vram = Annotated[
    float | None,
    typer.Option(
        metavar="GB",
        min=1,
        max=100_000,
        help="Memory of the GPU, which settings are chosen to fit; default: of the one here.",
    ),
]
Trigger = Annotated[
    str | None,
    typer.Option(
        metavar="WORD", help="A rare word, put before every caption and the caption of what has none."
    ),
]
Weights = Annotated[
    str | None, typer.Option(metavar="PATH|HUB", help="Weights in place of the published ones.")
]


@app.callback()
def new() -> None:
    """Write a recipe to begin with."""


@app.command("lora")
def lora(
    model: Annotated[str, MODEL],
    data: Data = None,
    vram: Vram = None,
    trigger: Trigger = None,
    weights: Weights = None,
    tflops: Annotated[
        float | None,
        typer.Option(min=0.1, help="What the GPU computes in bfloat16, to estimate seconds; default: 165."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="RECIPE", help="Default: DIR-MODEL.toml here.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a recipe that is there.")] = False,
    json: Json = False,
) -> None:
    """Write a recipe for a LoRA of what some folders hold, and say what it will take.

    Writes the reason of each value beside it, and says how many parameters it has, what memory by part, whether that
    fits, and how many seconds. Writes nothing if no settings fit. Without --data it writes a placeholder, for 20
    pictures. Downloads nothing and reads no weights.
    """
    from reelworks.core.errors import UserError

    _require(data or [], model)
    path = output or default_path(data or [], model)
    if path.exists() and not force:
        raise UserError(
            "there is such a recipe",
            code="file-exists",
            field="--output",
            value=str(path),
            remedy="give --force to write over it, or another name with -o",
        )
    from reelworks.quickstart.quickstart import QuickstartOptions
    from reelworks.train.preflight.estimate import ASSUMED_TFLOPS

    wishes = QuickstartOptions(model, tuple(data or ()), vram, trigger, weights, tflops or ASSUMED_TFLOPS)
    write(path, wishes, json=json)


def _require(data: list[Path], model: str) -> None:
    """Refuse a model or a folder that is not there before torch is imported, which takes seconds."""
    from reelworks.models import registry
    from reelworks.quickstart import kohya_folders

    registry.preset_name(model)
    kohya_folders.require(data)


def default_path(data: list[Path], model: str) -> Path:
    """Name a recipe that nobody named, after the first folder and the model."""
    from reelworks.models import registry

    folder = data[0].resolve().name if data else "lora"
    return Path(f"{folder}-{registry.preset_name(model)}.toml")


def recipe_for(
    data: list[Path], model: str | None, vram: float | None, trigger: str | None, weights: str | None
) -> Path:
    """The recipe of `train --data DIR --model NAME`: the one that an earlier such command wrote, or a new one."""
    import os

    from reelworks.cli import show
    from reelworks.core.errors import UserError

    if not data or model is None:
        raise UserError(
            "nothing says what to train",
            code="nothing-to-train",
            field="RECIPE",
            remedy="name a recipe, or give --data DIR and --model NAME",
        )
    _require(data, model)
    path = default_path(data, model)
    if path.exists():
        show.line(f"recipe: {path}, as it is there; remove it to have it made anew")
    elif "LOCAL_RANK" in os.environ:
        raise UserError(
            "several processes would write one recipe",
            code="recipe-made-by-several-processes",
            field="--data",
            value=str(data[0]),
            remedy="give `reelworks new lora` first and train its recipe, or use --nproc-per-node",
        )
    else:
        from reelworks.quickstart.quickstart import QuickstartOptions

        write(path, QuickstartOptions(model, tuple(data), vram, trigger, weights), json=False)
    return path


def write(path: Path, wishes: QuickstartOptions, *, json: bool) -> QuickstartResult:
    """Make the recipe and print what it is."""
    from reelworks.cli import show, show_new
    from reelworks.quickstart import quickstart

    with show.scan_progress(quiet=json) as on_progress:
        made = quickstart.lora(path, wishes, on_progress)
    show.json(made.to_json() | {"recipe": str(path)}) if json else show_new.made(path, made)
    return made
