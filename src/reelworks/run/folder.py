"""Layout of a run folder."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reelworks.core import digests, files
from reelworks.core.errors import UserError

FORMAT_VERSION = 1


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run; reading them creates nothing."""

    path: Path

    @property
    def info_file(self) -> Path:
        """`run.json`: format, identity and the values frozen at the run's start."""
        return self.path / "run.json"

    @property
    def recipe_file(self) -> Path:
        """The resolved recipe of the latest start."""
        return self.path / "recipe.toml"

    @property
    def recipes_folder(self) -> Path:
        """The resolved recipe of every start, with copies of its exclude list and costs, named by digests."""
        return self.path / "recipes"

    @property
    def environment_file(self) -> Path:
        """Versions, machine and thread count of the latest start."""
        return self.path / "environment.json"

    @property
    def plan_folder(self) -> Path:
        """Plans as arrays, and the summary that reports show."""
        return self.path / "plan"

    @property
    def events_file(self) -> Path:
        """All events, metrics included; append-only JSON lines."""
        return self.path / "events.jsonl"

    @property
    def coverage_folder(self) -> Path:
        """Records of segments, copies of their catalogs, and failures by epoch."""
        return self.path / "coverage"

    @property
    def tensorboard_folder(self) -> Path:
        """TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def samples_folder(self) -> Path:
        """Videos and images generated on schedule, such as `step-000000100/00.mp4`."""
        return self.path / "samples"

    @property
    def checkpoints_folder(self) -> Path:
        """Checkpoints; only the checkpoint package writes here."""
        return self.path / "checkpoints"

    @property
    def exports_folder(self) -> Path:
        """Exported weights for inference, written along with checkpoints."""
        return self.path / "exports"

    @property
    def report_file(self) -> Path:
        """The report as one HTML file."""
        return self.path / "report.html"

    @property
    def save_file(self) -> Path:
        """File whose creation requests a checkpoint from a running training."""
        return self.path / "save"

    @property
    def lock_file(self) -> Path:
        """Lock file held by the training process."""
        return self.path / ".lock"

    @property
    def exists(self) -> bool:
        """True once `create` has finished."""
        return self.info_file.is_file()

    def create(self, frozen: dict[str, Any]) -> None:
        """Create the folder, and write `run.json` last, with the values that stay fixed for the run's life.

        Args:
            frozen: Values that later starts read back, such as `micro_batches_per_step`.

        Raises:
            UserError: The folder cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for folder in (self.plan_folder, self.coverage_folder, self.samples_folder):
                folder.mkdir(exist_ok=True)
            info = {"format": FORMAT_VERSION, "id": uuid.uuid4().hex, "created": time.time(), **frozen}
            files.write_json(self.info_file, info)
        except OSError as error:
            raise UserError(
                f"the run folder cannot be written ({error.strerror})",
                code="file-unwritable",
                field="output",
                value=str(self.path),
                remedy="choose a folder you may write to with --output DIR, or fix its permissions",
            ) from error

    def keep_recipe(self, text: str) -> str:
        """Store a start's resolved recipe, without overwriting those of former starts.

        Returns:
            The name of its file below `recipes/`, equal for equal texts.
        """
        name = f"recipe-{digests.digest_bytes(text.encode())[:8]}.toml"
        self.recipes_folder.mkdir(exist_ok=True)
        files.write_bytes(self.recipes_folder / name, text.encode())
        files.write_bytes(self.recipe_file, text.encode())
        return name

    def keep_input(self, name: str, text: str) -> str:
        """Store a copy of a file that a recipe names, next to the recipes.

        Args:
            name: Name of the copy, such as "exclude.txt"; a digest of the text is inserted before its suffix.
            text: Content of the file.

        Returns:
            The name of the copy below `recipes/`, equal for equal texts.
        """
        file = Path(name)
        copy = f"{file.stem}-{digests.digest_bytes(text.encode())[:8]}{file.suffix}"
        self.recipes_folder.mkdir(exist_ok=True)
        if not (self.recipes_folder / copy).exists():
            files.write_bytes(self.recipes_folder / copy, text.encode())
        return copy

    def refreeze(self, frozen: dict[str, Any]) -> None:
        """Replace the values that `create` froze, keeping the run's identity."""
        files.write_json(self.info_file, {**self.info(), **frozen})

    def info(self) -> dict[str, Any]:
        """Read `run.json`.

        Raises:
            UserError: There is no run in the folder, or a newer Reelworks wrote it.
        """
        try:
            info: dict[str, Any] = json.loads(self.info_file.read_text())
            newer = info["format"] > FORMAT_VERSION
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                "there is no run in this folder",
                code="no-run",
                field="RUN",
                value=str(self.path),
                remedy='pass the folder that is the "output" of a recipe',
            ) from error
        if newer:
            raise UserError(
                f"the run has format {info['format']}, this version of Reelworks reads formats up to {FORMAT_VERSION}",
                code="run-too-new",
                field="RUN",
                value=str(self.path),
                remedy="update Reelworks",
            )
        return info
