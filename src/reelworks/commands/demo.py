"""`reelworks demo`: every step from footage to report, on footage that it makes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from reelworks.commands import show
from reelworks.commands.exit_codes import ExitCode
from reelworks.commands.options import Json
from reelworks.core import units


def demo(
    quick: Annotated[bool, Option("--quick")] = False, seed: Annotated[int, Option()] = 42, json: Json = False
) -> None:
    """Make footage, train on it, interrupt, resume, generate and report, in a folder demo/.

    Downloads nothing; takes some minutes on two cores. Prints a summary, and ends with code 1 if the model did not
    learn.

    Args:
        quick: Take a minute, for a look: without the kill, and too short to learn motion and shapes.
        seed: Seed of the trainings.
    """
    from reelworks.demo import walkthrough

    with show.stdout_for_json(json):
        result = walkthrough.main(quick=quick, seed=seed)
    if json:
        show.json(result)
    raise Exit(ExitCode.DONE if all(result.checks.values()) else ExitCode.FAILED)


def demo_data(
    folder: Annotated[Path, Argument(metavar="DIR")], seed: Annotated[int, Option()] = 0, json: Json = False
) -> None:
    """Make about 350 captioned clips and pictures as sample footage, some of them damaged.

    Args:
        folder: A new or empty folder.
        seed: Seed of the footage.
    """
    from reelworks.demo import make

    summary = make.make(folder, seed=seed)
    if json:
        show.json(summary)
        return
    show.line(
        f"{folder}: {len(summary.videos)} clips, {len(summary.pictures)} pictures and {len(summary.bad)} "
        f"damaged or unusable files, {units.size(summary.total_bytes)}"
    )


def demo_autoencoder(
    catalog: Annotated[Path, Argument(metavar="CATALOG")],
    file: Annotated[Path, Argument(metavar="FILE")],
    seed: Annotated[int, Option()] = 0,
    json: Json = False,
) -> None:
    """Fit the demo's autoencoder "pca" to the clips of a catalog, in some seconds.

    Args:
        catalog: A scanned catalog.
        file: Where the weights are written, such as autoencoder.safetensors.
        seed: Seed of the random projection.
    """
    from reelworks.demo import autoencoder

    fitted = autoencoder.fit(catalog, file, seed=seed)
    if json:
        show.json(fitted)
    else:
        show.line(f"{file}: clips held out are decoded at {fitted.psnr_db:.1f} dB")
