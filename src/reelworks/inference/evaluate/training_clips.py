"""Training clips that metrics compare generated ones with, read when the first metric asks for them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reelworks.core import digests, log
from reelworks.core.hash_rng import hash64
from reelworks.data.loader import decode_requests, held_out
from reelworks.data.media import decode_pool
from reelworks.data.media.reading import MediaError
from reelworks.data.schedule.plan import Samples
from reelworks.inference.evaluate import clips
from reelworks.inference.evaluate.clips import MeasuredClip, Unreadable
from reelworks.training.recipe.dataset import RecipeData

MOST = 256  # clips; of more, a sample that depends on the seed alone

Embedding = NDArray[np.float64]
Embed = Callable[[MeasuredClip], Embedding]


@dataclass(frozen=True)
class Embedded:
    """Embeddings of training clips.

    Attributes:
        names: Name of each clip.
        plain: Embeddings of each clip's frames, `[N, D]`, rows of length 1.
        mirrored: Those of the frames mirrored left to right.
    """

    names: tuple[str, ...]
    plain: tuple[Embedding, ...]
    mirrored: tuple[Embedding, ...]


@dataclass(frozen=True)
class TrainingClips:
    """At most 256 training clips.

    Attributes:
        read: Decodes them, one after the other.
        digest: Returns a digest of their names or uids; their files are not read.
    """

    read: Callable[[], Iterable[MeasuredClip | Unreadable]]
    digest: Callable[[], str]
    _embedded: dict[str, Embedded] = field(default_factory=dict, compare=False)

    @classmethod
    def of_files(cls, files: dict[str, Path]) -> TrainingClips:
        """Return the clips of some files by name, as a player shows them."""
        chosen = sorted(files, key=lambda name: digests.digest_bytes(name.encode()))[:MOST]
        some = {name: files[name] for name in sorted(chosen)}
        return cls(lambda: clips.read(some), lambda: digests.digest_json(sorted(some)))

    @classmethod
    def of_data(cls, data: RecipeData) -> TrainingClips:
        """Return clips of the first epoch as training reads them, without augmentation, each in the first of its buckets.

        Clips that preserve what the base says are left out: the model does not learn them.
        """

        @functools.cache
        def choose() -> Samples:
            entries = data.entries(0)
            rows = np.searchsorted(data.rows.ordinal, entries.ordinal)
            entries = entries.take(np.flatnonzero(~held_out.preserving(data.rows, data.spec)[rows]))
            _, first = np.unique(entries.uid, return_index=True)
            order = np.argsort(hash64(data.recipe.seed, entries.uid[first]), kind="stable")
            return entries.take(first[order[:MOST]])

        def read() -> Iterator[MeasuredClip | Unreadable]:
            chosen = choose()
            rows = np.searchsorted(data.rows.ordinal, chosen.ordinal)
            words = decode_requests.clip_hash(data, rows, chosen.copy, epoch=0)
            for i, bucket in enumerate(chosen.bucket.tolist()):
                one = slice(i, i + 1)
                (request,) = decode_requests.decode_requests(data, rows[one], words[one], bucket, augments=False)
                name = data.rows.label(int(rows[i]))
                try:
                    yield MeasuredClip(name, decode_pool.load(request))
                except MediaError as error:
                    yield Unreadable(name, str(error))

        return cls(read, lambda: digests.digest_json([int(uid) for uid in choose().uid]))

    def embedded(self, key: str, embed: Embed) -> Embedded:
        """Return the embeddings of all clips that can be read, which are computed once for each key."""
        if key not in self._embedded:
            names, plain, mirrored = list[str](), list[Embedding](), list[Embedding]()
            with log.stage(f"reading training clips for {key}", lambda: f"{len(names)} read"):
                for clip in self.read():
                    if isinstance(clip, MeasuredClip):
                        names.append(clip.name)
                        plain.append(embed(clip))
                        mirrored.append(embed(clip.mirrored()))
            self._embedded[key] = Embedded(tuple(names), tuple(plain), tuple(mirrored))
        return self._embedded[key]
