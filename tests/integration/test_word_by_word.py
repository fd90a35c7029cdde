"""The commands of `docs/start` and `docs/how-to` do what the pages say: they are typed as they stand there, in their order.

Whatever a page tells to type is run, and whatever it says is printed is compared, but for the lines below.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import page_readers
import pages
import pytest
from pages import Printed, Typed
from reader import Reader

PAGES = [
    page
    for page in sorted(
        path.relative_to(pages.ROOT).as_posix()
        for folder in ("docs/start", "docs/how-to")
        for path in (pages.ROOT / folder).glob("*.md")
    )
    if pages.steps(page)
]
RAY = "Ray is not among the packages of the tests; test_ray_engine runs with it"
# Lines that are not typed here, and why.
NOT_TYPED: dict[str, dict[str, str]] = {
    "docs/start/first-run.md": {
        "make demo": "creates .venv from a package index; test_distribution runs it from a wheel",
        "make install": "creates .venv from a package index",
        ". .venv/bin/activate": "the environment of the tests is active already",
        "reelworks --install-completion": "writes to the settings of the shell that the tests were started from",
    },
    "docs/how-to/install.md": dict.fromkeys(
        (
            'pip install -c constraints.txt ".[all]"',
            "uv sync --extra all",
            "uv run reelworks demo",
            'uv pip install --torch-backend cpu -c constraints.txt ".[all]"',
            "reelworks doctor",
            "docker compose -f containers/compose.yaml up --build",
            "export WORKSPACE=/workspace PORT=8384",
            "bash containers/start.sh",
        ),
        "installs from a package index, starts a container, or looks at the machine; test_containers and test_doctor do it",
    ),
    "docs/how-to/add-a-model.md": dict.fromkeys(
        (
            'python -m pytest -p no:cacheprovider -m "" tests/contract -k auraflow-tiny',
            "python scripts/models_page.py > docs/reference/models.md",
            "python scripts/generate_reference.py",
        ),
        "test_add_a_model types them in a copy of the project",
    ),
    "docs/how-to/come-from-open-sora.md": {"reelworks generate --reference FILE": "names an option"},
    "docs/how-to/evaluate.md": {
        "cd VBench && python evaluate.py --videos_path ../vbench --dimension subject_consistency ...": (
            "VBench is a program of its own, with gigabytes of models"
        )
    },
    "docs/how-to/move-here.md": {'pip install ".[import]"': "installs from a package index"},
    "docs/how-to/read-from-archives-and-buckets.md": {
        "reelworks unpack hf://datasets/user/name -o pictures": "names a dataset of the hub; test_unpack has such files"
    },
    "docs/how-to/store-latents.md": {"reelworks encode recipe.toml --engine ray": RAY},
    "docs/how-to/train-a-lora.md": {
        "reelworks new lora --weights FILE": "names an option",
        "reelworks generate runs/mug": "names a run, without a prompt",
    },
    "docs/how-to/train-with-sound.md": {"reelworks plan --rejected": "names an option"},
    "docs/how-to/use-a-ray-cluster.md": {
        "pip install '.[ray]'": "installs from a package index",
        "ray start --head": RAY,
        "export RAY_ADDRESS=10.0.0.1:6379": RAY,
        "reelworks scan /data/footage -o catalog --engine ray": RAY,
        "reelworks encode recipe.toml --engine ray": RAY,
        "reelworks encode recipe.toml": "store-latents.md has it too",
    },
    "docs/how-to/use-the-library.md": {
        'pip install numpy psutil pyarrow "av>=18.1,<19" pillow pydantic xxhash fsspec torch': "installs from a package index",
        "pip install --no-deps .": "installs from a package index",
    },
    "docs/how-to/use-the-page.md": {
        'pip install ".[page]"': "installs from a package index",
        "reelworks ui . /data/footage": "names a folder at the root of the disk",
    },
    "docs/how-to/watch-a-run.md": {"reelworks train --debug": "names an option"},
    "docs/how-to/write-an-annex.md": {"reelworks --help": "names an option"},
}
# Blocks that are not compared, by their first line, and why.
NOT_COMPARED: dict[str, dict[str, str]] = {
    "docs/how-to/choose-a-checkpoint.md": {
        "step   loss ↓  likeness-pixels ↑  closeness-pixels ↓": "twelve checkpoints of benchmarks.best_checkpoint"
    },
    "docs/how-to/companions.md": {
        "shots/photos/a.jpg     shots/photos/a.txt      shots/photos/night/b.png": "a layout of files, which the reader has"
    },
    "docs/how-to/read-from-archives-and-buckets.md": {
        "shards/000000.tar     000017.mp4   000017.txt     the caption": "a layout of files"
    },
    "docs/how-to/several-gpus.md": {
        "16 ranks share one copy of the weights (fsdp): all weights are trained": "what is chosen on sixteen GPUs",
        "error: parallel: rank 5 on node-1 has another recipe than rank 0: 91f05c1fa0b2 instead of 5c37f2f6a4fd": (
            "several machines; test_rendezvous has them as processes"
        ),
        "error: rank 3 on node-1 was lost at step 1207, in a forward and backward pass (clips: a.mp4, b.mp4): it was killed, or its": (
            "several machines; test_lost_ranks has them as processes"
        ),
    },
}
# Blocks whose numbers depend on the machine, by their first line.
LOOSE: dict[str, set[str]] = {
    "docs/start/first-run.md": {"training recipes/first-run.toml in runs/first"},
    "docs/how-to/evaluate.md": {"Loss by bucket and timestep:"},
    "docs/how-to/loss-spikes.md": {
        "warning: step 1204: its loss 7.913 is far above the recent 0.4127 (bucket 480p 16:9 ×49); largest losses: …/shots/0112.mp4 (24.1),"
    },
    "docs/how-to/publish.md": {"README.md  1.3 kB"},
    "docs/how-to/lora-files.md": {"20 layers, rank 1 to 2, norm 3.04, relative error 12.5%"},
    "docs/how-to/mirror.md": {"fetching the checkpoint of step 12000 (4.13 GB) from s3://bucket/runs/first"},
    "docs/how-to/resume-after-changes.md": {
        "resumed from step 8, epoch 0, plan step 0",
        "resumed from step 10, epoch 0, plan step 2",
        'dataset `a` seems to be `b` now: 383 clips are the same files; clips already trained in this epoch are not trained again (set data.renamed_clips = "new" to train them)',
        "checkpoint of step 103 is set aside as .aside-step-000000103-ea0f30be0ed4",
    },
    "docs/how-to/watch-a-run.md": {
        "step 1200/5000  loss 0.4127  1.83 s/it  lr 1e-4  61.3 GB  4.4 clips/s  480p 16:9 ×49 +1  ETA 1:55:54"
    },
}


@pytest.mark.parametrize("page", PAGES)
def test_each_line_of_a_terminal_is_a_command(page: str) -> None:
    """What is printed stands in blocks of `text`, so that no line of either kind is overlooked."""
    lines = [step.line for step in pages.steps(page) if isinstance(step, Typed)]
    assert [line for line in lines if line.split()[0] not in pages.PROGRAMS] == []


@pytest.mark.parametrize("page", PAGES)
def test_each_page_is_read_by_someone(page: str) -> None:
    """A reader types all lines that are not listed; without a reader, all must be listed."""
    left = [
        step
        for step in pages.steps(page)
        if not (isinstance(step, Typed) and step.line in NOT_TYPED.get(page, {}))
        and not (isinstance(step, Printed) and step.lines[0].strip() in NOT_COMPARED.get(page, {}))
    ]
    assert page in page_readers.READERS or not left


def test_exceptions_are_of_lines_that_are_there() -> None:
    steps = {page: pages.steps(page) for page in PAGES}
    typed = {page: {step.line for step in found if isinstance(step, Typed)} for page, found in steps.items()}
    shown = {
        page: {step.lines[0].strip() for step in found if isinstance(step, Printed)} for page, found in steps.items()
    }
    assert {page for page, lines in NOT_TYPED.items() if not lines.keys() <= typed[page]} == set()
    assert {page for page, lines in NOT_COMPARED.items() if not lines.keys() <= shown[page]} == set()
    assert {page for page, lines in LOOSE.items() if not lines <= shown[page]} == set()
    assert set(page_readers.READERS) <= set(PAGES)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> page_readers.Shared:
    folder = tmp_path_factory.mktemp("shared")
    subprocess.run([sys.executable, "-m", "reelworks", "demo-data", "footage"], cwd=folder, check=True)
    return page_readers.Shared(folder)


@pytest.mark.slow  # each line is a process, and many of them train
@pytest.mark.parametrize("page", [page for page in PAGES if page in page_readers.READERS])
def test_a_page_is_followed_word_by_word(page: str, shared: page_readers.Shared, tmp_path: Path) -> None:
    reader = Reader(
        page,
        tmp_path,
        not_typed=set(NOT_TYPED.get(page, {})),
        not_printed=set(NOT_COMPARED.get(page, {})),
        loose=LOOSE.get(page, set()),
    )
    page_readers.READERS[page](reader, shared)
    reader.reads()
