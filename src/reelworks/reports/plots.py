"""Curves of a run as plotly figures, in plain dicts so that drawing needs no heavy import.

Colours are tokens such as "@c1"; the page's script replaces them by the style sheet's colours, so that
light and dark schemes share one definition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from reelworks.core import units
from reelworks.data.run.events import Event
from reelworks.reports.run_data import RunData
from reelworks.training.coverage import speed

MAX_POINTS = 1500  # per curve; neighbours are averaged beyond that
COLOURS = 8
RAMP = 7
MAX_BLOCK_COLUMNS = 400
MAX_MARKERS = 100
Series = Sequence[float | None]
Trace = dict[str, Any]
_SMALL = ("throughput", "data-wait", "memory", "learning-rate", "grad-norm", "imbalance")
_WIDE = ("loss-by-bucket", "loss-by-timestep", "grad-norm-by-block")
_RATE = "learning rate"


@dataclass(frozen=True)
class Figure:
    """A figure with its heading; `plot` holds plotly's `data` and `layout`."""

    name: str
    title: str
    note: str
    plot: dict[str, Any]
    size: str = "large"  # "small": three in a row; "large": two; "wide": alone


def finite(value: Any) -> float | None:
    """Return a number as float, or None for everything that JSON and plots cannot hold."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def smooth(values: Series) -> list[float | None]:
    """Return the exponential mean over about a fiftieth of the curve, unbiased at its start; gaps are skipped."""
    decay = 1 - 1 / max(3.0, len(values) / 50)
    total = weight = 0.0
    out: list[float | None] = []
    for value in values:
        if value is not None:
            total, weight = decay * total + value, decay * weight + 1
        out.append(total / weight if weight else None)
    return out


def thin(steps: Sequence[float], values: Series) -> tuple[list[float], list[float | None]]:
    """Average neighbours until at most `MAX_POINTS` are left."""
    stride = -(-len(steps) // MAX_POINTS) or 1
    if stride == 1:
        return list(steps), list(values)
    xs, ys = [], []
    for i in range(0, len(steps), stride):
        block = [v for v in values[i : i + stride] if v is not None]
        xs.append(steps[min(i + stride // 2, len(steps) - 1)])
        ys.append(sum(block) / len(block) if block else None)
    return xs, ys


def _line(name: str, steps: Sequence[float], values: Series, colour: str, **more: Any) -> Trace:
    xs, ys = thin(steps, values)
    line = {"color": colour, "width": more.pop("width", 2), **more.pop("line", {})}
    more["mode"] = "lines+markers" if len(xs) == 1 else more.get("mode", "lines")  # a line of one point is not seen
    return {"type": "scatter", "name": name, "x": xs, "y": ys, "line": line, **more}


def _raw_and_smooth(steps: list[float], values: Series, colour: str) -> list[Trace]:
    if not steps:
        return []
    raw = _line("each step", steps, values, colour, width=1, opacity=0.28, hoverinfo="skip")
    return [raw, _line("smoothed", steps, smooth(values), colour, width=2.2)]


def _figure(name: str, title: str, note: str, traces: list[Trace], unit: str, **more: Any) -> Figure | None:
    """Plot traces over steps, if there are any; `legend` and `shapes` go to the layout, other keywords to the y axis."""
    if not traces:
        return None
    legend, shapes = more.pop("legend", False), more.pop("shapes", [])
    x: dict[str, Any] = {"title": {"text": "step"}}
    y: dict[str, Any] = {"title": {"text": unit}, **more}
    steps = {step for trace in traces for step in trace["x"]}
    if len(steps) == 1:  # plotly would draw from -1 to 1
        (step,) = steps
        x |= {"range": [step - 1, step + 1], "tickvals": [step]}
        y |= {"rangemode": "tozero"} if y.get("type") != "category" else {}
    if unit == _RATE:
        y |= _rates(traces)
    plot = {"data": traces, "layout": {"xaxis": x, "yaxis": y, "showlegend": legend, "shapes": shapes}}
    size = "small" if name in _SMALL else "wide" if name in _WIDE else "large"
    return Figure(name, title, note, plot, size)


def _rates(traces: list[Trace]) -> dict[str, Any]:
    """Return a y axis for learning rates, and write those of the traces for hovering: 1e-4 is not 100µ anywhere."""
    for trace in traces:
        trace["text"] = ["" if value is None else units.learning_rate(value) for value in trace["y"]]
        trace["hovertemplate"] = "%{text}"
    most = max((value for trace in traces for value in trace["y"] if value is not None), default=0.0)
    if not most > 0:
        return {"rangemode": "tozero"}
    power = 10.0 ** math.floor(math.log10(most))
    tick = power * next(part for part in (0.2, 0.5, 1, 2) if most / power / part <= 5)
    ticks = [i * tick for i in range(math.floor(most / tick * (1 + 1e-9)) + 1)]
    return {"rangemode": "tozero", "tickvals": ticks, "ticktext": [units.learning_rate(value) for value in ticks]}


def _series(events: list[Event], key: str) -> tuple[list[float], list[float | None]]:
    return [e["step"] for e in events], [finite(e.get(key)) for e in events]


def _resume_lines(data: RunData) -> list[dict[str, Any]]:
    """Return a dotted line at each step that a resume or a stage began from, with the name of the stage."""
    starts = {
        e["resumed_from"]: e.get("stage", {}) for e in data.events_of("start") if e.get("resumed_from") is not None
    }
    line = {"color": "@muted", "width": 1, "dash": "dot"}
    axes = {"type": "line", "xref": "x", "yref": "paper", "y0": 0, "y1": 1, "line": line}
    names = {step: stage["name"] for step, stage in starts.items() if stage.get("step") == step}
    middle = max((e["step"] for e in data.events_of("step")), default=0) / 2
    lying = {"textposition": "end", "textangle": 0, "yanchor": "top"}  # within the plot, which would cut it off above
    labels = {
        step: {"label": {**lying, "text": name, "xanchor": "left" if step < middle else "right"}}
        for step, name in names.items()
    }
    return [{**axes, "x0": step, "x1": step, **labels.get(step, {})} for step in starts]


def loss_curve(data: RunData) -> Figure | None:
    """Plot the training loss of each step (faint) and smoothed."""
    resumes, spikes = _resume_lines(data), data.events_of("spike")
    traces = _raw_and_smooth(*_series(data.events_of("step"), "loss"), "@c1")
    losses = {event["step"]: finite(event.get("loss")) for event in data.events_of("step")}
    if spikes and traces:
        steps = [event["step"] for event in spikes]
        marker = {"color": "@c6", "size": 8, "symbol": "circle-open"}
        marks = {"type": "scatter", "mode": "markers", "name": "spike", "marker": marker}
        traces.append({**marks, "x": steps, "y": [losses.get(step) for step in steps]})
    skipped = [event["step"] for event in data.events_of("step") if event.get("applied") is False]
    if skipped and traces:
        marks = {"type": "scatter", "mode": "markers", "name": "skipped", "marker": {"color": "@warn", "symbol": "x"}}
        traces.append({**marks, "x": skipped, "y": [losses.get(step) for step in skipped]})
    saves = _save_ticks(data)
    note = "Faint: each step. Strong: smoothed." + (" Dotted: a resume or a stage." if resumes else "")
    note += " Circle: a spike." if spikes else ""
    note += " Cross: a skipped step." if skipped else ""
    note += " Tick: a save." if saves else ""
    return _figure("loss", "Training loss", note, traces, "loss", shapes=[*resumes, *saves])


def _save_ticks(data: RunData) -> list[dict[str, Any]]:
    """Return a tick at the axis for each checkpoint; of many, evenly chosen ones."""
    steps = [event["step"] for event in data.events_of("checkpoint")]
    line = {"color": "@good", "width": 2}
    axes = {"type": "line", "xref": "x", "yref": "paper", "y0": 0, "y1": 0.03}
    return [{**axes, "x0": step, "x1": step, "line": line} for step in steps[:: -(-len(steps) // MAX_MARKERS) or 1]]


def loss_by_bucket(data: RunData) -> Figure | None:
    """Plot the smoothed loss of each bucket, the most trained ones in colour."""
    traces = _bucket_lines(_by_part(data, "loss_by_bucket"), smooth)
    note = "Smoothed. Shapes differ in difficulty, so compare each line only with itself."
    return _figure("loss-by-bucket", "Loss by bucket", note, traces, "loss", legend=True)


def _bucket_lines(
    points: dict[str, list[tuple[int, float | None]]], shown: Callable[[Series], list[float | None]], **more: Any
) -> list[Trace]:
    """Draw a line for each bucket, the most frequent ones in colour and the others when their names are clicked."""
    traces = []
    for i, (name, pairs) in enumerate(sorted(points.items(), key=lambda item: -len(item[1]))):
        steps, values = zip(*pairs, strict=True)
        colour, visible = (f"@c{i + 1}", True) if i < COLOURS else ("@muted", "legendonly")
        traces.append(_line(name, steps, shown(values), colour, visible=visible, **more))
    return traces


def _by_part(data: RunData, key: str, *, kind: str = "step") -> dict[str, list[tuple[int, float | None]]]:
    """Return step and value of each part in the events that have it, by the part's name."""
    points: dict[str, list[tuple[int, float | None]]] = {}
    for event in data.events_of(kind):
        for name, value in (event.get(key) or {}).items():
            points.setdefault(name, []).append((event["step"], finite(value)))
    return points


