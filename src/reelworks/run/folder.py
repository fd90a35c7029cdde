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
    """Paths of a run; nothing is created by looking."""

    path: Path

    @property
    def info_file(self) -> Path:
        """`run.json`: format, identity and what is frozen at the run's start."""
        return self.path / "run.json"

    @property
    def recipe_file(self) -> Path:
        """The resolved recipe of the latest start."""
        return self.path / "recipe.toml"

    @property
    def recipes_folder(self) -> Path:
        """Every resolved recipe that a start went by, and what its exclude list and costs said, named by digests."""
        return self.path / "recipes"

    @property
    def environment_file(self) -> Path:
        """Versions, machine and thread count of the latest start."""
        return self.path / "environment.json"

    @property
    def plan_folder(self) -> Path:
        """Plans as arrays and the summary that reports draw."""
        return self.path / "plan"

    @property
    def events_file(self) -> Path:
        """All events, metrics included; append-only JSON lines."""
        return self.path / "events.jsonl"

    @property
    def coverage_folder(self) -> Path:
        """Records of segments, the catalogs that they speak of, and failures by epoch."""
        return self.path / "coverage"

    @property
    def tensorboard_folder(self) -> Path:
        """TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def samples_folder(self) -> Path:
        """Clips and pictures generated on schedule, `step-000000100/00.mp4`."""
        return self.path / "samples"

    @property
    def checkpoints_folder(self) -> Path:
        """Checkpoints; only the checkpoint package writes here."""
        return self.path / "checkpoints"

    @property
    def exports_folder(self) -> Path:
        """Weights for use, written along with checkpoints."""
        return self.path / "exports"

    @property
    def report_file(self) -> Path:
        """The report as one HTML file."""
        return self.path / "report.html"

    @property
    def save_file(self) -> Path:
        """A file by which a person asks a running training to save."""
        return self.path / "save"

    @property
    def lock_file(self) -> Path:
        """Held by the process that trains."""
        return self.path / ".lock"

    @property
    def exists(self) -> bool:
        """True once `create` has finished."""
        return self.info_file.is_file()

    def create(self, frozen: dict[str, Any]) -> None:
        """Make the folder and write `run.json`, last, with what stays fixed for the run's life.

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
                remedy="choose a folder you may write to with --output DIR, or mend its permissions",
            ) from error

    def keep_recipe(self, text: str) -> str:
        """Write a start's resolved recipe, beside those of former starts.

        Returns:
            The name of its file below `recipes/`, the same for the same text.
        """
        name = f"recipe-{digests.digest_bytes(text.encode())[:8]}.toml"
        self.recipes_folder.mkdir(exist_ok=True)
        files.write_bytes(self.recipes_folder / name, text.encode())
        files.write_bytes(self.recipe_file, text.encode())
        return name

    def keep_input(self, name: str, text: str) -> str:
        """Keep what a file said that a recipe names, beside the recipes.

        Args:
            name: Of the copy, such as "exclude.txt"; a digest of the text is put before its suffix.
            text: What the file said.

        Returns:
            The name of the copy below `recipes/`, the same for the same text.
        """
        file = Path(name)
        kept = f"{file.stem}-{digests.digest_bytes(text.encode())[:8]}{file.suffix}"
        self.recipes_folder.mkdir(exist_ok=True)
        if not (self.recipes_folder / kept).exists():
            files.write_bytes(self.recipes_folder / kept, text.encode())
        return kept

    def refreeze(self, frozen: dict[str, Any]) -> None:
        """Replace what `create` froze, keeping the run's identity."""
        files.write_json(self.info_file, {**self.info(), **frozen})

    def info(self) -> dict[str, Any]:
        """Read `run.json`.

        Raises:
            UserError: There is no run here, or a newer Reelworks wrote it.
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
                remedy='give the folder that a recipe names as "output"',
            ) from error
        if newer:
            raise UserError(
                f"the run has format {info['format']}, this version reads up to {FORMAT_VERSION}",
                code="run-too-new",
                field="RUN",
                value=str(self.path),
                remedy="update Reelworks",
            )
        return info
