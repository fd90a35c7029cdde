"""Facts about a run's data: headline numbers, buckets, reasons and coverage."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

from reelworks.core import results, toml, units, user_files
from reelworks.data.buckets.assign import Reason as Rule
from reelworks.data.checkpoint import names as checkpoint_names
from reelworks.data.run import history
from reelworks.data.run.events import Event
from reelworks.data.run.folder import RunFolder
from reelworks.reports import status
from reelworks.reports.run_data import RunData
from reelworks.training.coverage import stop_advice
from reelworks.training.coverage.coverage import EpochCoverage, State
from reelworks.training.coverage.stop_advice import StopAdvice
from reelworks.training.plan.plan_report import PlannedBucket, PlanSummary
from reelworks.training.plan.rejections import LeftOutClip
from reelworks.training.step import spikes as advice

FAILURES = {  # label and remedy
    "failed": ("failed while training", "Counted under coverage; check the file."),
    "unread": ("not read in validations", "The loss of the others is told; check the file."),
}
MAX_NAMES = 500  # file names listed per reason, so that browsers can open the page
MAX_SPIKES = 50
REASONS: dict[str, tuple[str, str]] = {  # label and remedy
    name: (told["label"], told["remedy"]) for name, told in toml.beside(__file__, "reasons.toml").items()
}
PLANNED = frozenset(reason.label for reason in Rule if reason.is_planned)
CHOSEN = frozenset(reason.label for reason in Rule if reason.is_chosen)
_TONES = ("c6", "c8", "c3", "c7", "c4", "c2")


@dataclass(frozen=True)
class Fact:
    """A card with a label, a value and a note."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class ReasonFact:
    """Clips that are not trained for one reason, with its name in the summary and its label in reports."""

    name: str
    label: str
    remedy: str
    files: list[LeftOutClip]  # the first clips
    total: int
    nearest: dict[str, int]  # for clips that fit no bucket, their number by the entry that is closest to fitting
    failed: dict[str, int]  # for clips that a filter leaves out, their number by the parts of it that they fail
    all_in: str = ""  # file that lists all clips, if it is not the one that the page names


@dataclass(frozen=True)
class BarPart:
    """A coloured part of a bar."""

    label: str
    total: int
    share: float
    tone: str


def reasons(summary: PlanSummary | None) -> list[ReasonFact]:
    """Return the reasons of a plan's summary that have clips: rejections first, then those by choice, most frequent first."""
    listed = []
    for name, clips in summary.reasons.items() if summary else ():
        label, remedy = REASONS.get(name, (name.replace("_", " "), ""))
        if clips and summary:
            counts = summary.left_out[name]
            listed.append(
                ReasonFact(name, label, remedy, clips[:MAX_NAMES], counts.clips, counts.nearest, counts.failed)
            )
    return sorted(listed, key=lambda one: (one.name in PLANNED, one.name in CHOSEN, -one.total))


def failures(data: RunData) -> list[ReasonFact]:
    """Return the planned clips that could not be read during training, and the held-out ones in validations, each once."""
    told = [(e, LeftOutClip(e.get("path", ""), e.get("reason", ""))) for e in data.events_of("failure")]
    trained = {event["uid"]: clip for event, clip in told if not event.get("held_out")}
    held_out = {event["uid"]: clip for event, clip in told if event.get("held_out")}
    return [
        ReasonFact(name, *FAILURES[name], [*clips.values()][:MAX_NAMES], len(clips), {}, {}, "events.jsonl")
        for name, clips in (("failed", trained), ("unread", held_out))
        if clips
    ]


def rejected(summary: PlanSummary) -> int:
    """Return the number of clips that cannot be trained, without those that the recipe leaves out or keeps for later."""
    return sum(reason.total for reason in reasons(summary) if reason.name not in PLANNED | CHOSEN)


