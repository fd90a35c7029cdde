"""What changes a clip's latents or a caption's embedding changes its key, and nothing else does."""

from __future__ import annotations

import dataclasses
import errno
import io
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import diffusers
import examples
import media_makers
import numpy as np
import prepare_files
import pytest
import tiny_families
import tiny_recipe
import tomli_w
import torch
from PIL import Image
from refused import refused
from typer.testing import CliRunner

from reelworks.commands.main import app
from reelworks.core import digests, storage, system, units
from reelworks.core.shape import Shape
from reelworks.data.distributed.mesh import World
from reelworks.data.loader.micro_batch import MicroBatch, MicroBatchRequest
from reelworks.data.loader.position import next_epoch
from reelworks.data.loader.step_source import StepSource
from reelworks.data.media import decode_pool
from reelworks.data.media.augment import Augmentation
from reelworks.data.media.config import PREFETCH_BYTES, DataConfig
from reelworks.data.media.decode import AtRate, FrameTicks, Request
from reelworks.data.media.decode_pool import DecodePool
from reelworks.data.media.framing import FILTERS
from reelworks.data.media.patience import StorageAway
from reelworks.data.media.sound import SoundRequest
from reelworks.models.config import AutoencoderConfig
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.training.assembly import build
from reelworks.training.encoding import encode as encode_module
from reelworks.training.encoding import reachable, request_key, store, upkeep, values
from reelworks.training.encoding.encode import Encoding, EncodingForecast
from reelworks.training.encoding.encode_worker import Claims, EncodeWorker, Progress
from reelworks.training.encoding.encoders import FrozenEncoders, Lazy
from reelworks.training.encoding.request_key import FileDigests
from reelworks.training.encoding.stored_batches import StoredLatents
from reelworks.training.observers.validation import Validator
from reelworks.training.plan import plan_forecast
from reelworks.training.precompute import ahead, encoding
from reelworks.training.recipe import dataset, recipe_file
from reelworks.training.recipe.dataset import RecipeData

CPU = torch.device("cpu")
CLIPS = 5


@pytest.fixture
def recipe(tmp_path: Path) -> dict[str, Any]:
    generator = np.random.default_rng(1)
    folder = tmp_path / "footage"
    folder.mkdir()
    for i in range(3):
        picture = generator.integers(0, 256, (40, 48, 3 + (i == 2)), dtype=np.uint8)
        Image.fromarray(picture).save(folder / f"p{i}.png")
        (folder / f"p{i}.txt").write_text(f"picture {i}", encoding="utf-8")
    for i in range(2):
        media_makers.write(folder / f"c{i}.mkv", generator.integers(0, 256, (9, 32, 48, 3), dtype=np.uint8), rate=10)
        (folder / f"c{i}.txt").write_text(f"clip {i}", encoding="utf-8")
    return tiny_recipe.least(
        output=str(tmp_path / "run"),
        dataset=[{"path": str(folder)}],
        bucket=[{"resolution": "32px", "num_frames": [1, 3], "batch_size": 2}],
        data={"num_workers": 0},
        text_encoder={"dim": 16, "max_length": 6},
        encode={"store": True},
        train={"max_epochs": 2},
    )


def prepared(recipe: dict[str, Any]) -> tuple[Encoding, StoredLatents, RecipeData]:
    parsed = recipe_file.parse(recipe)
    dataset.scan_recipe(parsed)
    data = RecipeData.open(parsed)
    source = encoding.open_store(data)
    return encoding.build_encoding_job(data, source, CPU, plan_forecast.plan_spec(data)), source, data


def encode(recipe: dict[str, Any]) -> EncodingForecast:
    """Encode what is missing, and return what was."""
    forecast, progress = encoding.encode_missing(prepared(recipe)[0])
    assert progress.done == forecast.clips
    assert progress.captions == forecast.captions
    return forecast


def test_what_came_into_a_folder_since_is_reached_and_not_deleted_as_lost(recipe: dict[str, Any]) -> None:
    encode(recipe)
    for name in ("p0.png", "p0.txt"):
        file = Path(recipe["dataset"][0]["path"]) / name
        file.with_stem("new").write_bytes(file.read_bytes())
    _, chunks = ahead.reached(recipe_file.parse(recipe))
    assert sum(len(chunk.clips) for chunk in chunks) == CLIPS + 1


def missing(recipe: dict[str, Any]) -> tuple[int, int]:
    forecast = prepared(recipe)[0].forecast()
    return forecast.clips, forecast.captions


def test_a_second_time_there_is_nothing_to_encode(recipe: dict[str, Any]) -> None:
    first = encode(recipe)
    assert (first.clips, first.captions) == (CLIPS, CLIPS)
    assert missing(recipe) == (0, 0)


