"""Fit of the demo's autoencoder on a scanned folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from refused import refused

from reelworks.data.catalog.store.store import Catalog
from reelworks.demo import autoencoder
from reelworks.demo.make import DemoSummary


@pytest.fixture(scope="module")
def catalog(whole_demo: DemoSummary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalog of every fourth good file, and of all bad ones."""
    footage, folder = tmp_path_factory.mktemp("material"), tmp_path_factory.mktemp("catalog")
    for name in [*whole_demo.videos[::4], *whole_demo.pictures[::4], *whole_demo.bad]:
        for file in whole_demo.folder.glob(f"{Path(name).stem}.*"):
            shutil.copy(file, footage)
    Catalog.scan(footage, to=folder)
    return folder


@pytest.mark.slow
def test_it_decodes_clips_held_out_and_damaged_files_do_not_stop_it(
    catalog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_all = autoencoder.fit(catalog, tmp_path / "of-all.safetensors", seed=3)
    assert of_all.psnr_db > 23
    monkeypatch.setattr(autoencoder, "_MOST_CLIPS", 10)
    of_ten, again = (autoencoder.fit(catalog, tmp_path / f"{i}.safetensors", seed=3) for i in range(2))
    assert of_ten.psnr_db == again.psnr_db
    assert (tmp_path / "0.safetensors").read_bytes() == (tmp_path / "1.safetensors").read_bytes()
    assert of_all.psnr_db > of_ten.psnr_db > 10


def test_a_catalog_without_a_readable_clip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "footage").mkdir()
    (tmp_path / "footage" / "a.png").write_bytes(b"no picture")
    Catalog.scan(tmp_path / "footage", to=tmp_path / "catalog")
    with refused("no-clip-to-learn-from", "CATALOG"):
        autoencoder.fit(tmp_path / "catalog", tmp_path / "weights.safetensors")
