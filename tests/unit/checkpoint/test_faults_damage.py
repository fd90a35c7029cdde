"""Five hundred ways to damage a checkpoint: none is loaded as if it were good."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import one_save
import pytest
from checkpoint_helpers import assert_equal, save, state
from refused import refused

from reelworks.core import digests
from reelworks.data.checkpoint import manifest
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.store import CheckpointStore
from reelworks.data.checkpoint.verify import newest_valid, verify

FILES = ("tensors/rank-00000.safetensors", "state.json", "cursor.json", "excluded.npy", manifest.FILE_NAME)
FLIPS_PER_FILE = 120
Damage = tuple[str, Callable[[Path], None]]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good checkpoints of steps 10 and 20."""
    root = tmp_path_factory.mktemp("template")
    for step in (10, 20):
        save(CheckpointFolder(root), step)
    return root


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Give a file other content; the template shares the old one by a hard link."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(change(data))


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def damages(template: Path) -> Iterator[Damage]:
    """What is done to the folder of step 20."""
    chance = random.Random(0)
    for name in FILES:
        size = (template / "step-000000020" / name).stat().st_size
        changes: dict[str, Callable[[bytes], bytes]] = {
            f"cut to {n} bytes": lambda data, n=n: data[:n] for n in {0, 1, size // 2, size - 1}
        }
        changes |= {
            f"zeros from byte {n} on": lambda data, n=n: data[:n] + bytes(len(data) - n)
            for n in {0, size // 2, size - 1}
        }
        changes["grown"] = lambda data: data + b"\0"
        bits = chance.sample(range(8 * size), min(FLIPS_PER_FILE, 8 * size))
        changes |= {f"bit {bit} flipped": lambda data, bit=bit: flipped(data, bit) for bit in bits}
        for what, change in changes.items():
            yield f"{name} {what}", lambda folder, name=name, change=change: rewrite(folder / name, change)
        yield f"{name} deleted", lambda folder, name=name: (folder / name).unlink()
        yield f"{name} a folder", lambda folder, name=name: become_folder(folder / name)
        yield f"{name} swapped with step 10's", lambda folder, name=name: swap(folder, name)
    for what, edit in EDITS.items():
        yield f"manifest with {what}", lambda folder, edit=edit: edit_manifest(folder, edit, resealed=False)
        yield (f"sealed manifest with {what}", lambda folder, edit=edit: edit_manifest(folder, edit, resealed=True))


def become_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def swap(folder: Path, name: str) -> None:
    """Exchange a file with that of the other checkpoint, which is bad then too; here it is copied."""
    other = folder.with_name("step-000000010") / name
    rewrite(folder / name, lambda data: other.read_bytes())


def edit_manifest(folder: Path, edit: Callable[[dict[str, Any]], None], *, resealed: bool) -> None:
    """Change the manifest, with or without a digest that fits."""

    def change(data: bytes) -> bytes:
        content = json.loads(data)
        seal = content.pop("digest")
        edit(content)
        return json.dumps({**content, "digest": digests.digest_json(content) if resealed else seal}).encode()

    rewrite(folder / manifest.FILE_NAME, change)


def first_file(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["files"][0].update(changes)


EDITS: dict[str, Callable[[dict[str, Any]], None]] = {
    "another step": lambda content: content.update(step=10),
    "no step": lambda content: content.pop("step"),
    "an old format": lambda content: content.update(format=-1) or content.pop("world_size"),
    "an unknown key": lambda content: content.update(extra=1),
    "another total": lambda content: content.update(total_bytes=1),
    "a file less": lambda content: content["files"].pop(),
    "a file twice": lambda content: content["files"].append(content["files"][0]),
    "a file outside": first_file(path="../step-000000010/cursor.json"),
    "an absolute file": first_file(path="/etc/passwd"),
    "a missing file": first_file(path="tensors/rank-00001.safetensors"),
    "another size": first_file(size=3),
    "another digest": first_file(digest="0" * 32),
    "no digest": first_file(digest=""),
    "no files": lambda content: content.update(files=[]),
    "no numbers": lambda content: content.update(step="20", total_bytes="7"),
}


@pytest.mark.parametrize("share", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_damage_is_never_loaded_silently(template: Path, tmp_path: Path, share: int) -> None:
    """Read in full, a damaged checkpoint is passed over for the older one, with a reason; so it is while it is loaded.

    At once, all is seen but what changes neither a size nor the manifest, the index or the cursor. A manifest that is only
    laid out in another way is no damage. Loading needs neither the headers of the tensors' files nor other files.
    """
    seen = seen_by_loading = 0
    for number, (what, damage) in enumerate(itertools.islice(damages(template), None, None, share)):
        root = tmp_path / str(number)
        one_save.copy(template, root)
        damage(root / "step-000000020")
        whole, of_size = compare(root / "step-000000020", template / "step-000000020")
        of_size |= what == "sealed manifest with another digest"
        assert passes_sizes(root / "step-000000020") == (
            of_size and (whole or not what.startswith(("state.json", "cursor.json")))
        ), what
        if number % 4 == 0:
            step = loaded_step(root)
            seen_by_loading += step == 10
            assert step == 20 or not whole, what
        assert passed_over(root) != whole, what
        seen += not whole
    assert seen >= 500 // share
    assert seen_by_loading >= 75 // share


def loaded_step(root: Path) -> int:
    """Load the newest good checkpoint, and assert that all of it is what was saved at its step."""
    values = state(1)
    step = CheckpointStore(root).load_latest(values)
    assert step in (10, 20)
    assert_equal(values, state(step))
    return step


def compare(folder: Path, good: Path) -> tuple[bool, bool]:
    """Whether a checkpoint means what a good one does, and whether at least its sizes do."""
    expected = manifest.read(good)
    try:
        if manifest.read(folder) != expected:
            return False, False
        pairs = [((folder / f.path).read_bytes(), (good / f.path).read_bytes()) for f in expected.files]
    except (manifest.BadCheckpoint, OSError):
        return False, False
    return all(a == b for a, b in pairs), all(len(a) == len(b) for a, b in pairs)


def passes_sizes(folder: Path) -> bool:
    try:
        verify(folder, full=False)
    except manifest.BadCheckpoint:
        return False
    return True


def passed_over(root: Path) -> bool:
    found = newest_valid(CheckpointFolder(root), full=True)
    assert found is not None
    info, skipped = found
    assert (info.step, [step for step, reason in skipped if reason]) in [(10, [20]), (20, [])]
    return info.step == 10


def test_checkpoints_that_took_each_other_s_place(template: Path, tmp_path: Path) -> None:
    """Two folders renamed onto one another are both refused: nothing good is left."""
    root = tmp_path / "swapped"
    one_save.copy(template, root)
    ten, twenty = (root / f"step-0000000{n}" for n in (10, 20))
    ten.rename(root / "aside")
    twenty.rename(ten)
    (root / "aside").rename(twenty)
    with refused("no-good-checkpoint", "checkpoints", says="step 20: .*step 10: .* of step 20"):
        newest_valid(CheckpointFolder(root), full=False)
