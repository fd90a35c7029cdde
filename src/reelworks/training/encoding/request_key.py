"""Keys of stored latents and embeddings: digests of everything that their values depend on.

A key covers the content of the file, the decode request in full, the encoder's weights and settings, and the versions of
decoding and encoding. What changes any of these changes the key, so that a stored value cannot be stale. Fields that
`Request` gets later are covered by themselves.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import BaseModel

from reelworks.core import digests, files
from reelworks.core.log import logger
from reelworks.data.catalog.sources import IN_ORDER, REJECTED, source_of
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.loader.dataset import Dataset
from reelworks.data.loader.micro_batch import MicroBatchRequest
from reelworks.data.media import decode, location
from reelworks.data.media.decode import VERSION as DECODER_VERSION
from reelworks.data.media.decode import Request
from reelworks.data.media.location import MediaPath
from reelworks.data.media.pictures import WHITE
from reelworks.data.media.sound import VERSION as SOUND_VERSION
from reelworks.data.media.sound import SoundRequest
from reelworks.models import hub
from reelworks.models.storage import weights
from reelworks.models.text.encoders import NOT_OF_TEXT

ENCODER_VERSION = 1  # raise it when an encoder's code returns other values for the same weights
LATENT, CONTROL, FIRST_FRAME, IMAGE, TEXT = "latent", "control", "first_frame", "image", "text"
SOUND, EMPTY = "sound", "empty"
TEXTS = (TEXT, EMPTY)  # embeddings of the caption, and of the empty one in its place
# Keys of a recipe's tables that do not change what an encoder returns.
_WITHOUT_EFFECT = {"weights", "device"}
# Folders of a pipeline that have no part in embedding captions; its processor prepares the pictures that they refer to.
_NOT_OF_TEXT = NOT_OF_TEXT - {"processor"} | {"transformer_ref", "scheduler"}
# Files of a repository that no loader reads, beside hidden ones, such as the times of a download.
_UNREAD_SUFFIXES = {".md", ".pdf", ".png", ".jpg", ".jpeg", ".webp", ".gif", ".mp4"}
_UNREAD_STEMS = {"LICENSE", "NOTICE"}


@dataclass(frozen=True)
class EncoderIds:
    """Identities of a recipe's encoders.

    Attributes:
        autoencoder, text: Digests of weights and settings.
        image: Digest of the image encoder; None if the model has none.
        first_frame: How the first frame is encoded for the model, "grey" or "alone"; None if it is not.
        last_frame: Whether the last frame is encoded with it.
        given: Kinds of companions whose latents the model takes, and "rejected" if it learns preferences.
        control_parts: Whether the control is encoded in parts with the clip and its mask.
        empty_caption: Whether training also takes the empty caption for that of a clip.
        text_sees_pictures: Whether an embedding also depends on sources, and on the frames that the network is shown.
        latent_dtype: Dtype in which latents are stored.
        sound: Digest of the sound encoder; None if the model has no sound.
    """

    autoencoder: str
    text: str
    image: str | None = None
    first_frame: str | None = None
    last_frame: bool = False
    given: tuple[str, ...] = ()
    control_parts: bool = False
    empty_caption: bool = False
    text_sees_pictures: bool = False
    latent_dtype: str = "float32"
    sound: str | None = None

    @property
    def parts(self) -> tuple[str, ...] | None:
        """Kinds of companions that a control is encoded of together with the clip; None if each is encoded alone."""
        alone = (*IN_ORDER, REJECTED)
        return tuple(kind for kind in self.given if kind not in alone) if self.control_parts else None


def encoder_id(
    config: BaseModel,
    field: str,
    known: FileDigests,
    *,
    part: str | None = None,
    only: set[str] | None = None,
    compiled: bool = False,
) -> str:
    """Return the digest of an encoder: its settings and the content of its weights.

    Args:
        config: The recipe's table of the encoder, with a key `weights`.
        field: Recipe key of the weights, for errors.
        part: Folder of the weights if they are a whole pipeline; None takes all folders that embed captions.
        only: Settings that count; None counts all.
        compiled: Whether it is compiled so that its values differ by more than the order of sums.

    Raises:
        UserError: The weights do not exist.
    """
    source = getattr(config, "weights", None)
    settings = config.model_dump(include=only, exclude=_WITHOUT_EFFECT)
    content = None if source is None else _content(source, field, part, known)
    # Pipelines clean captions where they find the library for it, which is always there now.
    cleaned = ["cleaned"] if field == "text_encoder.weights" else []
    return digests.digest_json([ENCODER_VERSION, settings, content, *cleaned, *(["compiled"] if compiled else [])])


def image_encoder_id(kind: str, source: str, known: FileDigests) -> str:
    """Return the digest of an image encoder, with what prepares pictures for it."""
    parts = [_content(source, "model.image_encoder", part, known) for part in ("image_encoder", "feature_extractor")]
    return digests.digest_json([ENCODER_VERSION, kind, parts])


def _content(source: str, field: str, part: str | None, known: FileDigests) -> Any:
    """Identify weights: a snapshot of the hub by its commit, other files by their bytes."""
    place = weights.require_there(source, field).resolve()
    if (commit := hub.commit_of(place)) is not None:
        return [hub.strip_revision(source), commit, part]
    if place.is_file():
        config = place.parent / "config.json"
        return [known.digest(place), known.digest(config) if config.is_file() else None]
    if part is not None and (place / part).is_dir():
        place = place / part
    found = {path.relative_to(place).as_posix(): path for path in sorted(place.rglob("*")) if path.is_file()}
    skipped = _NOT_OF_TEXT if part is None else set[str]()
    used = {name: path for name, path in found.items() if name.split("/")[0] not in skipped and _is_read(name)}
    return {name: known.digest(path) for name, path in used.items()}


def _is_read(name: str) -> bool:
    path = PurePosixPath(name)
    is_hidden = any(part.startswith(".") for part in path.parts)
    return not is_hidden and path.suffix.lower() not in _UNREAD_SUFFIXES and path.stem.upper() not in _UNREAD_STEMS


class FileDigests:
    """Digests of large files, which are computed again when size or time of change differ; kept in a JSON file."""

    def __init__(self, path: Path) -> None:
        self._path, self._known = path, dict[str, Any]()
        if path.is_file():
            try:
                self._known = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                logger.debug("%s cannot be read; the files are digested again", path)

    def digest(self, path: Path) -> str:
        """Return the digest of a file's content."""
        status = path.stat()
        name, now = str(path), [status.st_size, status.st_mtime_ns, status.st_ino]
        former = self._known.get(name)
        if former is None or former[:3] != now:
            former = [*now, digests.of_file(path)]
            self._known[name] = former
            with suppress(OSError):  # of a store that cannot be written, or has no folder yet
                files.write_json(self._path, self._known)
        return str(former[3])


