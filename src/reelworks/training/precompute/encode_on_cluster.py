"""Encode a recipe's clips and captions by the actors of an engine (`core.executors`), which work on the nodes of a cluster.

This process hands out parts of the work: captions, and numbers of chunks of clips. An actor opens recipe, catalog and store
by itself, which must lie at the same place on every node, and keeps them with encoders and decoding processes from part to
part. It commits to the store and returns what it did. The engine restarts an actor that dies, and repeats its part, of which
only what was not committed is encoded again; each try leaves a byte in the store, so that a part which always kills its actor
ends the command.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from reelworks.core import digests, system
from reelworks.core.errors import UserError, first_few
from reelworks.core.executors import ActorExecutor
from reelworks.data.schedule.cursor import StageStart
from reelworks.training.encoding import encode
from reelworks.training.encoding.encode import Encoding, EncodingForecast
from reelworks.training.encoding.encode_worker import EncodeWorker, Progress
from reelworks.training.plan import plan_forecast
from reelworks.training.precompute import encoding
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe

TRIES = 5
_FOLDER = "cluster"  # of the store; each command has a folder of its own in it
_FORGOTTEN_SECONDS = 7 * 86400.0


@dataclass(frozen=True)
class ClusterJob:
    """A command's encoding, as its actors need it.

    Attributes:
        recipe: With its bucket entries chosen.
        version: Version of its catalog.
        stage: Where the stage begins whose recipe it is.
        limit: Number of clips to encode; None for all.
        working_folder: Folder that the recipe's paths are relative to.
        tries: Folder in the store for the tries of each part, which only a node with the same files sees.
        most_tries: Number of times that a part is begun.
        uses_gpu: Whether an actor has a GPU.
    """

    recipe: Recipe
    version: int
    stage: StageStart
    limit: int | None
    working_folder: str
    tries: str
    most_tries: int
    uses_gpu: bool


@dataclass(frozen=True)
class ClusterPart:
    """Work that is handed to an actor at once: some captions, or a chunk of clips.

    Attributes:
        number, name: Number of the chunk, and its name, by which an actor with other data is found out.
        clips: Clips of the chunk of which something is missing.
    """

    captions: tuple[str, ...] = ()
    number: int = -1
    name: str = ""
    clips: int = 0


def encode_missing(
    data: RecipeData,
    job: Encoding,
    cluster: ActorExecutor,
    *,
    limit: int | None,
    on_progress: Callable[[Progress], None],
) -> tuple[EncodingForecast, Progress]:
    """Say what will be encoded, check the disk's space, and let a cluster's actors encode it.

    Args:
        job: The encoding as `encoding.build_encoding_job` prepares it in this process, with the same `limit`.

    Raises:
        UserError: The disk has too little space, a node does not see the files, or a part cannot be encoded.
    """
    forecast = encoding.announce(job)
    progress = Progress(forecast.clips)
    parts = [ClusterPart(captions=tuple(captions)) for captions in job.captions]
    parts += [ClusterPart((), number, job.chunks[number].name, clips) for number, clips in job.missing_by_chunk.items()]
    if parts:
        with _tries(job.source.store.path) as tries:
            shared = ClusterJob(
                data.recipe,
                len(data.catalog.parts),
                data.stage,
                limit,
                working_folder=str(Path.cwd()),
                tries=str(tries.resolve()),
                most_tries=TRIES,
                uses_gpu=cluster.uses_gpus,
            )
            for text in cluster.run_actors(EncodeActor, shared, [json.dumps(asdict(part)) for part in parts]):
                result = json.loads(text)
                if result["error"] is not None:
                    raise UserError(**result["error"])
                progress.add(result["part"]["clips"], Progress(**result["progress"]))
                on_progress(progress)
        job.source.store.refresh()
        encode.log_failures(progress)
    return forecast, progress


@contextmanager
def _tries(store: Path) -> Iterator[Path]:
    """Make the folder of a command's tries, and remove those that killed commands left."""
    folder = store / _FOLDER
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        if time.time() - old.stat().st_mtime > _FORGOTTEN_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
    mine = folder / uuid.uuid4().hex
    mine.mkdir()
    try:
        yield mine
    finally:
        shutil.rmtree(mine, ignore_errors=True)


