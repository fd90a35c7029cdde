"""Ranks that do not fit together end before they begin, with a sentence that names them."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import children

from reelworks.core.errors import UserError


def _in_a_folder_of_its_own(recipe: dict[str, Any]) -> None:
    """Join with a relative run folder, which is another one on each rank, as without a shared file system."""
    from reelworks.data.distributed import mesh
    from reelworks.training.loop import rendezvous

    rendezvous._PATIENCE_SECONDS = 0.3
    own = Path(recipe["output"] + os.environ["RANK"])
    own.mkdir()
    os.chdir(own)
    with mesh.join(facts=lambda: {"recipe": "equal"}) as world:
        try:
            rendezvous.require_shared_folder(Path("run"), world)
        except UserError as error:
            print(f"{world.rank} {error.code}: {error.problem}", flush=True)
        left = list(Path("run").glob("*"))
        rendezvous.require_shared_folder(Path(recipe["output"]), world)
        assert left == [], "the token is removed"
        world.wait()


def test_a_run_folder_that_some_ranks_do_not_see_is_refused(tiny):
    recipe = tiny()
    assert children.on_ranks(_in_a_folder_of_its_own, recipe, world=3) == [0] * 3, children.output(recipe)
    told = children.output(recipe)
    for rank in range(3):
        assert (
            f"{rank} run-folder-not-shared: rank 1, 2 on {socket.gethostname()} cannot see the run folder of rank 0"
            in told
        )


def _with_another_rate(recipe: dict[str, Any]) -> None:
    recipe["train"]["learning_rate"] *= 1 + int(os.environ["RANK"])
    children._child(recipe, None, {})


def test_another_recipe_on_a_rank_is_refused(tiny, tmp_path):
    recipe = tiny()
    assert 0 not in children.on_ranks(_with_another_rate, recipe, world=2)
    assert "has another recipe than rank 0" in children.output(recipe)
    assert not (tmp_path / "run").exists()