@dataclass(frozen=True)
class Wanted:
    """A value that a clip needs in training: its key, and what it was computed from, for people."""

    key: str
    kind: str
    encoder: str
    fingerprint: str
    label: str
    request: str


def of_request(
    kind: str,
    encoder: str,
    request: Request | None,
    fingerprint: str,
    *extra: Any,
    decoder_version: int = DECODER_VERSION,
) -> tuple[str, str]:
    """Return the key of a value that is encoded from a file, and the request as JSON text."""
    text = digests.json_text(None if request is None else _plain(request))
    # The JSON text of a list whose element the request is; to encode it a second time would double the time of a forecast.
    before = digests.json_text([decoder_version, kind, encoder, fingerprint])[:-1]
    after = "".join(f",{digests.json_text(each)}" for each in extra)
    return digests.digest_bytes(f"{before},{text}{after}]".encode()), text


def of_sound(encoder: str, request: SoundRequest, fingerprint: str, *extra: Any) -> tuple[str, str]:
    """Return the key of the sound of a clip, and its request as JSON text; size and crop of frames do not count."""
    clip = request.clip
    start = {name: _value(getattr(clip, name)) for name in _OF_SOUND}
    start |= {"frames": clip.shape.num_frames, "scanned": None if clip.measures is None else clip.measures.num_frames}
    asked = {field.name: getattr(request, field.name) for field in dataclasses.fields(request) if field.name != "clip"}
    text = digests.json_text(start | asked)
    return digests.digest_json([SOUND_VERSION, SOUND, encoder, fingerprint, text, *extra]), text


