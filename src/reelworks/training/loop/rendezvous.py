"""Check that the ranks of a training fit together, before any of them begins to work."""

from __future__ import annotations

import socket
import time
import uuid
from pathlib import Path
from typing import Any

import torch

from reelworks.core import digests, version
from reelworks.core.errors import UserError
from reelworks.data.distributed import collectives
from reelworks.data.distributed.collectives import RanksFailed
from reelworks.data.distributed.mesh import World
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe

# A network file system may show a new file to other machines only after its cache has expired.
_PATIENCE_SECONDS = 10.0


def facts(recipe: Recipe) -> dict[str, str]:
    """Return what must be equal on all ranks: code, torch, and the recipe with its overrides."""
    root = Path(version.__file__).parents[1]
    code = b"\0".join(
        f"{file.relative_to(root).as_posix()}\n".encode() + file.read_bytes() for file in sorted(root.rglob("*.py"))
    )
    return {
        # Two checkouts of one version differ in their source.
        "version of reelworks": f"{version.__version__} ({digests.digest_bytes(code)[:12]})",
        "version of torch": str(torch.__version__),
        "recipe": digests.digest_bytes(recipe_file.dump(recipe).encode())[:12],
    }


def require_shared_folder(folder: Path, world: World) -> None:
    """Check that all ranks see the run folder of rank 0, by a file that it writes there. Collective.

    Raises:
        UserError: On all ranks, with the ranks and machines that do not see the file.
    """
    if world.size == 1:
        return
    token = folder / str(world.broadcast(f".seen-by-all-ranks-{uuid.uuid4().hex}"))

    def write() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        token.touch()

    try:
        collectives.on_first(write)
    except RanksFailed as error:
        raise UserError(
            f"the folder cannot be written ({error})",
            code="file-unwritable",
            field="output",
            value=str(folder),
            remedy="choose a folder you may write to with --output DIR, or fix its permissions",
        ) from error
    seen: list[Any] = world.gather((world.rank, socket.gethostname(), _appears(token)))
    blind = [(rank, host) for rank, host, sees in seen if not sees]
    if world.is_main:
        token.unlink(missing_ok=True)
    if blind:
        hosts: dict[str, list[int]] = {}
        for rank, host in blind:
            hosts.setdefault(host, []).append(rank)
        where = "; ".join(f"rank {', '.join(map(str, ranks))} on {host}" for host, ranks in hosts.items())
        raise UserError(
            f"{where} cannot see the run folder of rank 0: it is another folder there",
            code="run-folder-not-shared",
            field="output",
            value=str(folder),
            remedy="set it to a folder of a file system that all machines mount at the same path",
        )


def _appears(file: Path) -> bool:
    until = time.monotonic() + _PATIENCE_SECONDS
    while not file.exists():
        if time.monotonic() > until:
            return False
        # Listing a folder makes network file systems look again.
        list(file.parent.glob(".seen-by-all-ranks-*"))
        time.sleep(0.1)
    return True
