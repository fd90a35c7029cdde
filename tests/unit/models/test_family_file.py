"""`family.toml` becomes the records of a family: presets have what is common to all, and what those have that they are like."""

from __future__ import annotations

import sys
import typing
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from reelworks.core.config import Config
from reelworks.models import family, family_file, registry
from reelworks.models.family import Parts, Release, SamplingDefaults

RECORDS = {
    f"{table} {name}": record
    for table, records in (
        ("preset", registry.PRESETS),
        ("release", {name: preset.release for name, preset in registry.PRESETS.items() if preset.release}),
        ("autoencoder", registry.AUTOENCODERS),
        ("text encoder", registry.TEXT_ENCODERS),
        ("sound encoder", registry.SOUND_ENCODERS),
    )
    for name, record in records.items()
}
TEXT = """
name = "short"
[all]
parts = { autoencoder = "a", text = "t", same_latents = ["b"] }
sampling = { guidance_scale = 5.0, num_inference_steps = 50 }
release = { side = 640, distilled = true }
[presets.large]
like = "small"
config = { depth = 3 }
parts = { text = "u" }
[presets.small]
config = { depth = 2, sizes = [4, 8] }
fps = 16.0
release = { weights = "owner/small", side = 512 }
[autoencoders.a]
network = "A"
channels = 4
stride = [1, 8, 8]
module = "own"
[autoencoders.b]
like = "a"
channels = 8
std = "none"
"""


class ShortConfig(Config):
    depth: int = 1
    sizes: tuple[int, ...] = ()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> typing.Iterator[str]:
    folder = tmp_path / "short_family"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "family.toml").write_text(TEXT, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder.name
    sys.modules.pop(folder.name, None)


def test_entries_have_the_values_of_those_that_they_are_like(package: str) -> None:
    """All but the release, and tables value by value, in whatever order they stand."""
    read = family_file.read(package, ShortConfig)
    large, small = read.presets["large"], read.presets["small"]
    assert large.config == ShortConfig(depth=3, sizes=(4, 8))
    assert (large.parts, small.parts) == (Parts("a", "u", ("b",)), Parts("a", "t", ("b",)))
    assert large.sampling == small.sampling == SamplingDefaults(5.0, 50)
    assert (large.fps, large.release) == (16.0, None)
    assert small.release == Release("owner/small", side=512, distilled=True)
    assert read.network == "short_family.network"
    b = family.PublishedAutoencoder("A", 8, (1, 8, 8), module="short_family.own")
    assert read.autoencoders["b"] == b


@pytest.mark.parametrize(
    ("wrong", "error"), [("depht = 2", ValidationError), ('depth = "2"', ValidationError), ('like = "none"', KeyError)]
)
def test_a_mistake_in_the_file_is_an_error(package: str, tmp_path: Path, wrong: str, error: type[Exception]) -> None:
    before = "depth = 2" if "dep" in wrong else 'like = "small"'
    file = tmp_path / package / "family.toml"
    file.write_text(TEXT.replace(before, wrong), encoding="utf-8")
    with pytest.raises(error):
        family_file.read(package, ShortConfig)


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_values_have_the_declared_types(record: typing.Any) -> None:
    """Nothing else checks them: the records are no configs."""
    hints = typing.get_type_hints(type(record))
    for name, hint in hints.items():
        if name != "config":
            TypeAdapter(hint).validate_python(getattr(record, name), strict=True)