def accounting(summary: PlanSummary | None) -> list[BarPart]:
    """Divide the scanned clips into planned, held out, and each reason."""
    if summary is None:
        return []
    parts = [("planned", summary.planned, "c1"), ("held out", summary.held_out, "c5")]
    others = [reason for reason in reasons(summary) if reason.name != "held_out"]
    parts += [(one.label, one.total, tone) for one, tone in zip(others, cycle(_TONES), strict=False)]
    total = sum(number for _, number, _ in parts)
    return [BarPart(label, number, number / total, tone) for label, number, tone in parts if number]


def balance(summary: PlanSummary | None) -> str:
    """Return a sum that accounts for every scanned clip, or "" if repeats change the total."""
    parts = accounting(summary)
    if summary is None or not parts or sum(part.total for part in parts) != summary.catalog.clips:
        return ""
    return f"{units.count(summary.catalog.clips)} = " + " + ".join(units.count(part.total) for part in parts)


@dataclass(frozen=True)
class BucketFact:
    """A bucket of a plan, with its tokens and its shares of all planned clips and tokens, from 0 to 1."""

    bucket: PlannedBucket = field(metadata=results.INLINED)
    tokens: int
    share_of_clips: float
    share_of_tokens: float


def buckets(summary: PlanSummary | None) -> list[BucketFact]:
    """Return the buckets in the plan's order."""
    rows = summary.buckets if summary else []
    tokens = [row.clips * row.tokens_per_clip for row in rows]
    all_clips, all_tokens = sum(row.clips for row in rows) or 1, sum(tokens) or 1
    return [BucketFact(row, n, row.clips / all_clips, n / all_tokens) for row, n in zip(rows, tokens, strict=True)]


@dataclass(frozen=True)
class CoverageRow:
    """Numbers of an epoch's planned clips by state."""

    name: str  # number of the epoch, with its stage or the number of data restarts, if any
    planned: int
    trained: int
    failed: int
    skipped: int
    done: bool
    state: str  # "adds up", "under way", "lost" if a record is missing, or "contradiction"
    note: str  # missing records and contradictions


def coverage(data: RunData) -> list[CoverageRow]:
    """Return a row for each epoch, newest first."""
    return [coverage_row(epoch) for epoch in reversed(data.coverage)]


def coverage_row(epoch: EpochCoverage) -> CoverageRow:
    """Return an epoch's numbers."""
    lost = epoch.lost
    state = "adds up" if epoch.done else "under way"
    if lost:
        state = "lost"
    elif not (epoch.adds_up or epoch.pruned):
        state = "contradiction"
    return CoverageRow(
        history.epoch_name(epoch.epoch, epoch.data_restarts, epoch.stage),
        epoch.planned,
        epoch.number(State.TRAINED) + sum(one.trained for one in lost),
        epoch.number(State.FAILED) + sum(one.failed for one in lost),
        epoch.number(State.SKIPPED),
        epoch.done,
        state,
        "; ".join([*map(str, lost), *epoch.problems]),
    )


@dataclass(frozen=True)
class MeasuredStep:
    """Measurements of a checkpoint.

    Attributes:
        values: Value of each name as text, with whether it is the best.
        clips: Generated clips, one for each prompt; files that may be gone.
        copied: Training clips that clips look copied from, by the number of the clip.
    """

    step: int
    values: list[tuple[str, bool]]
    clips: list[Path]
    copied: dict[str, str]


@dataclass(frozen=True)
class MeasuredSteps:
    """The newest measurements of several checkpoints by `eval --checkpoints`.

    Attributes:
        names: Names of what was measured, and whether higher values are better.
        advice: The step to use, and why; empty if there is none.
        about: Shape and seed of the generated clips.
    """

    names: dict[str, bool]
    prompts: list[str]
    rows: list[MeasuredStep]
    advice: str
    about: tuple[str, int]