class EncodeActor:
    """Encodes one part after the other in a process of a cluster."""

    def __init__(self, job: ClusterJob) -> None:
        self._job = job
        self._opened: tuple[Encoding, EncodeWorker] | None = None

    def __call__(self, text: str) -> str:
        """Encode a part; an error that the user can correct is returned, so that it is shown as such."""
        part = ClusterPart(**json.loads(text))
        progress = Progress(part.clips)
        try:
            self._encode(part, progress)
        except UserError as error:
            return json.dumps(
                {"error": error.to_json() | {"problem": f"on node {socket.gethostname()}: {error.problem}"}}
            )
        return json.dumps({"error": None, "part": asdict(part), "progress": asdict(progress)})

    def _encode(self, part: ClusterPart, progress: Progress) -> None:
        if self._opened is None:
            _require_same_files(self._job)
        _count_try(self._job, part)
        if self._opened is None:
            self._opened = _open(self._job)
        encoding_, worker = self._opened
        if part.captions:
            worker.encode_captions([part.captions], progress, lambda _: None)
            return
        chunk = encoding_.chunks[part.number] if part.number < len(encoding_.chunks) else None
        if chunk is None or chunk.name != part.name:
            raise _unseen(
                "catalog", self._job.recipe.catalog_folder, "another catalog or recipe than the machine of the command"
            )
        worker.encode_clips([chunk], progress, lambda _: None)


def _open(job: ClusterJob) -> tuple[Encoding, EncodeWorker]:
    """Open recipe, catalog and store on the node of this process, with a worker that is never closed but ended."""
    recipe = job.recipe
    if not job.uses_gpu:  # there is an actor for each core
        torch.set_num_threads(1)
        workers = min(recipe.data.num_workers, 1)
        recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"num_workers": workers})})
    data = replace(RecipeData.open(recipe, job.version), stage=job.stage)
    source = encoding.open_store(data)
    device = torch.device("cuda" if job.uses_gpu else "cpu")
    prepared = encoding.build_encoding_job(data, source, device, plan_forecast.plan_spec(data), limit=job.limit)
    return prepared, EncodeWorker(prepared.source, prepared.encoder, prepared.config)


def _require_same_files(job: ClusterJob) -> None:
    """Check that this node sees the files of the command's machine at the same places, and go to its working folder."""
    recipe = job.recipe
    if not Path(job.working_folder).is_dir():
        raise _unseen("working folder", job.working_folder)
    os.chdir(job.working_folder)
    if not Path(job.tries).is_dir():
        raise _unseen("encode.folder", recipe.encoded_folder)
    if not (Path(recipe.catalog_folder) / "catalog.json").is_file():
        raise _unseen("catalog", recipe.catalog_folder)
    for place in (dataset.place for dataset in recipe.dataset):
        if place.url is None and not place.root.exists():
            raise _unseen("dataset.path", str(place.root))


def _count_try(job: ClusterJob, part: ClusterPart) -> None:
    """Note that a part is begun, and refuse one that has been begun too often: it kills its actors."""
    name = part.name or digests.digest_json(part.captions)
    file = os.open(Path(job.tries) / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | system.BINARY, 0o666)
    try:
        os.write(file, b"x")
        tries = os.fstat(file).st_size
    finally:
        os.close(file)
    if tries <= job.most_tries:
        return
    what = f"chunk {part.number} of {part.clips} clips" if part.clips else f"captions {first_few(part.captions)}"
    raise UserError(
        f"its process ended {job.most_tries} times while it encoded {what}; everything else that was done is stored",
        code="encode-actor-died",
        field="--engine",
        remedy="look for the cause, such as too little memory, in the logs of the node's processes, or with --engine "
        "local, which names a clip that ends its decoder; the command goes on where it was",
    )


def _unseen(field: str, path: str, instead: str = "") -> UserError:
    return UserError(
        f"sees {instead}"
        if instead
        else "there is no such folder, or it is another one than on the machine of the command",
        code="node-lacks-folder",
        field=field,
        value=path,
        remedy="mount the folders of data, catalog, store and recipe at the same place on every node",
    )