def test_what_an_earlier_version_decoded_is_told(recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made_by = request_key.DECODER_VERSION - 2
    monkeypatch.setattr(request_key.Keys.__init__, "__defaults__", (made_by,))
    first = encode(recipe)
    assert (first.clips, first.outdated) == (CLIPS, 0)
    monkeypatch.undo()
    forecast = prepared(recipe)[0].forecast()
    assert (forecast.clips, forecast.captions, forecast.outdated) == (CLIPS, 0, CLIPS)
    assert f"{CLIPS} clips are stored as an earlier version" in forecast.to_text()


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks, as Lustre may be."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(system, "_lock", refuse)
    monkeypatch.setattr(system, "unlock", refuse)


@pytest.mark.usefixtures("no_locks")
def test_without_locks_all_is_encoded(recipe: dict[str, Any]) -> None:
    assert encode(recipe).clips == CLIPS
    assert encode(recipe).clips == 0


@pytest.mark.usefixtures("no_locks")
def test_without_locks_processes_seldom_encode_the_same(tmp_path: Path) -> None:
    """Each of four takes a part at a time that was not done when it looked."""
    parts, done, taken = [digests.digest_json(i) for i in range(200)], set[str](), 0
    queues = []
    for _ in range(4):
        with closing(Claims(tmp_path / "claims")) as claims:
            queues.append(iter(list(claims.free(parts, str, busy := []))))
            assert busy == []
    while len(done) < len(parts):
        now = [next((part for part in queue if part not in done), None) for queue in queues]
        taken += sum(part is not None for part in now)
        done |= {part for part in now if part is not None}
    assert taken < 1.2 * len(parts)


def test_the_forecast_is_the_size_on_disk(recipe: dict[str, Any]) -> None:
    forecast = encode(recipe)
    _, source, _ = prepared(recipe)
    found = upkeep.summarise(source.store)
    assert {(group.kind, group.dtype) for group in found} == {("latent", "float32"), ("text", "packed")}
    groups = {group.kind: group.bytes for group in found}
    texts = 48 + 6 + 4 * (6 * 16 + 64)
    assert forecast.bytes == groups["latent"] + forecast.captions * texts
    assert groups["text"] < forecast.captions * texts  # captions are stored without padding


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], tuple[int, int]]] = {
    "alpha_color": (
        lambda r: r["data"].update(alpha_color=[0, 0, 0]),
        (3, 0),
    ),  # one picture is transparent, and two films may be later
    "caption": (lambda r: Path(r["dataset"][0]["path"], "p0.txt").write_text("another", encoding="utf-8"), (0, 1)),
    "template": (lambda r: r["dataset"][0].update(caption="style, {text}"), (0, CLIPS)),
    "crop": (lambda r: r["data"].update(crop="random"), (CLIPS, 0)),
    "stride": (lambda r: r["data"].update(frame_interval=2), (2, 0)),  # pictures have one frame
    "fps": (lambda r: r["data"].update(fps=5.0), (2, 0)),
    "short_clips": (lambda r: r["data"].update(short_clips="hold"), (0, 0)),  # none is short
    "clip_start": (lambda r: r["data"].update(clip_start="start"), (2, 0)),
    "variants": (lambda r: r["encode"].update(variants=3), (4, 0)),
    "dtype": (lambda r: r["encode"].update(dtype="bfloat16"), (CLIPS, 0)),
    "autoencoder": (lambda r: r.update(autoencoder={"std": 0.4}), (CLIPS, 0)),
    "text length": (lambda r: r["text_encoder"].update(max_length=7), (0, CLIPS)),
    "resolution": (lambda r: r["bucket"][0].update(resolution="16px"), (CLIPS, 0)),
    "picture": (lambda r: Image.new("RGB", (48, 40)).save(Path(r["dataset"][0]["path"], "p0.png")), (1, 0)),
    "repeats": (lambda r: r["dataset"][0].update(repeats=3), (0, 0)),
    "learning rate": (lambda r: r["train"].update(learning_rate=0.5), (0, 0)),
    "name of a file": (lambda r: _rename(Path(r["dataset"][0]["path"])), (0, 0)),
}


def _rename(folder: Path) -> None:
    for suffix in (".png", ".txt"):
        (folder / f"p0{suffix}").rename(folder / f"renamed{suffix}")


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.quick_cases(2)
def test_a_change_invalidates_what_it_must(recipe: dict[str, Any], change: str) -> None:
    recipe["data"]["clip_start"] = "start" if change == "name of a file" else "random"
    encode(recipe)
    apply, expected = CHANGES[change]
    apply(recipe)
    assert missing(recipe) == expected