def loss_by_timestep(data: RunData) -> Figure | None:
    """Plot the smoothed loss of each range of timesteps, from light (little noise) to dark (much)."""
    points = _by_part(data, "loss_by_timestep")
    names = sorted(points, key=lambda name: float(name.partition("-")[0]))
    traces = []
    for i, name in enumerate(names):
        steps, values = zip(*points[name], strict=True)
        shade = 1 + round(i * (RAMP - 1) / max(1, len(names) - 1))
        traces.append(_line(f"t = {name}", steps, smooth(values), f"@ramp{shade}", width=1.8))
    note = "Smoothed, by the noise that a clip had; t = 0 is clean, t = 1000 pure noise."
    return _figure("loss-by-timestep", "Loss by timestep", note, traces, "loss", legend=True)


def grad_norm_by_block(data: RunData) -> Figure | None:
    """Plot the gradient norm of each block over the steps that measured it, by colour on a logarithmic scale."""
    measured = [event for event in data.events_of("step") if event.get("grad_norm_by_block")]
    if not measured:
        return None
    stride = -(-len(measured) // MAX_BLOCK_COLUMNS)
    measured = measured[::stride]
    names = list(measured[-1]["grad_norm_by_block"])
    rows = [[finite(event["grad_norm_by_block"].get(name)) for event in measured] for name in names]
    logs = [[math.log10(norm) if norm else None for norm in row] for row in rows]
    shades = [[i / (RAMP - 1), f"@ramp{i + 1}"] for i in range(RAMP)]
    map_of_blocks: Trace = {"type": "heatmap", "x": [event["step"] for event in measured], "y": names, "z": logs}
    map_of_blocks |= {"colorscale": shades, "colorbar": {"title": {"text": "log₁₀"}}, "customdata": rows}
    map_of_blocks |= {"hovertemplate": "step %{x}<br>%{y}<br>norm %{customdata:.3g}<extra></extra>"}
    axis = {"autorange": "reversed", "type": "category"}
    note = "Before clipping. A block that stays light gets no gradient; one that darkens is where it grows."
    figure = _figure("grad-norm-by-block", "Gradient norm by block", note, [map_of_blocks], "", **axis)
    if figure is not None:
        figure.plot["layout"]["hovermode"] = "closest"
    return figure


def validation(data: RunData) -> Figure | None:
    """Plot the validation loss, and its parts at fixed timesteps from light (little noise) to dark (much)."""
    events = data.events_of("validation")
    if not events:
        return None
    times = sorted({time for e in events for time in e.get("loss_by_time") or {}}, key=float)
    steps = [e["step"] for e in events]
    traces = []
    for i, time in enumerate(times):
        shade = 1 + round(i * (RAMP - 1) / max(1, len(times) - 1))
        values = [finite((e.get("loss_by_time") or {}).get(time)) for e in events]
        traces.append(_line(f"t = {time}", steps, values, f"@ramp{shade}", width=1.5))
    traces.append(_line("mean", *_series(events, "loss"), "@c8", width=3, mode="lines+markers", marker={"size": 7}))
    clips = events[-1].get("clips")
    note = "Fixed noise; t = 0 is clean, t = 1000 pure noise."
    note += f" {units.plural(clips, 'held-out clip')}." if clips else ""
    return _figure("validation", "Validation loss", note, traces, "loss", legend=True)


def validation_by_bucket(data: RunData) -> Figure | None:
    """Plot the validation loss of each bucket."""
    points = _by_part(data, "loss_by_bucket", kind="validation")
    traces = _bucket_lines(points, list, mode="lines+markers", marker={"size": 5})
    note = "Shapes differ in difficulty, so compare each line only with itself."
    return _figure("validation-by-bucket", "Validation loss by bucket", note, traces, "loss", legend=True)


def imbalance(data: RunData) -> Figure | None:
    """Plot the share of time in which ranks wait for the slowest, as planned and as measured."""
    events = data.events_of("balance")
    traces = [
        _line(name, *_series(events, name), colour, mode="lines+markers", marker={"size": 5})
        for name, colour in (("planned", "@muted"), ("measured", "@c8"))
        if events
    ]
    note = "Share of the time in which ranks wait for the slowest one."
    axis = {"rangemode": "tozero", "tickformat": ".0%", "legend": True}
    return _figure("imbalance", "Ranks waiting", note, traces, "share", **axis)


def throughput(data: RunData) -> Figure | None:
    """Plot clips per second."""
    traces = _raw_and_smooth(*_clips_per_second(data), "@c2")
    note = "Clips that counted, by the wall time of each step. Long clips cost more than pictures."
    return _figure("throughput", "Throughput", note, traces, "clips / s", rangemode="tozero")


def data_wait(data: RunData) -> Figure | None:
    """Plot the share of each step that waited for clips."""
    events = [e for e in data.events_of("step") if e.get("data_wait_seconds") is not None]
    values = [finite(speed.of_step(event).waited_share) for event in events]
    traces = _raw_and_smooth([e["step"] for e in events], values, "@c3")
    note = "Share of each step; above 20 %, more data.num_workers help if cores are idle."
    return _figure("data-wait", "Waiting for clips", note, traces, "share", rangemode="tozero", tickformat=".0%")


def memory(data: RunData) -> Figure | None:
    """Plot the largest memory so far."""
    events = [e for e in data.events_of("step") if e.get("memory_bytes")]
    values = [e["memory_bytes"] / 1e9 for e in events]
    traces = [_line("memory", [e["step"] for e in events], values, "@c4")] if events else []
    note = "The largest so far, of the GPU or, without one, of the process."
    return _figure("memory", "Memory", note, traces, "GB", rangemode="tozero")


def learning_rate(data: RunData) -> Figure | None:
    """Plot the learning rate."""
    events = [e for e in data.events_of("step") if e.get("learning_rate") is not None]
    traces = [_line("learning rate", *_series(events, "learning_rate"), "@c5")] if events else []
    return _figure("learning-rate", "Learning rate", "As applied in each step.", traces, _RATE)


def grad_norm(data: RunData) -> Figure | None:
    """Plot the norm of the gradient before clipping."""
    events = [e for e in data.events_of("step") if e.get("grad_norm") is not None]
    traces = _raw_and_smooth(*_series(events, "grad_norm"), "@c6")
    return _figure("grad-norm", "Gradient norm", "Before clipping.", traces, "norm", rangemode="tozero")


def all_of(data: RunData) -> list[Figure]:
    """Return every figure that has data, in the page's order."""
    losses = (loss_curve, validation, loss_by_bucket, loss_by_timestep, validation_by_bucket)
    drawn = (*losses, throughput, data_wait, memory, learning_rate, grad_norm, imbalance, grad_norm_by_block)
    return [figure for draw in drawn if (figure := draw(data))]


def overlaid(runs: Sequence[tuple[str, RunData]]) -> list[Figure]:
    """Return figures with a curve of each run in its colour: losses, learning rate, gradient norm and throughput."""
    loss = partial(_series, key="loss")
    curves: list[tuple[str, str, str, str, Callable[[RunData], tuple[list[float], list[float | None]]], bool]] = [
        ("loss", "Training loss", "Smoothed.", "loss", lambda data: loss(data.events_of("step")), True),
        ("validation", "Validation loss", "", "loss", lambda data: loss(data.events_of("validation")), False),
        ("learning-rate", "Learning rate", "", _RATE, _of_steps("learning_rate"), False),
        ("grad-norm", "Gradient norm", "Smoothed; before clipping.", "norm", _of_steps("grad_norm"), True),
        ("throughput", "Throughput", "Smoothed.", "clips / s", _clips_per_second, True),
    ]
    drawn = []
    for name, title, note, unit, series, smoothed in curves:
        traces = []
        for i, (run, data) in enumerate(runs):
            steps, values = series(data)
            if steps:
                more = {} if smoothed else {"mode": "lines+markers" if len(steps) < MAX_MARKERS else "lines"}
                shown = smooth(values) if smoothed else values
                traces.append(_line(run, steps, shown, f"@c{i % COLOURS + 1}", **more))
        drawn.append(_figure(name, title, note, traces, unit, legend=True))
    return [figure for figure in drawn if figure]


def _of_steps(key: str) -> Callable[[RunData], tuple[list[float], list[float | None]]]:
    return lambda data: _series([e for e in data.events_of("step") if e.get(key) is not None], key)


def _clips_per_second(data: RunData) -> tuple[list[float], list[float | None]]:
    events = data.events_of("step")
    return [e["step"] for e in events], [finite(speed.of_step(event).clips_per_second) for event in events]
