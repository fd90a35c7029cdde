"""Ranks of a node that begin, or resume, a run on a large catalog, as far as the requests of their first micro-batch.

Each rank is a process that opens the recipe's data, plans, and asks for its first micro-batch; its files need not exist,
since none is decoded. The parent samples the memory of all ranks until the last of them is there: pages of files that
several ranks map count once, as they do in the machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

WORLD = 8
_EVERY_SECONDS = 0.5


@dataclass(frozen=True)
class Begun:
    """Seconds and bytes until the last rank was there.

    Attributes:
        plan_s, first_s: From the first rank with its libraries imported to the last with the plan, and with a micro-batch.
        start_s: From the start of the processes, which import libraries, on.
        node_peak_bytes: The most of all ranks together, mapped files included.
        node_own_bytes: The same without mapped files, which the system drops and reads again as it needs memory.
        per_rank_bytes: The most that a rank other than the one that planned has of its own, without mapped files.
        planner_bytes: The same of the rank that planned.
        first_uids: Uids of the first micro-batch of each rank.
    """

    plan_s: float
    first_s: float
    start_s: float
    node_peak_bytes: int
    node_own_bytes: int
    per_rank_bytes: int
    planner_bytes: int
    first_uids: list[list[int]]


def begin(recipe: Path, keys: list[str], cursor: Path, *, resume: bool) -> Begun:
    """Start all ranks, which begin the run or `resume` it at the cursor's place, and wait for their first micro-batches."""
    command = [sys.executable, "-m", "benchmarks._ranks", str(recipe), str(cursor), "resume" if resume else "begin"]
    began = time.perf_counter()
    ranks = [
        subprocess.Popen(
            [*command, str(rank), *keys], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        for rank in range(WORLD)
    ]
    # A rank tells when it is there, and stays until all are.
    files = [Path(f"{cursor}.rank-{rank}") for rank in range(WORLD)]
    own, node, node_own = [0] * WORLD, 0, 0
    while not all(file.exists() for file in files):
        if any(rank.poll() is not None for rank in ranks):
            raise RuntimeError("a rank ended early; its error is above")
        seen = [_memory(rank.pid) for rank in ranks]
        own = [max(pair) for pair in zip(own, (anonymous for anonymous, _ in seen), strict=True)]
        node = max(node, sum(shared for _, shared in seen))
        node_own = max(node_own, sum(anonymous for anonymous, _ in seen))
        time.sleep(_EVERY_SECONDS)
    start_s = time.perf_counter() - began
    told = [json.loads(rank.communicate("")[0]) for rank in ranks]
    for file in files:
        file.unlink()
    imported = min(rank["began_at"] for rank in told)
    plan_s, first_s = (max(rank[name] for rank in told) - imported for name in ("planned_at", "first_at"))
    own.sort()
    return Begun(
        round(plan_s, 2),
        round(first_s, 2),
        round(start_s, 2),
        node,
        node_own,
        own[-2],
        own[-1],
        [rank["uids"] for rank in told],
    )


def _memory(pid: int) -> tuple[int, int]:
    """Return the anonymous bytes of a process, and all of its bytes, of which shared ones count by their share."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]
    except (OSError, ProcessLookupError):
        return 0, 0
    kb = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return kb["Anonymous"] * 1024, kb["Pss"] * 1024


def _rank(recipe: Path, cursor: Path, how: str, rank: int, keys: list[str]) -> None:
    from reelworks.core import optional_imports

    optional_imports.leave_out_unused()  # as commands do
    from reelworks.data.loader import position, resume
    from reelworks.data.loader.step_source import StepSource
    from reelworks.data.run.folder import RunFolder
    from reelworks.data.schedule.cursor import Aliases, Cursor, Excluded
    from reelworks.training.recipe import recipe_file
    from reelworks.training.recipe.dataset import RecipeData

    began = time.time()
    loaded = recipe_file.load(recipe, keys)
    run = RunFolder(Path(loaded.output))
    data = replace(RecipeData.open(loaded), run=run)
    spec = data.plan_spec(WORLD, WORLD)
    if how == "begin":
        at, _ = position.next_epoch(data, spec, None)
    else:
        stored = Cursor(**json.loads(cursor.read_text(encoding="utf-8")))
        at, _ = resume.resume(data, spec, run, stored, Excluded(), Aliases())
    at.plan.digest()  # which ranks compare
    planned = time.time()
    if rank:
        data.forget_planning()
    request = next(StepSource(data, rank, WORLD).requests_from(at))
    first = time.time()
    if how == "begin" and rank == 0:
        later = replace(at, plan_step=at.plan.num_steps // 2)
        cursor.write_text(json.dumps(asdict(later.to_cursor(data))), encoding="utf-8")
    Path(f"{cursor}.rank-{rank}").touch()
    sys.stdin.read()
    print(json.dumps({"began_at": began, "planned_at": planned, "first_at": first, "uids": request.uids.tolist()}))


if __name__ == "__main__":
    _rank(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5:])
