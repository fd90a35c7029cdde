"""Say in a word what a run has learnt of each clip, where its losses show that, and rank the others by how unusual they are.

`words_of` is a function of the table alone. A clip is compared with its peers, the clips of its bucket, by robust statistics: a
median, and deviations from it on its own side, since losses are skewed. A word that tells of a fault is said beyond twice the
deviation that, by a normal distribution, any one of all the clips that are compared passes with a chance of `ERROR_RATE`; so
more is asked for among more clips. What lies nearer to the median is a rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.annexes.learning.losses import FILE, ClipLossError, ClipLosses
from reelworks.core.arrays import F64, I64, U64
from reelworks.core.errors import UserError
from reelworks.data.checkpoint import verify
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.manifest import BadCheckpoint
from reelworks.data.loader import segment_record
from reelworks.data.run import events, records
from reelworks.data.run.folder import RunFolder
from reelworks.data.run.records import RecordError
from reelworks.data.schedule.cursor import Aliases
from reelworks.training.coverage.coverage import NamedCatalog

FEWEST_SHOWN = 4  # times trained before losses say more of a clip than of its noise
FEWEST_PEERS = 20  # of a bucket; with fewer, all clips are compared, whose losses are normalised by bucket; of so few, no word is sure
HEAVY_TAILS = 2.0  # as in photographs: of ten sets of 400, the good clip that was furthest lay at 1.6
ERROR_RATE = 0.01  # chance that a word is said of any clip of a set in which all are usual
# Of the logarithm of a loss, and of a gain, for a deviation at least: a set without spread has no outliers.
LEAST_SPREAD, LEAST_GAIN_SPREAD = 0.03, 0.005
NORMAL = 1.4826  # of a normal distribution, a standard deviation by its median absolute deviation
TAIL, TAIL_DEVIATIONS = 0.1, 1.2816  # share of the clips in a tail, and where it begins in a normal distribution
SURE = 4  # measurements of a caption before a word is said of it
OFTEN = 8  # times as often trained as the median of its peers, from which on a clip is compared as one of few
FIRST = 10  # clips to look at, of which no word is sure
NUMBERS = ("gain", "high_loss", "low_loss", "by_heart")  # of a clip, which may be unusual
STILL_FALLING = 0.03  # by which the loss fell lately where it is still falling


class Word(IntEnum):
    """Result for a clip; those to look at come first."""

    NOT_LEARNT = 0
    WITHOUT_EFFECT = 1
    MEMORISED = 2
    STILL_LEARNING = 3
    LEARNT = 4
    TOO_EARLY = 5

    @property
    def label(self) -> str:
        """The word in reports."""
        return "caption_without_effect" if self == Word.WITHOUT_EFFECT else self.name.lower()

    @classmethod
    def named(cls, label: str) -> Word:
        """Return the word with a label."""
        known = {word.label: word for word in cls}
        if (found := known.get(label.replace("-", "_"))) is None:
            raise UserError(
                "there is no such word",
                code="unknown-word",
                field="--word",
                value=label,
                remedy=f"choose among {', '.join(known)}",
            )
        return found


@dataclass(frozen=True)
class ClipWords:
    """Words for the clips of a table, in arrays with an element for each.

    Attributes:
        word: A `Word`.
        unusual: Index into `NUMBERS` of the most unusual one.
        share: Its deviation from the median of its peers, as a share of the one from which on a word is said.
        trend: Logarithm of the ratio of its loss now to that when it was first trained.
        rank: Share of its peers with a lower loss.
        level: Logarithm of the ratio of its loss lately to the median of its peers: the usual loss of the account follows a
            falling loss late.
    """

    word: NDArray[np.int8]
    unusual: NDArray[np.int8]
    share: F64
    trend: F64
    rank: F64
    level: F64


def words_of(table: ClipLosses) -> ClipWords:
    """Return the words for the clips of a table; a pure function of it."""
    peers, known = _peers(table), table.shown >= FEWEST_SHOWN
    outlier, fall, rank = (np.zeros(len(table)) for _ in range(3))
    level = table.recent.astype(np.float64)
    often = np.zeros(len(table), np.bool_)
    drop = (table.recent - table.first).astype(np.float64)
    for group in np.unique(peers[known]).tolist():
        where = np.flatnonzero(known & (peers == group))
        others = np.flatnonzero(known) if group < 0 else where
        among = table.recent[others]
        level[peers == group] -= np.median(among)
        outlier[where] = deviations(table.recent[where], among, LEAST_SPREAD)
        rank[where] = np.searchsorted(np.sort(among), table.recent[where], side="left") / max(len(among) - 1, 1)
        fall[where] = deviations(drop[where], drop[others], LEAST_SPREAD)
        often[where] = table.shown[where] >= OFTEN * np.median(table.shown[others])
    # A plain picture has a low loss, and one that is learnt by heart fell more than others, too.
    usual_limit = limit(int(known.sum()))
    low = np.where(often & (outlier < 0), -fall, np.minimum(-outlier, -fall))
    low /= np.where(often, limit(int(often.sum())), usual_limit)
    high = outlier / usual_limit
    high[(table.measured > 0) & (table.gain > 0) & (high <= 1)] = 0  # a picture is rich whose caption helps
    shares = np.stack([_doubt(table), high, low, np.minimum(_share_measured(table, table.by_heart), 1)]) * known
    if known.sum() < FEWEST_PEERS:
        shares = np.minimum(shares, 1)
    word = np.full(len(table), Word.LEARNT, np.int8)
    # Their own losses beside the usual one, and the usual one with the course of the run.
    lately = table.about.usual_change(np.array([(table.about.step + 1) // 2]))
    word[table.recent - table.longer + lately < -STILL_FALLING] = Word.STILL_LEARNING
    for fault, share in zip((Word.MEMORISED, Word.NOT_LEARNT, Word.WITHOUT_EFFECT), shares[2::-1], strict=True):
        word[share > 1] = fault
    word[~known] = Word.TOO_EARLY
    trend = drop + table.about.usual_change(table.settled)
    return ClipWords(word, shares.argmax(axis=0).astype(np.int8), shares.max(axis=0), trend, rank, level)


def limit(clips: int) -> float:
    """Return twice the deviation that, by a normal distribution, any of so many usual clips passes with a chance of `ERROR_RATE`.

    For good captions of rare clips lie further than normal deviations do.
    """
    return HEAVY_TAILS * NormalDist().inv_cdf(1 - ERROR_RATE / max(clips, 1))


def _doubt(table: ClipLosses) -> F64:
    """Return how far the gain of each clip lies below the usual one, as a share of the limit; 0 if too few were measured.

    A caption that helps little does not pass the limit: it may be a good one of a rare clip; one of another clip raises the loss.
    """
    below = _share_measured(table, -table.gain)
    return np.where(table.gain >= 0, np.minimum(below, 1), below)


def _share_measured(table: ClipLosses, values: NDArray[np.floating]) -> F64:
    """Return how far what was measured of each clip lies above the usual one, as a share of the limit; 0 if too few were measured.

    Most clips were measured once, so that the deviation has all the noise of one measurement. Fewer than `SURE` do not pass the
    limit: the highest of many is high by its noise, and falls when it is measured again.
    """
    measured = (table.measured > 0) & ~table.held_out & np.isfinite(values)
    if measured.sum() < FEWEST_PEERS:
        return np.zeros(len(table))
    above = deviations(values, values[measured], LEAST_GAIN_SPREAD) / limit(int(measured.sum()))
    return np.where(measured, np.where(table.measured < SURE, np.minimum(above, 1), above), 0.0)


def _peers(table: ClipLosses) -> I64:
    """Return the group of clips that each is compared with: its bucket's, or -1 for all clips where those are few."""
    bucket = table.bucket.astype(np.int64)
    count = np.bincount(bucket[table.shown >= FEWEST_SHOWN], minlength=int(bucket.max(initial=0)) + 1)
    return np.where(count[bucket] >= FEWEST_PEERS, bucket, -1)


