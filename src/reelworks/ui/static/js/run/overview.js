// How a run stands: its headline, curves, coverage, warnings and history.

import { explain } from "../dialogs.js";
import { badge, card, fill, h, progressBar, table } from "../elements.js";
import { plot } from "../plots.js";
import { get } from "../server.js";
import { throttle } from "../timing.js";
import { count, loss, moment, percent } from "../units.js";

const MANY_BYTES = 5e7;

/** Draw the tab, and return the function that brings it up to date; `first` are the figures, asked for already. */
export async function renderOverview(body, { key, run, signal, first }) {
  const facts = h("div");
  const charts = h("section.figures", { "aria-label": "Curves" });
  const tables = h("div");
  const coverage = h("div");
  fill(body, facts, charts, coverage, tables);
  const boxes = new Map();
  let asked = first;
  const renew = async () => {
    const box = ({ label, value, note }) => h("div.card", h("dt", label), h("dd", value), h("dd.note", note));
    fill(facts, h("dl.facts", run().headline.map(box)));
    fill(tables, sections(run()));
    const figures = await (asked || get(`/runs/${key}/figures`, signal));
    asked = null;
    await drawFigures(charts, boxes, figures, signal);
  };
  await renew();
  const renewCoverage = await drawCoverage(coverage, key, run(), signal);
  return async () => {
    await renew();
    renewCoverage?.();
  };
}

/** Draw figures, each into the box of its name, which is made when it comes for the first time. */
async function drawFigures(charts, boxes, figures, signal) {
  if (!figures.length) return fill(charts, h("p.quiet", "Curves come with the first step."));
  if (!boxes.size) fill(charts);
  for (const { name, size, title, note, plot: figure } of figures) {
    if (!boxes.has(name)) {
      const box = { canvas: h("div.plot"), note: h("p.quiet") };
      boxes.set(name, box);
      charts.append(h(`div.card.${size}`, h("h3", title), box.note, box.canvas));
    }
    const box = boxes.get(name);
    box.note.textContent = note;
    await plot(box.canvas, figure, title);
    if (signal.aborted) return;
  }
}

/** Count the clips of each epoch; returns the function that counts them again, unless a user has to ask for it. */
async function drawCoverage(place, key, run, signal) {
  const draw = async () => {
    const rows = await get(`/runs/${key}/coverage`, signal);
    if (rows.length) fill(place, h("h2", "Coverage"), card(coverageTable(rows)));
  };
  // It reads all events, whose memory and time a page should not take unasked.
  if (run.events_bytes > MANY_BYTES) {
    const onclick = event => {
      event.target.disabled = true;
      draw().catch(explain);
    };
    const ask = h("button", { type: "button", onclick }, "Count the clips of each epoch");
    fill(place, h("h2", "Coverage"), card(ask, h("p.quiet", "Reads all events, which takes some seconds.")));
    return null;
  }
  draw().catch(explain);
  return throttle(8000, () => draw().catch(() => {}));
}

function coverageTable(rows) {
  const share = row => (row.planned ? (row.trained + row.failed + row.skipped) / row.planned : 0);
  const state = row =>
    row.state === "adds up" ? badge("adds up", "good") : badge(row.state, row.state === "under way" ? "busy" : "bad");
  return table(
    "Clips of each epoch",
    [
      ["Epoch", row => row.name],
      ["", row => progressBar(share(row), `epoch ${row.name}: share of its clips`)],
      ["Planned", row => count(row.planned), true],
      ["Trained", row => count(row.trained), true],
      ["Failed", row => count(row.failed), true],
      ["Skipped", row => count(row.skipped), true],
      ["", state],
    ],
    rows.slice(0, 30),
  );
}

/** What there is to be told of a run beside its curves. */
function sections({ warnings, spikes, ranks, history }) {
  return [
    warnings.length
      ? [
          h("h2", "Warnings"),
          card(
            h(
              "ul.plain",
              warnings.map(text => h("li", text)),
            ),
          ),
        ]
      : null,
    spikes.length ? [h("h2", "Spikes"), card(spikeTable(spikes))] : null,
    ranks ? [h("h2", "Balance of ranks"), rankCard(ranks)] : null,
    history.length
      ? [h("h2", "What happened"), card(h("ol.story", { tabindex: "0" }, [...history].reverse().map(eventLine)))]
      : null,
  ];
}

const spikeTable = spikes =>
  table(
    "Spikes",
    [
      ["Step", row => count(row.step), true],
      ["What", row => row.measure],
      ["Value", row => loss(row.value), true],
      ["Usual", row => loss(row.usual), true],
      ["Clips", row => row.clips.slice(0, 3).map(clip => h("div", clip.path))],
      ["", row => (row.skipped ? "skipped" : row.remedy)],
    ],
    spikes,
  );

function rankCard({ planned, measured, stragglers }) {
  const columns = [
    ["Rank", row => row.rank, true],
    ["Host", row => row.host],
    ["Factor", row => `× ${row.factor.toFixed(2)}`, true],
  ];
  const text = `Waiting for one another: ${percent(planned)} planned, ${percent(measured)} measured.`;
  return card(h("p", text), stragglers.length ? table("Slow ranks", columns, stragglers) : null);
}

function eventLine({ tone, time, step, title, detail }) {
  const at = h("span.at", step === null ? "" : `step ${count(step)}`);
  return h(`li.${tone}`, h("time", moment(time)), at, h("div", h("b", title), detail));
}