def measured(run: RunFolder) -> MeasuredSteps | None:
    """Return the newest measurements of several checkpoints; None if there are none that can be read."""
    try:
        files = list(run.evaluations_folder.glob("checkpoints-*.json"))
        if not files:
            return None
        newest = max(files, key=lambda path: path.stat().st_mtime)
        value = user_files.read_json(newest)
        best, use = value["best"], value["advice"]
        higher = {m["name"]: m["higher_is_better"] for one in value["checkpoints"] for m in one["metrics"]}
        return MeasuredSteps(
            {name: bool(higher.get(name)) for name in best},
            [str(prompt) for prompt in value["prompts"]],
            [_measured_step(one, best, newest.with_suffix("")) for one in value["checkpoints"]],
            "" if use is None else StopAdvice(**use).to_text(),
            (str(value["shape"]), int(value["seed"])),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _measured_step(one: Event, best: dict[str, int], folder: Path) -> MeasuredStep:
    step, of = one["step"], {"loss": one["loss"], **{m["name"]: m["value"] for m in one["metrics"]}}
    return MeasuredStep(
        step,
        [("–" if of.get(name) is None else f"{of[name]:.4g}", step == best[name]) for name in best],
        # The run's folder may have been moved since.
        [folder / checkpoint_names.of_step(step) / Path(clip).name for clip in one["clips"]],
        dict(one.get("copied", {})),
    )


@dataclass(frozen=True)
class SpikeRow:
    """A step far above the usual, with its clips and what can be done about it."""

    step: int
    measure: str
    value: float
    usual: float
    bucket: str
    skipped: bool
    clips: list[Event]  # with path and loss, by falling loss
    remedy: str


def spikes(data: RunData) -> list[SpikeRow]:
    """Return the last spikes, newest first."""
    events = data.events_of("spike")[-MAX_SPIKES:]
    recipe, rows = data.recipe_values, []
    starts = [(start.get("step", 0), start.get("stage", {}).get("name", "")) for start in data.events_of("start")]
    for e in reversed(events):
        stage = next((name for begun, name in reversed(starts) if begun < e["step"]), "")
        tables = [recipe, *(one for one in recipe.get("stage", []) if one["name"] == stage)]
        skips = [table["train"]["skip_steps"] for table in tables if "skip_steps" in table.get("train", {})]
        remedy = "" if e["skipped"] else advice.remedy(e["step"], data.on_disk, next(reversed(skips), []), stage)
        measure = e["what"].replace("grad_norm", "gradient norm")
        rows.append(SpikeRow(e["step"], measure, e["value"], e["usual"], e["bucket"], e["skipped"], e["clips"], remedy))
    return rows


@dataclass(frozen=True)
class RankRow:
    """A rank that was slow for its micro-batches, with the largest factor that was measured."""

    rank: int
    host: str
    factor: float
    times: int  # comparisons in which it was slow


@dataclass(frozen=True)
class RankBalance:
    """Planned and measured waiting of ranks, over all comparisons of a run."""

    comparisons: int
    planned: float
    measured: float
    ms_per_clip: dict[str, float]  # of a forward pass, by bucket: the median of the comparisons
    stragglers: list[RankRow]


def balance_of_ranks(data: RunData) -> RankBalance | None:
    """Return how long ranks waited for one another; None if the run did not compare them."""
    found = data.events_of("balance")
    # Weigh each comparison by the time that it covers; the last one may be short.
    weights = [sum(e["seconds_by_rank"]) for e in found]
    if not sum(weights):
        return None
    planned, measured = (
        sum(w * e[key] for w, e in zip(weights, found, strict=True)) / sum(weights) for key in ("planned", "measured")
    )
    by_bucket: dict[str, list[float]] = {}
    slow: dict[int, list[Event]] = {}
    for event in found:
        for bucket, ms in event["forward_ms_per_clip"].items():
            by_bucket.setdefault(bucket, []).append(ms)
        for one in event["stragglers"]:
            slow.setdefault(one["rank"], []).append(one)
    rows = [RankRow(r, e[-1]["host"], max(one["factor"] for one in e), len(e)) for r, e in sorted(slow.items())]
    ms_per_clip = {bucket: statistics.median(ms) for bucket, ms in sorted(by_bucket.items())}
    return RankBalance(len(found), planned, measured, ms_per_clip, rows)


def headline(data: RunData) -> list[Fact]:
    """Return the cards on top of the report."""
    return [*_data_facts(data), *_training_facts(data), *_quality_facts(data)]


def _data_facts(data: RunData) -> list[Fact]:
    if (summary := data.summary) is None:
        return []
    catalog = summary.catalog
    kinds = f"{units.plural(catalog.videos, 'video')}, {units.plural(catalog.images, 'image')}"
    unreadable = units.count(catalog.bad) + " unreadable" if catalog.bad else ""
    facts = [
        Fact("Clips scanned", units.count(catalog.clips), kinds),
        Fact("Planned", units.count(summary.planned), units.plural(summary.steps_per_epoch, "step") + " an epoch"),
        Fact("Held out", units.count(summary.held_out), "for validation"),
        Fact("Rejected", units.count(rejected(summary)), unreadable),
    ]
    if chosen := [reason for reason in reasons(summary) if reason.name in CHOSEN]:
        note = ", ".join(f"{units.count(reason.total)} {reason.label}" for reason in chosen)
        facts.append(Fact("Left out by you", units.count(sum(reason.total for reason in chosen)), note))
    return facts


def _training_facts(data: RunData) -> list[Fact]:
    rows = coverage(data)
    done = sum(row.done for row in rows)
    under_way = [row for row in rows if not row.done and row.planned]
    note = f"{units.percent(under_way[0].trained / under_way[0].planned)} of the next" if under_way else ""
    repeated = data.repeated_steps
    again = f"{units.count(repeated)} repeated after resumes" if repeated else ""
    resumes = units.plural(status.resumes(data), "resume")
    steps = data.events_of("step")
    throughput, ranks, of_ranks = data.speed.clips_per_second, balance_of_ranks(data), list[str]()
    if ranks is not None:
        slow = [f"rank {row.rank} on {row.host} is slow" for row in ranks.stragglers]
        of_ranks = [f"{units.percent(ranks.planned)} planned", *slow[:3]]
    return [
        Fact("Steps", units.count(data.last_step), again),
        *([Fact("Epochs", units.count(done), note)] if rows else []),
        Fact("Training time", units.duration(status.training_seconds(data)), resumes),
        Fact(
            "Throughput",
            "–" if throughput is None else f"{throughput:,.3g} clips / s",
            f"in steps, {units.duration(data.speed.seconds)} of the training time",
        ),
        *_stream_facts(data, steps),
        *([Fact("Ranks waiting", units.percent(ranks.measured), "; ".join(of_ranks))] if ranks else []),
    ]


def _stream_facts(data: RunData, steps: list[Event]) -> list[Fact]:
    if data.speed.waited_share is None or steps[-1].get("data_wait_seconds") is None:
        return []
    facts = [Fact("Waiting for clips", units.percent(data.speed.waited_share), data.speed.advice)]
    last = steps[-1]
    median, slowest = last.get("decode_p50_seconds"), last.get("decode_p99_seconds")
    if median is not None and slowest is not None:
        note = f"99th percentile {1000 * slowest:,.0f} ms; {units.size(last.get('queue_bytes'))} decoded ahead"
        facts.append(Fact("Decoding of a clip", f"{1000 * median:,.0f} ms", note))
    return facts


def _quality_facts(data: RunData) -> list[Fact]:
    losses = [e["loss"] for e in data.events_of("validation") if e.get("loss") is not None]
    facts = []
    if losses:
        change = (losses[-1] - losses[0]) / losses[0] if losses[0] else 0.0
        percent = f"{100 * change:+.0f} %".replace("-", "−")
        note = f"from {units.loss(losses[0])} ({percent}) over {units.plural(len(losses), 'validation')}"
        facts.append(Fact("Validation loss", units.loss(losses[-1]), note))
    best = status.best_checkpoint(data)
    if best:
        by = [reason for reason in best.reasons if reason.startswith(status.BEST)]
        note = by[0] if by else f"validation loss {units.loss(best.loss)}"
        facts.append(Fact("Best checkpoint", f"step {units.count(best.step)}", note))
    use = stop_advice.of_events(data.events)
    if use is not None:
        facts.append(Fact("Advice", f"use step {units.count(use.step)}", "; ".join(use.reasons)))
    return facts