def deviations(values: NDArray[np.floating], among: NDArray[np.floating], least: float) -> F64:
    """Return by how many deviations values lie above the median of others, or below it if negative.

    The deviation is that of the others on the same side, by their median and by where their tail begins, whichever is larger,
    and at least `least`.
    """
    if not len(among):
        return np.zeros(len(values))
    others = np.asarray(among, np.float64) - np.median(among)
    apart = np.asarray(values, np.float64) - np.median(among)
    sides = []
    for sign in (1, -1):
        half = others[sign * others >= 0]
        tail = float(np.quantile(sign * others, 1 - TAIL)) / TAIL_DEVIATIONS
        sides.append(max(NORMAL * float(np.median(np.abs(half))), tail, least))
    return np.asarray(apart / np.where(apart > 0, *sides), np.float64)


@dataclass(frozen=True)
class ClipLearning:
    """A clip with its word and the numbers behind it.

    Attributes:
        path: "dataset/path", with the frames of a range; its uid alone if no record of the run names it.
        word: "not_learnt" (its loss is far above that of its peers: look at it), "caption_without_effect" (it raises its
            loss, while those of its peers lower it), "memorised" (its loss is far below, and fell far more),
            "still_learning", "learnt", or "too_early". Each of the first three is said where a set of usual clips has any such clip
            with a chance of `error_rate`.
        unusual: Its most unusual number, which its rank is by: "gain", "high_loss", "low_loss", or "by_heart": a LoRA lowers
            its loss without its caption far more than that of others, by which no word is said.
        unusual_share: How far that lies from the median of its peers, as a share of the distance at which a word is said.
        shown: Times that it was trained with its caption.
        loss: Its loss lately, as a multiple of that of its peers at the same timesteps.
        trend: Its loss lately, as a multiple of that when it was first trained.
        rank: Share of its peers, the clips of its bucket, that have a lower loss.
        gain: Share of the loss without its caption that its caption takes away; below 0 if the loss is higher with it. None
            if it was not measured.
        measured: Times that it was measured.
    """

    path: str
    uid: int
    word: str
    unusual: str
    unusual_share: float
    bucket: str
    shown: int
    loss: float
    trend: float
    rank: float
    gain: float | None
    measured: int


