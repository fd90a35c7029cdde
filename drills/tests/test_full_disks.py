"""Each verb whose disk has too few bytes or inodes does its work, or says in words what to change; a training goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_disks

from drills._borders import disks

pytestmark = pytest.mark.skipif(not small_disks.may_mount(), reason="only root may mount a small disk")
LIMITS = ({"kilobytes": 4}, {"kilobytes": 60}, {"inodes": 1}, {"inodes": 5})


def _name(limits: dict[str, int]) -> str:
    return " ".join(f"{count} {kind}" for kind, count in limits.items())


@pytest.mark.slow(reason="a dozen verbs; a scan of the same kind is tried always")
@pytest.mark.parametrize("limits", LIMITS, ids=_name)
@pytest.mark.parametrize("verb", disks.VERBS)
def test_a_verb_names_the_disk_that_is_too_small(verb: str, limits: dict[str, int], tmp_path: Path) -> None:
    assert disks.try_verb(tmp_path, verb, **limits) == []


@pytest.mark.slow
def test_a_training_goes_on_when_its_disk_has_space_again(tmp_path: Path) -> None:
    """With a save, a preview and a validation meanwhile."""
    assert disks.train_while_full(tmp_path, 3, 7) == []