# Fields of a clip's request that say where its sound begins.
_OF_SOUND = ("step", "at_rate", "first_frame_draw", "short_clips", "first_frame", "num_frames")
# The content counts, wherever the file lies and its frames are found.
_COUNTED = tuple(field.name for field in dataclasses.fields(Request) if field.name not in ("path", "frame_ticks"))
# A picture has one frame, whatever is drawn, and one decoder.
_OF_PICTURES = {"step": 1.0, "at_rate": None, "first_frame_draw": 0.0, "short_clips": "reject", "decoder": None}


def _plain(request: Request) -> dict[str, Any]:
    """Return all fields that count as JSON values; a field of another kind of value is an error of ours."""
    values = {name: _value(getattr(request, name)) for name in _COUNTED}
    return values | _OF_PICTURES if request.is_image else values


def _value(value: Any) -> Any:
    kind: Any = type(value)
    names = _field_names(kind)
    return value if names is None else {name: _value(getattr(value, name)) for name in names}


@functools.cache
def _field_names(kind: type) -> tuple[str, ...] | None:
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(field.name for field in dataclasses.fields(kind) if field.compare)  # the others change no value


class Keys:
    """Keys of all values that the clips of a dataset need, or of those that an earlier version of decoding made of them."""

    def __init__(self, data: Dataset, ids: EncoderIds, decoder_version: int = DECODER_VERSION) -> None:
        self.data, self.ids, self._decoder_version = data, ids, decoder_version

    def wanted(self, work: MicroBatchRequest) -> list[dict[str, Wanted]]:
        """Return all that training reads of each clip of a micro-batch by name: "latent", "text", "control" and so on."""
        rows = self.data.rows.find(work.uids)
        scanned = self.data.rows.fingerprint.take(pa.array(rows)).to_pylist()
        return [self._of_clip(work, i, row, scanned[i]) for i, row in enumerate(rows.tolist())]

    def text(self, caption: str, shown: Mapping[str, Wanted] | None = None) -> Wanted:
        """Return the embedding of a caption, which may depend on the frames of values in their order."""
        encoder = self.ids.text
        keys = [each.key for each in (shown or {}).values()]
        seen = keys if len(keys) > 1 else next(iter(keys), None)
        return Wanted(digests.digest_json([TEXT, encoder, caption, seen]), TEXT, encoder, "", caption, "")

    def seen(self, wanted: Mapping[str, Wanted]) -> dict[str, Wanted]:
        """Return the values of a clip on whose frames the embedding of its caption depends, by name."""
        names = (*IN_ORDER, FIRST_FRAME) if self.ids.text_sees_pictures else ()
        return {name: wanted[name] for name in names if name in wanted}

    def by_clip(self, wanted: Iterable[str]) -> list[str]:
        """Return the names of values that are encoded clip by clip; other embeddings depend on the caption alone."""
        return [name for name in wanted if name not in TEXTS or self.ids.text_sees_pictures]

    def _of_clip(self, work: MicroBatchRequest, i: int, row: int, scanned: str) -> dict[str, Wanted]:
        ids, rows, label = self.ids, self.data.rows, self.data.rows.label(row)
        request = _effective(work.requests[i], rows, row, scanned)
        print_ = _content_of(scanned, request.path)
        latents = ids.autoencoder
        wanted = {LATENT: self._wanted(LATENT, latents, request, print_, label, ids.latent_dtype)}
        for kind in ids.given:
            if kind not in work.companions:  # a source that the clips lack
                continue
            companion, found = work.companions[kind][i], self.data.companions[source_of(kind)]
            if companion is not None:
                at = int(found.row[row])
                theirs = found.rows.fingerprint[at].as_py()
                their_print = _content_of(theirs, companion.path)
                if isinstance(companion, SoundRequest):
                    wanted[kind] = self._sound(companion, their_print, label)
                else:
                    companion = _effective(companion, found.rows, at, theirs)
                    wanted[kind] = self._wanted(LATENT, latents, companion, their_print, label, ids.latent_dtype)
        if ids.parts is not None:
            parts = [wanted[LATENT].key, *(wanted.pop(kind).key for kind in ids.parts if kind in wanted)]
            drawn = work.masks[i] if work.masks else None
            key = digests.digest_json([CONTROL, *parts, *([] if drawn is None else [dataclasses.asdict(drawn)])])
            wanted[CONTROL] = dataclasses.replace(wanted[LATENT], key=key, kind="control parts")
        moves = work.shape.num_frames > 1
        if ids.first_frame is not None and (moves or ids.first_frame == "grey"):
            kind = f"{FIRST_FRAME} {ids.first_frame}" + " last" * ids.last_frame
            wanted[FIRST_FRAME] = self._wanted(kind, latents, request, print_, label, ids.latent_dtype)
        if ids.sound is not None:
            sound = work.sounds[i]
            assert sound is not None, "only clips that are found in the store have none"
            wanted[SOUND] = self._sound(dataclasses.replace(sound, clip=request), print_, label)
        if ids.image is not None and moves:
            wanted[IMAGE] = self._wanted(IMAGE + " last" * ids.last_frame, ids.image, request, print_, label)
        seen = self.seen(wanted)
        wanted[TEXT] = self.text(work.captions[i], seen)
        if ids.empty_caption:
            wanted[EMPTY] = self.text("", seen)
        return wanted

    def _sound(self, request: SoundRequest, fingerprint: str, label: str) -> Wanted:
        assert self.ids.sound is not None
        key, text = of_sound(self.ids.sound, request, fingerprint, self.ids.latent_dtype)
        return Wanted(key, SOUND, self.ids.sound, fingerprint, label, text)

    def _wanted(self, kind: str, encoder: str, request: Request, fingerprint: str, label: str, *extra: Any) -> Wanted:
        key, text = of_request(kind, encoder, request, fingerprint, *extra, decoder_version=self._decoder_version)
        return Wanted(key, kind, encoder, fingerprint, label, text)


