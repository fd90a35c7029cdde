"""Entries of classes of one's own are read whatever their paths are, and wrong classes are told what is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import places
import pytest
from refused import refused

from reelworks.annexes.quality import registry
from reelworks.annexes.quality.measure import ClipPictures, ComparedClips, SampledClip, Still
from reelworks.core import digests, trust
from reelworks.data.catalog.store import kept_measures
from reelworks.data.catalog.store.measured_columns import Column

CODE = """
from reelworks.data.catalog.store.measured_columns import Column


class Plain:
    name, version, reads = "plain", 1, ("stills",)
    columns = (Column("plain", "", "a number"),)

    def values(self, clip):
        return (0.0,)


class Net:
    name, version, reads, pictures_px = "net", 1, ("stills",), 64
    columns = (Column("net", "", "a number"),)

    def of_clips(self, clips):
        return [[0.0]] * len(clips)
"""


@pytest.mark.parametrize("folder", ["lr=1", "a=b:c"])
@pytest.mark.parametrize("weights", ["weights", "x=1", "x:y", "x:y=1"])
def test_equals_signs_and_colons_may_be_in_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, weights: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, weights = places.name(folder), places.name(weights)
    (tmp_path / folder).mkdir()
    (tmp_path / weights).mkdir()
    file = tmp_path / folder / "own.py"
    file.write_text(CODE, encoding="utf-8")
    for place in (file, Path(folder, "own.py")):
        assert registry.named(f"{place}:Plain", "x").name == "plain"
        net = registry.named(f"{place}:Net={weights}", "x")
        assert (net.name, net.weights) == ("net", Path(weights))
        assert file in trust.untrusted([f"{place}:Net={weights}"])
    with refused("measure-weights-invalid", says="name their folder"):
        registry.named(f"{file}:Net", "x")
    with refused("measure-weights-invalid", says="cannot be loaded"):
        registry.named(f"classes={weights}", "x")


def test_values_of_other_pictures_have_another_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a network had from whole frames are not mixed with those from within borders."""
    (tmp_path / "own.py").write_text(CODE, encoding="utf-8")
    (tmp_path / "weights").mkdir()
    entry = f"{tmp_path / 'own.py'}:Net={tmp_path / 'weights'}"
    of_whole_frames = (1 << 48) + int(digests.digest_bytes(b"")[:12], 16)
    now = registry.labels(registry.named(entry, "x"))
    assert now != [kept_measures.label("net", of_whole_frames, "net")]
    monkeypatch.setattr(registry, "_PICTURES", 9)
    assert registry.labels(registry.named(entry, "x")) != now


def test_values_of_weights_that_were_replaced_have_another_label(tmp_path: Path) -> None:
    """Also in a program that has measured with those of before."""
    (tmp_path / "own.py").write_text(CODE, encoding="utf-8")
    (tmp_path / "weights").mkdir()
    entry, file, labels = f"{tmp_path / 'own.py'}:Net={tmp_path / 'weights'}", tmp_path / "weights" / "w", list[str]()
    for content in (b"one", b"others", b"one"):
        file.write_bytes(content)
        labels += registry.labels(registry.named(entry, "x"))
    assert labels[0] == labels[2] != labels[1]


RIGHT: dict[str, Any] = {
    "name": "own",
    "version": 1,
    "reads": ("stills",),
    "columns": (Column("own", "", "a number"),),
    "values": lambda self, clip: (0.0,),
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"reads": "stills"},
        {"reads": ("frames",)},
        {"columns": Column("own", "", "a number")},
        {"columns": ()},
        {"columns": ("own",)},
        {"version": "1.2"},
        {"version": True},
        {"name": ""},
        {"features": lambda self, clip: b"", "compare": lambda self, clips: [], "feature_bytes": 0},
    ],
)
def test_a_wrong_attribute_is_told_with_what_is_wanted(wrong: dict[str, Any]) -> None:
    name = next(name for name in ("feature_bytes", *wrong) if name in wrong)
    with refused("class-incomplete", says=f"`{name}` as "):
        registry.register(type("Own", (), RIGHT | wrong))
    registry.register(type("Own", (), RIGHT))


def test_what_a_class_is_given_cannot_be_written_into() -> None:
    """Other classes see the same arrays, and what they make of them is kept."""
    rgb, numbers = np.zeros((1, 8, 8, 3), np.uint8), np.ones(4)
    still = Still(rgb[0])
    clip = SampledClip(Path("a"), False, 8, 8, 4, 24.0, (still,), np.zeros((4, 8, 8)), numbers > 0, np.zeros((4, 2)), 1)
    given = [still, clip, ClipPictures(rgb, ""), ComparedClips(rgb[0, 0], numbers, numbers, numbers, numbers)]
    arrays = {
        f"{type(one).__name__}.{k}": v for one in given for k, v in vars(one).items() if isinstance(v, np.ndarray)
    }
    arrays["Still.luma"] = still.luma
    assert len(arrays) == 1 + 3 + 1 + 5 + 1
    assert [name for name, array in arrays.items() if array.flags.writeable] == []
