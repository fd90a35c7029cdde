"""Requests of recipes for footage: those of `reelworks new lora`, and of `reelworks train --data DIR --model NAME`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reelworks.core import gpus, requests, system, toml
from reelworks.core.errors import UserError
from reelworks.core.gpus import Gpu
from reelworks.core.requests import arg
from reelworks.data.media import formats

MADE_WITH = "made with: "  # begins the comment of a recipe that holds `NewLoraRequest.given`
_MOST_GB = 100_000


def gigabytes(text: str) -> float:
    """Return the number of gigabytes that a text means: 24, 24GB or 24 GiB; raises ValueError for others."""
    number = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:G|GB|GiB)?\s*", text, re.IGNORECASE)
    if number is None or not 1 <= float(number[1]) <= _MOST_GB:
        raise ValueError(f"{text!r} is not a number of gigabytes, such as 24, from 1 to {_MOST_GB:,}")
    return float(number[1])


@dataclass(frozen=True, kw_only=True)
class FootageRequest:
    """Footage and a model to train on it.

    Attributes:
        data: A folder or list of pictures and clips; may be given several times.
        model: A model, such as flux-dev, or a family, such as wan.
        vram_gb: GPU memory that settings are chosen to fit; default: that of this machine's GPU.
        trigger: A rare word that is put before captions without it, and that is the caption of clips without one.
        weights: Weights to use in place of the published ones.
    """

    data: tuple[Path, ...] = arg((), metavar="DIR")
    model: str | None = arg(None, metavar="NAME")
    vram_gb: float | None = arg(None, names=("--vram",), metavar="GB", parse=gigabytes)
    trigger: str | None = arg(None, metavar="WORD")
    weights: str | None = arg(None, metavar="PATH|HUB")


@dataclass(frozen=True, kw_only=True)
class NewLoraRequest(FootageRequest):
    """A recipe for a LoRA; without footage it has a placeholder.

    Attributes:
        control: Controls of the clips of --data, by name.
        source: Sources of the edits in --data, by name; repeatable, in order.
        mask: Masks of what is generated in --data, by name.
        rank: Rank of the LoRA; default: 16.
        steps: Optimizer steps; default: epochs that follow from the number of clips.
        resolution: Side of a square, or a size such as 480p; given several times, each clip is trained at all in every
            epoch. Default: what most clips fill, of several the model was released for all.
        output: Default: DIR-MODEL.toml in the current folder.
        force: Overwrite an existing recipe.
    """

    model: str = arg(..., metavar="NAME")
    control: Path | None = arg(None, metavar="DIR")
    source: tuple[Path, ...] = arg((), metavar="DIR")
    mask: Path | None = arg(None, metavar="DIR")
    rank: int | None = arg(None, least=1)
    steps: int | None = arg(None, least=1)
    resolution: tuple[str, ...] = arg((), metavar="SIDE|SIZE")
    overrides: tuple[str, ...] = arg((), requests.OVERRIDES, names=("--set",), metavar="A.B=V")
    gpu: str | None = arg(None, f"{gpus.OPTION_HELP}; with its memory, unless --vram tells another.", metavar="NAME")
    output: Path | None = arg(None, names=("--output", "-o"), metavar="RECIPE")
    force: bool = arg(False)

    def __post_init__(self) -> None:
        with requests.checked(self):
            if self.trigger is not None and not self.trigger.strip():
                raise UserError(
                    "the word is empty",
                    code="empty-trigger",
                    field="trigger",
                    remedy="choose a rare word, or leave the option out",
                )
            assert self.preset  # an unknown model is refused
            assert self.named_gpu or self.gpu is None  # and so is an unknown GPU
            for folder in self.data:
                if not folder.is_dir() and not (folder.is_file() and formats.is_list(folder)):
                    raise UserError(
                        "this is a file, not a folder" if folder.exists() else "there is no such folder",
                        code="no-such-folder",
                        field="data",
                        value=str(folder),
                        remedy=f"give the folder that holds the videos and pictures, or a list of them ({formats.LISTS_TOLD})",
                    )
            require_new_recipe(self.path, force=self.force)

    @property
    def preset(self) -> str:
        """Name of the model; raises `UserError` if there is none of this name."""
        from reelworks.models import registry  # slow to import

        return registry.preset_name(self.model)

    @property
    def named_gpu(self) -> Gpu | None:
        """The GPU that --gpu names; raises `UserError` if it is not known."""
        return None if self.gpu is None else gpus.of_name(self.gpu)

    @property
    def path(self) -> Path:
        """File of the recipe."""
        return self.output or Path(f"{self.data[0].resolve().name if self.data else 'lora'}-{self.preset}.toml")

    @property
    def given(self) -> dict[str, list[str]]:
        """Values of the options that were given, but for those of the recipe's file."""
        options = [arg for arg in requests.args_of(NewLoraRequest) if arg.name not in ("output", "force")]
        values = [(arg.shown, getattr(self, arg.name)) for arg in options if getattr(self, arg.name) not in (None, ())]
        return {name: [*map(str, value if isinstance(value, tuple) else (value,))] for name, value in values}

    def require_made_with(self) -> None:
        """Refuse a recipe of this name, however it was edited since, that was made with other options than are given.

        Raises:
            UserError: It was, or does not tell.
        """
        told = re.search(f"^# {MADE_WITH}(.*)", self.path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        made: dict[str, list[str]] = {}
        with contextlib.suppress(toml.TomlError):
            made = toml.parse(f"options = {told[1]}")["options"] if told else {}
        for name, values in self.given.items():
            then = made.get(name, [])
            # A model has several names, and the file has that of its preset. Paths are compared as such.
            if name != "--model" and [Path(one).resolve() for one in values] != [Path(one).resolve() for one in then]:
                how = f"it was made with {_words({name: then})}" if then else f"it was made without {name}"
                raise UserError(
                    f"{self.path} is another recipe: {how}"
                    if made
                    else f"{self.path} may be another recipe: no comment tells what it was made with",
                    code="recipe-of-other-options",
                    field=name,
                    value=", ".join(values),
                    remedy=f"for a recipe and a run beside it: reelworks new lora {_words(self.given)} -o other.toml; "
                    f"to train it as it is: reelworks train {system.quoted(str(self.path))}",
                )

    @property
    def companions(self) -> dict[str, str | list[str]]:
        """Folders of companions by their kind."""
        source = [str(folder) for folder in self.source]
        found = {
            "control": self.control,
            "mask": self.mask,
            "source": source[0] if len(source) == 1 else source or None,
        }
        return {kind: each if isinstance(each, list) else str(each) for kind, each in found.items() if each is not None}


def _words(options: Mapping[str, Sequence[str]]) -> str:
    words = [word for name, values in options.items() for one in values for word in (name, one)]
    return " ".join(map(system.quoted, words))


def require_new_recipe(path: Path, *, force: bool, kept: Sequence[Path] = ()) -> None:
    """Refuse to overwrite a recipe without `force`, and files that are to be kept."""
    is_kept = path.resolve() in [file.resolve() for file in kept]
    if is_kept or (path.exists() and not force):
        raise UserError(
            "it would overwrite what is imported" if is_kept else "the recipe exists already",
            code="file-exists",
            field="output",
            value=str(path),
            remedy="give another name with -o" + ("" if is_kept else ", or --force to overwrite it"),
        )
