"""The request of `reelworks import`: files of another trainer, and what they do not tell."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reelworks.core import requests
from reelworks.core.errors import UserError
from reelworks.core.requests import arg
from reelworks.quickstart.request import require_new_recipe


@dataclass(frozen=True, kw_only=True)
class ImportRequest:
    """A config of another trainer to convert to a recipe.

    Attributes:
        files: Config, dataset config or script of a trainer; several if one does not name the other.
        command: The command line that the trainer was started with, as one text.
        trainer: Whose files they are: ai-toolkit, diffusion-pipe, musubi-tuner, onetrainer, opensora, sd-scripts or
            simpletuner; default: recognised by their keys.
        data: Folders or lists in place of those of the config, in its order; repeatable.
        model: A model in place of the one that the config names.
        probability: Meaning of bucket_config's probabilities, if the model does not tell: opensora-1.2, opensora-2.0 or
            downgrade.
        clips: Scan the folders, and tell what the trainer does with each clip.
        output: The recipe to write, a new file; default: NAME.toml.
        force: Overwrite an existing recipe.
    """

    files: tuple[Path, ...] = arg((), is_option=False)
    command: str | None = arg(None, metavar="TEXT")
    trainer: str | None = arg(None, names=("--from",), metavar="NAME")
    data: tuple[Path, ...] = arg((), metavar="DIR")
    model: str | None = arg(None, metavar="NAME")
    probability: str | None = arg(None, metavar="MEANING")
    clips: bool = arg(True, names=("--clips/--no-clips",))
    output: Path | None = arg(None, names=("--output", "-o"), metavar="RECIPE")
    force: bool = arg(False)

    def __post_init__(self) -> None:
        with requests.checked(self):
            if not self.files and self.command is None:
                raise UserError(
                    "there is nothing to import",
                    code="nothing-to-import",
                    field="files",
                    remedy="give a config, or --command with the command line",
                )
            require_new_recipe(self.path, force=self.force, kept=self.files)

    @property
    def path(self) -> Path:
        """File of the recipe."""
        if self.output is not None:
            return self.output
        stem = self.files[0].stem if self.files else "imported"
        return Path(f"{stem}.toml") if Path(f"{stem}.toml") not in self.files else Path(f"{stem}-reelworks.toml")
