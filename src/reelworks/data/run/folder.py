"""Layout of a run folder."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from reelworks.core import digests, files, user_files
from reelworks.core.config import Config
from reelworks.core.errors import UserError

FORMAT_VERSION = 3


class RunInfo(Config):
    """Content of `run.json`.

    Attributes:
        id: Identifier of the run, the same at all starts.
        created: Seconds since 1970.
        ranks: Data ranks at the run's start, which its first checkpoint fixes.
    """

    format: int = FORMAT_VERSION
    id: str = Field(min_length=1)
    created: float
    ranks: int = Field(ge=1)


class _Below:
    """A path below a run's folder, as an attribute of `RunFolder`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: RunFolder, _: type[RunFolder]) -> Path:
        return run.path / self._name


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run; reading them creates nothing."""

    path: Path

    info_file = _Below("run.json")  # a `RunInfo`
    recipe_file = _Below("recipe.toml")  # the resolved recipe of the latest start, with all stages
    recipes_folder = _Below("recipes")  # those of all starts, with copies of exclude lists and costs, by digest
    environment_file = _Below("environment.json")  # versions, machine and thread count of the latest start
    plan_folder = _Below("plan")  # plans as arrays, and the summary that reports show
    events_file = _Below("events.jsonl")  # all events, metrics included; append-only JSON lines
    coverage_folder = _Below("coverage")  # records of segments, copies of their catalogs, and failures by epoch
    tensorboard_folder = _Below("tensorboard")  # TensorBoard's event files
    samples_folder = _Below("samples")  # videos and images generated on schedule, such as `step-000000100/00.mp4`
    evaluations_folder = _Below("evaluations")  # results of `reelworks eval`
    profiles_folder = _Below("profiles")  # traces of steps and snapshots of GPU memory
    checkpoints_folder = _Below("checkpoints")  # only the checkpoint package writes here
    exports_folder = _Below("exports")  # exported weights for inference, written along with checkpoints
    report_file = _Below("report.html")  # the report as one HTML file
    save_file = _Below("save")  # file whose creation requests a checkpoint from a running training
    lock_file = _Below(".lock")  # held by the training process
    mirror_file = _Below(".mirror")  # tokens by which the run's mirror is known to be that of this folder

    @property
    def exists(self) -> bool:
        """True once `create` has finished."""
        return self.info_file.is_file()

    def require_free(self) -> None:
        """Refuse a folder without a run in which a file of somebody else has a name that a run would write."""
        taken = [file.name for file in (self.recipe_file, self.environment_file, self.events_file) if file.exists()]
        if taken and not self.exists:
            raise UserError(
                f"its {taken[0]} is not that of a run, and a run would replace it",
                code="output-taken",
                field="output",
                value=str(self.path),
                remedy="name a folder for the run alone, as with --output runs/first, or move that file away",
            )

    def create(self, ranks: int = 1) -> None:
        """Create the folder, and write `run.json` last; a run that is there only gets other ranks."""
        with files.writing("output", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            for folder in (self.plan_folder, self.coverage_folder, self.samples_folder):
                folder.mkdir(exist_ok=True)
            new = RunInfo(id=uuid.uuid4().hex, created=time.time(), ranks=ranks)
            self.write_info(self.info().model_copy(update={"ranks": ranks}) if self.exists else new)

    def snapshot_file(self, rank: int) -> Path:
        """Return the file to which a rank writes a snapshot of GPU memory."""
        return self.profiles_folder / f"out-of-memory-rank-{rank}.pickle"

    def summary_file(self, start: int | None = None) -> Path:
        """Return the file of the plan's summary: of the latest start, or of the one that began after a step."""
        return self.plan_folder / ("summary.json" if start is None else f"summary-{start:09d}.json")

    def keep_recipe(self, text: str, whole: str | None = None) -> str:
        """Store a start's resolved recipe beside those of former starts; return its file's name, as `keep_input` does.

        `whole` is the recipe with all stages, if `text` is that of one of them.
        """
        name = self.keep_input("recipe.toml", text)
        files.write_bytes(self.recipe_file, (whole or text).encode())
        return name

    def keep_input(self, name: str, text: str) -> str:
        """Store a copy of a file that a recipe names, such as "exclude.txt", below `recipes/`.

        Returns its name there, which has a digest of the text before the suffix.
        """
        file = Path(name)
        copy = f"{file.stem}-{digests.digest_bytes(text.encode())[:8]}{file.suffix}"
        self.recipes_folder.mkdir(exist_ok=True)
        if not (self.recipes_folder / copy).exists():
            files.write_bytes(self.recipes_folder / copy, text.encode())
        return copy

    def write_info(self, info: RunInfo) -> None:
        """Write `run.json`."""
        files.write_json(self.info_file, info.model_dump())

    def info(self) -> RunInfo:
        """Read `run.json`.

        Raises:
            UserError: There is no run in the folder, or another version of Reelworks wrote it.
        """
        try:
            values = user_files.read_json(self.info_file)
            age = FORMAT_VERSION - values["format"]
            info = None if age else RunInfo.model_validate(values)
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem, remedy = "there is no run in this folder", 'pass the folder that is the "output" of a recipe'
            if not isinstance(error, OSError):
                problem, remedy = "its run.json is damaged", "bring it back from the mirror of the run, or another copy"
            elif not isinstance(error, FileNotFoundError | NotADirectoryError):
                problem, remedy = f"its run.json cannot be read ({error.strerror})", "let this user read it"
            raise UserError(problem, code="no-run", field="RUN", value=str(self.path), remedy=remedy) from error
        if info is None:
            raise UserError(
                f"the run has format {values['format']}, and this version of Reelworks reads format {FORMAT_VERSION}",
                code="run-of-another-version",
                field="RUN",
                value=str(self.path),
                remedy="update Reelworks" if age < 0 else "use the version that wrote it, or train it anew",
            )
        return info