def test_changed_weights_invalidate_all_latents(recipe: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    autoencoder = diffusers.AutoencoderKL(**tiny_families.AUTOENCODERS["sdxl"])
    autoencoder.save_pretrained(tmp_path / "vae")
    recipe["autoencoder"] = {"name": "sdxl", "weights": str(tmp_path / "vae")}
    recipe["bucket"][0]["num_frames"] = 1
    encode(recipe)
    assert missing(recipe) == (0, 0)
    with torch.no_grad():
        next(autoencoder.parameters()).mul_(1.5)
    autoencoder.save_pretrained(tmp_path / "vae")
    assert missing(recipe) == (3, 0)


@pytest.mark.parametrize("part", ["vae", None])
def test_only_what_loaders_read_of_a_folder_is_what_an_encoder_is(tmp_path: Path, part: str | None) -> None:
    """Not what a download or a file manager leaves, nor other parts of a pipeline beside its text encoders."""

    def identity() -> str:
        config = AutoencoderConfig(name="sdxl", weights=str(tmp_path / "weights"))
        return request_key.encoder_id(config, "autoencoder.weights", FileDigests(tmp_path / "known.json"), part=part)

    own, seen = part or "text_encoder", []
    read = [f"{own}/config.json", f"{own}/model-00001-of-00002.safetensors", f"{own}/merges.txt", f"{own}/spiece.model"]
    unread = ["README.md", f"{own}/README.md", f"{own}/.DS_Store", ".cache/huggingface/download/config.json.metadata"]
    unread += [".gitattributes", "LICENSE", f"{own}/LICENSE.txt", f"{own}/.cache/huggingface/a.lock", "pe/model.bin"]
    for name in [*read, *unread]:
        file = tmp_path / "weights" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        for content in ("one", "another"):
            file.write_text(content, encoding="utf-8")
            former = seen[-1:]
            seen.append(identity())
            assert (former == seen[-1:]) == (name in unread), name


def test_a_file_of_weights_is_its_content_and_that_of_the_config_beside_it(tmp_path: Path) -> None:
    config, found = AutoencoderConfig(name="sdxl", weights=str(tmp_path / "vae.safetensors")), []
    for name in ("vae.safetensors", "other.safetensors", "config.json", "vae.safetensors", "config.json"):
        (tmp_path / name).write_text(f"{name} {len(found)}", encoding="utf-8")
        found.append(request_key.encoder_id(config, "autoencoder.weights", FileDigests(tmp_path / "known.json")))
    assert found[0] == found[1]
    assert len({*found}) == 4


def test_an_image_encoder_is_what_its_files_hold_and_those_of_its_pictures(tmp_path: Path) -> None:
    def identity(kind: str = "clip") -> str:
        return request_key.image_encoder_id(kind, str(tmp_path / "weights"), FileDigests(tmp_path / "known.json"))

    with refused("weights-not-found", "model.image_encoder"):
        identity()
    found = []
    for part in ("image_encoder", "feature_extractor"):
        (tmp_path / "weights" / part).mkdir(parents=True)
        for content in ("one", "another"):
            (tmp_path / "weights" / part / "config.json").write_text(content, encoding="utf-8")
            found.append(identity())
    assert len({*found, identity("siglip")}) == 5


@pytest.mark.parametrize("way", ["in place", "renamed into place"])
def test_a_file_of_the_same_size_has_the_digest_of_its_new_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """In place its time differs, and one that was renamed into place may have the former's time; in a later process too."""
    known, file = tmp_path / "known.json", tmp_path / "weights"
    file.write_bytes(b"one")
    former, listed = FileDigests(known).digest(file), file.stat()
    if way == "in place":
        file.write_bytes(b"two")
        os.utime(file, ns=(listed.st_atime_ns, listed.st_mtime_ns + 1_000_000))
    else:
        (tmp_path / "new").write_bytes(b"two")
        os.utime(tmp_path / "new", ns=(listed.st_atime_ns, listed.st_mtime_ns))
        (tmp_path / "new").replace(file)
    assert FileDigests(known).digest(file) == digests.of_file(file) != former
    kept = FileDigests(known).digest(file)
    with monkeypatch.context() as once:  # weights of many gigabytes are read once
        once.setattr(request_key.digests, "of_file", lambda path: "read again")
        assert FileDigests(known).digest(file) == kept


def _read_only(call: str, path: Path) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


def test_a_store_that_cannot_be_written_is_read_and_told_where_it_lacks_something(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    """Digests of other weights, and what a kill left without an index, are then not kept there."""
    encode(recipe)
    _, former, data = prepared(recipe)
    (tmp_path / "weights").write_bytes(b"other")
    *_, last = sorted((former.store.path / "index").iterdir())
    orphan = last.with_name("9.parquet"), former.store.path / "shards" / "9.safetensors"
    for path, of_last in zip(orphan, (last, former.store.path / "shards" / f"{last.stem}.safetensors"), strict=True):
        of_last.rename(path)
    orphan[0].unlink()
    with storage.guarded(_read_only):
        known = FileDigests(former.store.path / "digests.json")
        assert known.digest(tmp_path / "weights") == digests.of_file(tmp_path / "weights")
        source = encoding.open_store(data)
    job = encoding.build_encoding_job(data, source, CPU, plan_forecast.plan_spec(data))
    assert 0 < job.forecast().clips < CLIPS
    (source.store.path / "claims").unlink()
    (source.store.path / "claims").mkdir()  # root could open a file
    with refused("file-unwritable", "encode.folder", says="a place that is writable"):
        encoding.encode_missing(job)


def test_what_the_disk_has_no_room_for_is_refused_before_anything_is_encoded(
    recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With what it would take, in all and for a clip."""
    job = prepared(recipe)[0]
    needed = job.forecast()
    assert needed.bytes > 0
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=needed.bytes))
    with (
        caplog.at_level("INFO"),
        refused("encoded-no-space", "encode.folder", says=f"{units.size(needed.bytes)} are free"),
    ):
        encoding.encode_missing(job)
    assert f"at most {units.size(needed.bytes)} ({units.size(needed.bytes / CLIPS)} a clip)" in caplog.text
    assert missing(recipe) == (CLIPS, CLIPS)
    one = EncodingForecast(clips=1, captions=0, bytes=3_000_000, known=0)
    assert "1 clip and 0 captions, at most 3 MB (3 MB a clip)" in one.to_text()


def test_prompts_of_previews_are_embedded_before_training_whatever_is_stored(
    recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While no network takes memory yet."""
    asked: list[list[str]] = []
    monkeypatch.setattr(FrozenEncoders, "embed_ahead", lambda _, prompts: asked.append([*prompts]))
    recipe["samples"] = {"prompts": ["a kite", "waves"], "num_frames": 1, "height": 32, "width": 32}
    parsed = prepared(recipe)[2]
    for times in (1, 2):
        spec, encoder = plan_forecast.plan_spec(parsed), build.encoder(parsed.recipe, CPU)
        source = encoding.before_training(parsed, encoder, World(0, 1, CPU), spec, lambda progress: None)
        assert len(asked) >= times
        assert asked[-1] == ["a kite", "waves"]
        assert source.store.table().num_rows == 2 * CLIPS


def test_clips_that_cannot_be_encoded_are_named_the_first_ten_of_them(
    recipe: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = prepared(recipe)[0]
    for path in (tmp_path / "footage").glob("p*.png"):
        path.write_bytes(path.read_bytes()[:60])
    _, progress = encoding.encode_missing(job)
    assert len(progress.failures) == 3
    assert [text.partition(" is not encoded")[0] for text in caplog.messages] == [
        label for label, _ in progress.failures
    ]
    caplog.clear()
    encode_module.log_failures(Progress(12, failures=[(f"{i}.png", "cut") for i in range(12)]))
    assert [*caplog.messages[8:]] == ["8.png is not encoded: cut", "9.png is not encoded: cut", "and 2 more"]


def test_a_disk_that_is_full_ends_the_encoding(recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """No clip is to blame for it, and others would be encoded in vain."""

    def full(call: str, path: Path) -> None:
        if call == "write" and path.parent.name == "shards":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store, "_COMMIT_BYTES", 1)
    job = prepared(recipe)[0]
    with storage.guarded(full), refused("file-unwritable", "encode.folder", says="free space"):
        encoding.encode_missing(job)


def test_files_of_a_trusted_list_have_latents_of_their_own(recipe: dict[str, Any], tmp_path: Path) -> None:
    """Files of one size and time, as an archive leaves them, whose content no scan has read."""
    folder, rows = tmp_path / "listed", ["path,text,num_frames,height,width,fps"]
    folder.mkdir()
    for i in range(4):
        Image.new("RGB", (48, 40), (60 * i, 0, 0)).save(folder / f"{i}.bmp")
        os.utime(folder / f"{i}.bmp", (1.7e9, 1.7e9))
        rows.append(f"{i}.bmp,grey,1,40,48,")
    (folder / "list.csv").write_text("\n".join(rows), encoding="utf-8")
    listed = recipe | {"dataset": [{"path": str(folder / "list.csv"), "trust_list": True}]}
    encode(listed)
    assert prepared(listed)[1].store.table().column("kind").to_pylist().count("latent") == 4
    assert missing(listed) == (0, 0)


def test_every_field_of_a_request_is_part_of_its_key() -> None:
    """A field that is added later is covered too: the loop reads them from the class."""
    request = Request(Path("a"), False, Shape(3, 32, 32), measures=Shape(9, 32, 48))
    other: dict[str, Any] = {"short_clips": "loop", "is_image": True, "nearest": True, "measures": None}
    other |= {"size": (32, 48), "resize": FILTERS["area"], "augmentation": Augmentation(flip=True)}
    other |= {
        "decoder": "another",
        "num_frames": 3,
        "frame_ticks": FrameTicks((0, 1, 2), (0, 1, 2)),
        "at_rate": AtRate(16.0, 9),
    }
    key, _ = request_key.of_request("latent", "e", request, "f")
    for field in dataclasses.fields(request):
        value = getattr(request, field.name)
        if field.name in other:
            changed = other[field.name]
        elif isinstance(value, Shape):
            changed = Shape(3, 32, 40)
        elif isinstance(value, tuple):
            changed = (0.25, *value[1:])
        elif isinstance(value, Path):
            changed = Path("b")
        else:
            changed = value + 0.5
        differs = request_key.of_request("latent", "e", dataclasses.replace(request, **{field.name: changed}), "f")[0]
        assert (differs != key) == (field.name not in ("path", "frame_ticks")), field.name
    for arguments in (("image", "e", request, "f"), ("latent", "x", request, "f"), ("latent", "e", request, "x")):
        assert request_key.of_request(*arguments)[0] != key


def test_all_that_the_latents_of_a_sound_depend_on_is_part_of_their_key() -> None:
    """The dtype that they are stored in too; size and crop of the frames are not."""
    clip = Request(Path("a"), False, Shape(3, 32, 32), measures=Shape(9, 32, 48))
    request = SoundRequest(clip, 16_000, 2, 640)
    key, _ = request_key.of_sound("e", request, "f", "float32")
    longer = dataclasses.replace(clip, shape=Shape(5, 32, 32))
    for arguments in (
        ("x", request, "f", "float32"),
        ("e", request, "x", "float32"),
        ("e", request, "f", "bfloat16"),
        ("e", dataclasses.replace(request, clip=longer), "f", "float32"),
        ("e", dataclasses.replace(request, sample_rate=8_000), "f", "float32"),
    ):
        assert request_key.of_sound(*arguments)[0] != key
    wider = dataclasses.replace(clip, path=Path("b"), shape=Shape(3, 32, 64), crop_draw=(0.25, 0.75))
    assert request_key.of_sound("e", dataclasses.replace(request, clip=wider), "f", "float32")[0] == key


def test_a_deleted_file_leaves_an_orphan_that_is_named(recipe: dict[str, Any]) -> None:
    encode(recipe)
    folder = Path(recipe["dataset"][0]["path"])
    (folder / "c1.mkv").unlink()
    _, source, data = prepared(recipe)
    reached = upkeep.reachable_keys(
        source, reachable.chunks(data, reachable.in_epochs(data, plan_forecast.plan_spec(data), range(1)))
    )
    lost = upkeep.orphans(source.store, reached)
    assert sorted((row["kind"], row["label"]) for row in lost) == [("latent", "footage/c1.mkv"), ("text", "clip 1")]
    source.store.remove({row["key"] for row in lost})
    assert missing(recipe) == (0, 0)


def batches(data: RecipeData, source: StoredLatents | None, epoch: int = 0) -> list[MicroBatch]:
    pool = DecodePool(0, 60.0)
    work = [
        reachable.request(data, data.entries(epoch).take(data.entries(epoch).bucket == b), epoch)
        for b in set(data.entries(epoch).bucket.tolist())
    ]
    found = list(examples.batch_encoder(build.lazy_encoder(data.recipe, CPU), source).read(work, pool, PREFETCH_BYTES))
    pool.close()
    return found


def latents(encoder: FrozenEncoders, source: StoredLatents, batch: MicroBatch) -> torch.Tensor:
    return examples.batch_encoder(encoder, source).encode(batch, [False] * len(batch.captions)).latent


@pytest.mark.parametrize("epoch", [0, 1, 5])
@pytest.mark.quick_cases(1)
def test_stored_batches_are_the_live_ones(recipe: dict[str, Any], epoch: int) -> None:
    recipe["data"]["crop"] = "random"
    recipe["encode"]["variants"] = 2
    encode(recipe)
    _, source, data = prepared(recipe)
    live, nothing_loaded = build.lazy_encoder(data.recipe, CPU), build.lazy_encoder(data.recipe, CPU)
    for mine, theirs in zip(batches(data, source, epoch), batches(data, None, epoch), strict=True):
        dropped = [i == 1 for i in range(len(mine.captions))]
        stored = examples.batch_encoder(nothing_loaded, source).encode(mine, dropped)
        anew = examples.batch_encoder(live).encode(theirs, dropped)
        assert torch.equal(stored.latent, live.latents(theirs.frames))
        for one, two in zip(stored.tensors(), anew.tensors(), strict=True):
            assert torch.equal(one, two)
    assert not nothing_loaded.autoencoder.made
    assert not nothing_loaded.text_encoder.made


def test_stored_latents_count_in_the_budget_of_what_is_read_ahead(recipe: dict[str, Any]) -> None:
    """But for those that are being read: two, and one that has no room yet."""
    encode(recipe)
    _, source, data = prepared(recipe)
    entries, taken = data.entries(0), [0]
    work = reachable.request(data, entries.take(entries.bucket == entries.bucket[0]), 0)
    latent = sum(source.store.read(wanted["latent"].key).nbytes for wanted in source.keys.wanted(work))

    def requests() -> Iterator[MicroBatchRequest]:
        for _ in range(12):
            taken[0] += 1
            yield work

    pool, encoder = DecodePool(0, 60.0), examples.batch_encoder(build.lazy_encoder(data.recipe, CPU), source)
    ahead = [taken[0] - n for n, _ in enumerate(encoder.read(requests(), pool, 3 * latent), start=1)]
    pool.close()
    assert len(ahead) == 12
    assert max(ahead) <= 3 + 3


def test_variants_differ_and_recur(recipe: dict[str, Any]) -> None:
    recipe["data"]["crop"] = "random"
    recipe["encode"]["variants"] = 2
    _, source, data = prepared(recipe)
    entries = data.entries(0)
    keys = [
        source.keys.wanted(reachable.request(data, entries.take(np.array([0])), e))[0]["latent"].key for e in range(4)
    ]
    assert keys[0] == keys[2] != keys[1] == keys[3]


def test_what_is_missing_is_encoded_in_training_and_stored(recipe: dict[str, Any]) -> None:
    encode(recipe)
    Image.new("RGB", (48, 40), "red").save(Path(recipe["dataset"][0]["path"], "p0.png"))
    _, source, data = prepared(recipe)
    encoder = build.lazy_encoder(data.recipe, CPU)
    for mine, theirs in zip(batches(data, source), batches(data, None), strict=True):
        assert torch.equal(latents(encoder, source, mine), encoder.latents(theirs.frames))
    source.close()
    assert missing(recipe) == (0, 0)


def test_a_broken_clip_fails_as_it_does_live_and_loads_no_encoder(recipe: dict[str, Any]) -> None:
    folder = Path(recipe["dataset"][0]["path"])
    picture = (folder / "p1.png").read_bytes()
    prepared(recipe)  # scans
    time_of = (folder / "p1.png").stat().st_mtime_ns
    (folder / "p1.png").write_bytes(picture[:200] + bytes(len(picture) - 200))
    os.utime(folder / "p1.png", ns=(time_of, time_of))  # a scan does not look again
    job, source, data = prepared(recipe)
    _, progress = encoding.encode_missing(job)
    assert [label for label, _ in progress.failures] == ["footage/p1.png"]
    encoder = build.lazy_encoder(data.recipe, CPU)
    failures = []
    for mine, theirs in zip(batches(data, source), batches(data, None), strict=True):
        assert mine.failures == theirs.failures
        assert torch.equal(mine.is_valid, theirs.is_valid)
        failures += mine.failures
        latents(encoder, source, mine)
    assert len(failures) == 1
    assert not encoder.autoencoder.made
    source.close()
    assert missing(recipe) == (1, 0)


@pytest.fixture
def gives_none_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage that gives its clips from the second question on."""
    asked, read = itertools.count(), decode_pool._read

    def work(request: Any) -> Any:
        if next(asked) == 0:
            raise StorageAway("gives no clip", code="storage-away", remedy="restore it")
        return read(request)

    monkeypatch.setattr(decode_pool, "_read", work)


@pytest.mark.usefixtures("gives_none_at_first")
@pytest.mark.parametrize("reads", ["stored", "live", "encode", "validation"])
def test_what_is_no_clips_fault_is_told_by_whatever_reads_clips(recipe: dict[str, Any], reads: str) -> None:
    """Steps of stored latents and live ones, in whichever micro-batch; the encoding of all; and a validation of others."""
    job, source, data = prepared(recipe)
    if reads == "encode":
        with refused("storage-away"):
            encoding.encode_missing(job)
    elif reads == "validation":
        encoder = examples.batch_encoder(build.lazy_encoder(data.recipe, CPU))
        boundary, world = DtypeBoundary(build.denoiser(data.recipe, CPU)), World(0, 1, CPU)
        with closing(DecodePool(0, 60.0)) as pool, refused("storage-away"):
            Validator(boundary, encoder, world, StepSource(data, 0, 1), data.entries(0), data.recipe).run(pool)
    else:
        stops = [batch.stops for batch in batches(data, source if reads == "stored" else None)]
        assert [error.code for error in stops if error] == ["storage-away"]


def test_a_file_that_changed_since_the_scan_is_not_stored(recipe: dict[str, Any]) -> None:
    job, _, _ = prepared(recipe)
    Image.new("RGB", (48, 40)).save(Path(recipe["dataset"][0]["path"], "p0.png"))
    _, progress = encoding.encode_missing(job)
    assert progress.failures == [("footage/p0.png", "the file has changed since it was scanned")]


def test_a_clip_that_changes_after_the_scan_is_trained_as_it_is_and_not_stored(recipe: dict[str, Any]) -> None:
    """When its former file is back, its latent is missing: no value of another content is under the scanned one's key."""
    _, source, data = prepared(recipe)
    picture = Path(recipe["dataset"][0]["path"], "p0.png")
    former, listed = picture.read_bytes(), picture.stat()
    Image.new("RGB", (48, 40), "red").save(picture)
    encoder = build.lazy_encoder(data.recipe, CPU)
    for mine, theirs in zip(batches(data, source), batches(data, None), strict=True):
        assert torch.equal(latents(encoder, source, mine), encoder.latents(theirs.frames))
    source.close()
    picture.write_bytes(former)
    os.utime(picture, ns=(listed.st_atime_ns, listed.st_mtime_ns))
    assert missing(recipe) == (1, 0)


def test_latents_are_shown_as_pictures(recipe: dict[str, Any]) -> None:
    def sheet_of(count: int) -> bytes:
        _, source, data = prepared(recipe)
        chunks = reachable.chunks(data, reachable.in_epochs(data, plan_forecast.plan_spec(data), range(1)))
        return upkeep.contact_sheet(source, build.lazy_encoder(data.recipe, CPU), chunks, count)

    assert sheet_of(3) == b"", "none is there yet"
    encode(recipe)
    sheet = sheet_of(3)
    with Image.open(io.BytesIO(sheet)) as drawn:
        assert drawn.size == (4 * 164 + 4, 3 * 182 + 4)
        assert len(np.unique(np.asarray(drawn))) > 100


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
def test_epochs_are_encoded_as_far_as_steps_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """One that is begun is encoded whole."""
    for i in range(6):
        prepare_files.picture(tmp_path / "data" / f"{i}.png", grey=i)
    data = prepare_files.opened(prepare_files.recipe(tmp_path, train={"max_steps": steps}))
    monkeypatch.setattr(encoding.reachable, "varies", lambda data: True)
    spec = data.plan_spec(1, 1)
    assert data.plan(spec, 0).num_steps == 2
    assert encoding.epochs(data, spec) == range(-(-steps // 2))


@pytest.mark.parametrize("ends", [{"max_steps": 7}, {"max_clips": 8}, {"max_clips": 9}, {"max_epochs": 3}], ids=str)
def test_epochs_of_drawn_clips_are_encoded_as_far_as_training_reads(tmp_path: Path, ends: dict[str, int]) -> None:
    """With the micro-batch that it prepares while the last one trains; none of the epochs is as long as the first."""
    for i in range(6):
        prepare_files.picture(tmp_path / "data" / f"{i}.png", grey=i)
    drawn = [{"resolution": "48px", "num_frames": [1, 9], "batch_size": [3, 2], "keep_prob": 0.5}]
    data = prepare_files.opened(prepare_files.recipe(tmp_path, train=ends, bucket=drawn))
    spec, train = data.plan_spec(1, 1), data.recipe.train
    position, _ = next_epoch(data, spec, None)
    source, counted, epochs = StepSource(data, 0, 1, train.max_steps, train.max_epochs), 0, set()
    assert len({data.plan(spec, epoch).planned for epoch in range(4)}) > 1
    for work in source.requests_from(position):
        epochs.add(work.epoch)
        if counted >= ends.get("max_clips", 1000):
            break
        counted += int(work.real.sum())
    assert {*encoding.epochs(data, spec)} >= {*range(max(epochs) + 1)}
    assert len(encoding.epochs(data, spec)) <= max(epochs) + 2


def test_clips_that_cannot_be_trained_are_named_as_training_names_them(recipe: dict[str, Any], tmp_path: Path) -> None:
    folder, file = Path(recipe["dataset"][0]["path"]), tmp_path / "recipe.toml"
    (folder / "bad.mp4").write_bytes(b"no video")
    (folder / "c1.txt").unlink()
    file.write_text(tomli_w.dumps(recipe), encoding="utf-8")
    told = CliRunner().invoke(app, ["encode", str(file)])
    assert told.exit_code == 0
    for clip in ("footage/bad.mp4: unreadable", "footage/c1.mkv: no_caption: no caption"):
        assert f"left out: {clip}" in told.output


def test_of_no_clip_nothing_is_said_to_be_stored(recipe: dict[str, Any]) -> None:
    recipe["bucket"][0]["num_frames"] = [33]
    with refused("empty-epoch", says="no clip fits any bucket"):
        prepared(recipe)


def test_what_is_no_number_is_told_and_not_stored(recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    encoded, calls = values.encode, itertools.count()

    def broken(*given: Any) -> torch.Tensor:
        return encoded(*given) * (torch.nan if next(calls) == 1 else 1.0)

    monkeypatch.setattr(values, "encode", broken)
    _, progress = encoding.encode_missing(prepared(recipe)[0])
    assert all("holds infinities or NaN" in reason for _, reason in progress.failures)
    assert 0 < missing(recipe)[0] == len(progress.failures) < CLIPS


@pytest.mark.parametrize("part", ["encode", "pack"])
def test_a_clip_whose_latents_or_caption_are_no_numbers_fails_and_is_not_encoded_again(
    recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Also in the step that finds it, of which the others are trained: its numbers are not even multiplied by zero."""
    _, source, data = prepared(recipe)
    encoder, made, calls = build.lazy_encoder(data.recipe, CPU), getattr(values, part), itertools.count()

    def broken(*given: Any) -> torch.Tensor:
        if next(calls) != 1:
            return made(*given)
        return (
            made(given[0]._replace(tokens=given[0].tokens * torch.nan)) if part == "pack" else made(*given) * torch.nan
        )

    monkeypatch.setattr(values, part, broken)
    told, number = [], []
    for _ in range(2):
        read = batches(data, source)
        done = [examples.batch_encoder(encoder, source).encode(each, [False] * len(each.captions)) for each in read]
        assert all(bool(value.isfinite().all()) for each in done for value in (each.latent, each.text.tokens))
        told.append([(each.batch.is_valid.tolist(), each.batch.failures) for each in done])
        number.append(next(calls))
    assert told[0] == told[1] == [(each.is_valid.tolist(), each.failures) for each in read]
    ((_, reason),) = (failure for _, failures in told[0] for failure in failures)
    assert "holds infinities or NaN" in reason
    assert number[1] == number[0] + 1


def test_a_held_out_clip_whose_latents_are_no_numbers_is_not_measured_on_zeros(
    recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, source, data = prepared(recipe)
    encoder, encoded, calls = build.lazy_encoder(data.recipe, CPU), values.encode, itertools.count()
    monkeypatch.setattr(values, "encode", lambda *given: encoded(*given) * (torch.nan if next(calls) == 1 else 1.0))
    boundary, steps = DtypeBoundary(build.denoiser(data.recipe, CPU)), StepSource(data, 0, 1)
    validator = Validator(
        boundary, examples.batch_encoder(encoder, source), World(0, 1, CPU), steps, data.entries(0), data.recipe
    )
    with closing(DecodePool(0, 60.0)) as pool:
        first, second = validator.run(pool), validator.run(pool)
    assert first == second
    (lost,) = first.unread
    assert "holds infinities or NaN" in lost.reason


@pytest.mark.parametrize("sees", [False, True])
def test_a_text_encoder_is_let_go_before_clips_are_encoded_unless_it_sees_them(tmp_path: Path, sees: bool) -> None:
    ids, text = SimpleNamespace(text_sees_pictures=sees), Lazy("text encoder", object)
    text.loaded()
    store = SimpleNamespace(path=tmp_path)
    source: Any = SimpleNamespace(store=store, keys=SimpleNamespace(ids=ids), data=None)
    encoder: Any = SimpleNamespace(text_encoder=text)
    EncodeWorker(source, encoder, DataConfig(num_workers=0)).encode_clips([], Progress(0), lambda _: None)
    assert bool(text.made) == sees