def _tells_content(scanned: str) -> bool:
    """Whether a fingerprint of the catalog is that of a file that was read and measured."""
    return len(scanned.rpartition("-")[2]) == 32


def _content_of(scanned: str, path: MediaPath) -> str:
    """Return what stands for a file's content: of a trusted list, another file may have the same size and time."""
    return scanned if _tells_content(scanned) else f"{scanned} {path}"


def _effective(request: Request, rows: CatalogRows, at: int, scanned: str) -> Request:
    """Return a request without settings that have no effect on a file with the measures of a row."""
    if not _tells_content(scanned):
        return request
    if request.alpha_color != WHITE and rows.is_image[at] and not rows.has_alpha[at]:  # films may have it later
        request = dataclasses.replace(request, alpha_color=WHITE)
    if request.short_clips != "reject" and not decode.is_short(request, int(rows.num_frames[at])):
        request = dataclasses.replace(request, short_clips="reject")
    return request


def unchanged(data: Dataset, work: MicroBatchRequest, i: int, kinds: Iterable[str]) -> bool:
    """Return whether a clip and its companions of some kinds still are as they were scanned, so that values may be stored."""
    row = int(data.rows.find(work.uids[i : i + 1])[0])
    files = [(data.rows, row, work.requests[i].path)]
    for kind in kinds:
        if kind in work.companions and (companion := work.companions[kind][i]) is not None:
            found = data.companions[source_of(kind)]
            files.append((found.rows, int(found.row[row]), companion.path))
    try:
        for rows, at, path in files:
            scanned = rows.fingerprint[at].as_py()
            if scanned and not location.is_as_scanned(path, int(rows.size_bytes[at]), int(rows.mtime_ns[at]), scanned):
                return False
    except OSError:
        return False
    return True


def key_words(keys: list[str]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return keys as rows of two integers, `[N, 2]`."""
    return np.frombuffer(bytes.fromhex("".join(keys)), dtype=">u8").astype(np.uint64).reshape(-1, 2)