@dataclass(frozen=True)
class LearningReport:
    """Words for the clips of a run, by the losses in its newest checkpoint.

    Attributes:
        step: Step of that checkpoint.
        counts: Clips by word.
        error_rate: Chance of each word that tells of a fault to be said of any clip of a set in which all are usual.
        measured: Clips that were measured with fixed noise, held-out ones included.
        share_of_time: Time of these measurements, as a share of the time of the steps.
        below_held_out: Share of the trained clips whose loss is lower than that of all held-out clips; None without any.
        clips: The selected clips.
    """

    run: Path
    step: int
    counts: dict[str, int]
    error_rate: float
    measured: int
    share_of_time: float | None
    below_held_out: float | None
    clips: list[ClipLearning]


@dataclass(frozen=True)
class Learning:
    """Losses of a run's clips with their words and names."""

    run: RunFolder
    table: ClipLosses
    found: ClipWords
    _orders: dict[str, I64] = field(default_factory=dict)  # places of the trained clips by order

    @classmethod
    def of_run(cls, run: RunFolder) -> Learning:
        """Read the newest checkpoint of a run that holds losses of clips, and say what was learnt; without held-out clips.

        Raises:
            UserError: No checkpoint holds any.
        """
        run.info()
        infos, broken = CheckpointFolder(run.checkpoints_folder).scan()
        problems = list(broken.values())
        for info in reversed(infos):
            try:
                if verify.has_extra(info.path, FILE):
                    table = ClipLosses.from_bytes(verify.read_extra(info.path, FILE))
                    return cls(run, table, words_of(table))
            except (BadCheckpoint, ClipLossError, OSError) as error:
                problems.append(f"{info.path.name}: {error}")
        raise UserError(
            "no checkpoint of this run holds losses of clips" + (f" ({problems[0]})" if problems else ""),
            code="no-clip-losses",
            field="RUN",
            value=str(run.path),
            remedy='train with train.clip_losses = "auto"; a run that resumes with it notes them from then on',
        )

    @cached_property
    def counts(self) -> dict[str, int]:
        """Trained clips by word."""
        number = np.bincount(self.found.word[self._is_trained], minlength=len(Word))
        return {word.label: int(number[word]) for word in Word if number[word]}

    @property
    def _is_trained(self) -> NDArray[np.bool_]:
        return ~self.table.held_out & (self.table.shown > 0)

    def places(self, sort: str = "worst", wanted: Iterable[str] = ()) -> I64:
        """Return the indices of the trained clips with one of the words `wanted`, or of all without any, in an order."""
        labels = [Word.named(word) for word in wanted]
        if sort not in self._orders:
            self._orders[sort] = self._ordered(sort)
        order = self._orders[sort]
        return order[np.isin(self.found.word[order], labels)] if labels else order

    def to_look_at(self) -> tuple[I64, I64]:
        """Return the clips with a word that tells of a fault, and the `FIRST` most unusual ones of the others."""
        places = self.places()
        is_fault = self.found.word[places] <= Word.MEMORISED
        others = places[~is_fault]
        return places[is_fault], others[self.found.share[others] > 0][:FIRST]

    def _ordered(self, sort: str) -> I64:
        table, where = self.table, np.flatnonzero(self._is_trained)
        if sort == "path":
            names = self.names(where)
            order: I64 = pc.sort_indices(pa.array(names, pa.large_string())).to_numpy().astype(np.int64)
            return where[order]
        gain = np.where(table.measured > 0, table.gain, np.inf)
        is_fault = self.found.word <= Word.MEMORISED
        keys = {
            "worst": (-self.found.share, ~is_fault),
            "loss": (-self.found.level,),
            "trend": (-self.found.trend,),
            "gain": (gain,),
        }
        # The table is by key, and so are equal clips: the order is the same everywhere.
        return where[np.lexsort([key[where] for key in keys[sort]])]

    def names(self, places: I64) -> list[str]:
        """Return the "dataset/path" of clips, by the run's newest copy of a catalog that has them."""
        names = [""] * len(places)
        for found, named, ordinal in self.located(places):
            for i, path in zip(found.tolist(), named.paths(ordinal), strict=True):
                names[i] = path
        return [name or f"{uid:016x}" for name, uid in zip(names, self.table.key[places].tolist(), strict=True)]

    def located(self, places: I64) -> Iterator[tuple[I64, NamedCatalog, I64]]:
        """Yield which of some clips a copy of a catalog has, the catalog, and their rows in it; each clip once."""
        key, left = self.table.key[places], np.arange(len(places))
        for named, known, order in self._catalogs:
            at = np.searchsorted(known, key[left], side="right") - 1
            there = (at >= 0) & (known[at] == key[left])
            yield left[there], named, order[at[there]]
            left = left[~there]
            if not len(left):
                return

    @cached_property
    def _catalogs(self) -> list[tuple[NamedCatalog, U64, I64]]:
        """The run's copies of catalogs, the newest first, with the keys of their rows in order, and the rows."""
        found = []
        for named in _catalogs(self.run):
            known = named.aliases.keys(np.arange(len(named.uids)), named.uids)
            # Rows are only appended: the last one of a clip is the newest.
            order = np.argsort(known, kind="stable")
            found.append((named, known[order], order))
        return found

    def clips(self, places: I64) -> list[ClipLearning]:
        """Return what was learnt of clips."""
        table, found = self.table, self.found
        return [
            ClipLearning(
                path,
                int(table.key[i]),
                Word(int(found.word[i])).label,
                NUMBERS[int(found.unusual[i])],
                float(found.share[i]),
                table.about.buckets[int(table.bucket[i])],
                int(table.shown[i]),
                float(np.exp(found.level[i])),
                float(np.exp(found.trend[i])),
                float(found.rank[i]),
                float(1 - np.exp(-table.gain[i])) if table.measured[i] > 0 else None,
                max(int(table.measured[i]), 0),
            )
            for i, path in zip(places.tolist(), self.names(places), strict=True)
        ]

    def report(self, places: I64) -> LearningReport:
        """Return the counts of all clips, and what was learnt of those at `places`."""
        table, known, below = self.table, self.table.measured > 0, None
        held_out, trained = known & table.held_out, known & ~table.held_out
        if held_out.any() and trained.any():  # both measured, so that what differs cancels out
            below = float((table.level[trained] < table.level[held_out].min()).mean())
        measured, share = int(known.sum()), share_of_time(self.run)
        return LearningReport(
            self.run.path, table.about.step, self.counts, ERROR_RATE, measured, share, below, self.clips(places)
        )


def share_of_time(run: RunFolder) -> float | None:
    """Return the time that measurements of a run took, as a share of that of its steps; None before the first step."""
    seconds = {"step": 0.0, "clip_losses": 0.0}
    for event in events.read(run.events_file, *seconds):
        if isinstance(took := event.get("seconds"), int | float):
            seconds[event["kind"]] += took
    return seconds["clip_losses"] / seconds["step"] if seconds["step"] else None


def _catalogs(run: RunFolder) -> Iterator[NamedCatalog]:
    """Yield the run's copies of catalogs, each as its newest readable record has it, the newest first."""
    seen = set[str]()
    for key in reversed(records.keys(run)):
        try:
            about = records.read_about(run, key)
            if about.catalog in seen:
                continue
            catalog, aliases = segment_record.recorded_catalog(run, about), Aliases()
            if records.ALIASES in about.files:
                record = records.read(run, key)
                aliases = Aliases(record.alias_ordinal, record.alias_key)
        except RecordError:
            continue
        seen.add(about.catalog)
        yield NamedCatalog(catalog, aliases, catalog.uids())
