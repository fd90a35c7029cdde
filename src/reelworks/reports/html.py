"""The report of a run as one self-contained HTML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reelworks.core import annexes, files
from reelworks.data.run.folder import RunFolder
from reelworks.data.schedule.cost_fit import BatchTime
from reelworks.reports import page, plots, previews, run_data, run_facts, status
from reelworks.training.recipe import diff


@dataclass(frozen=True)
class WrittenReport:
    """The report that was written, and the times of micro-batches by bucket, if they were measured."""

    report: Path
    costs: dict[str, BatchTime] | None


def _section(told: object) -> page.Section | None:
    if not isinstance(told, page.Section | None):
        raise TypeError(f"a {type(told).__name__} is no Section")
    return told


def write(run: RunFolder, output: Path | None = None) -> Path:
    """Write the report of a run, finished or not, to a file, by default in its folder; return the path."""
    data = run_data.load(run)
    checkpoints = status.checkpoints(data)
    text = page.render(
        "template.html",
        data=data,
        name=data.path.resolve().name,
        state=status.state(data),
        headline=run_facts.headline(data),
        figures=plots.all_of(data),
        previews=previews.of_run(data),
        preview_steps=len(data.events_of("samples")),
        accounting=run_facts.accounting(data.summary),
        buckets=run_facts.buckets(data.summary),
        balance=run_facts.balance(data.summary),
        reasons=[*run_facts.reasons(data.summary), *run_facts.failures(data)],
        coverage=run_facts.coverage(data),
        spikes=run_facts.spikes(data),
        sections=list(filter(None, annexes.use_each("sections", lambda tell: _section(tell(run)), leaves_out=True))),
        ranks=run_facts.balance_of_ranks(data),
        all_spikes=len(data.events_of("spike")),
        kept=[row for row in checkpoints if row.kept],
        deleted=[row for row in checkpoints if not row.kept],
        measured=run_facts.measured(run),
        history=status.history(data),
        recipe_changes={
            key: diff.as_told(values) for key, values in diff.by_steps(run, data.last_step).items() if len(values) > 1
        },
        environment={
            key: ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            for key, value in diff.flat(data.environment).items()
        },
    )
    files.write_for("--output", output := output or run.report_file, text.encode())
    return output
