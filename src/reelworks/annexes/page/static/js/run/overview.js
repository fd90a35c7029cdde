// How a run stands: its headline, curves, coverage, warnings and history.

import { explain } from "../dialogs.js";
import { badge, card, fill, h, progressBar, table } from "../elements.js";
import { plot } from "../plots.js";
import { get } from "../server.js";
import { sentences, t, translated } from "../texts.js";
import { throttle } from "../timing.js";
import { count, loss, moment, percent } from "../units.js";

const COVERAGE_TONES = { "adds up": "good", "under way": "busy" };
const MANY_BYTES = 5e7;

/** Draw the tab, and return the function that brings it up to date; `first` are the figures, asked for already. */
export async function renderOverview(body, { key, run, signal, first }) {
  const facts = h("div");
  const charts = h("section.figures", { "aria-label": t`Curves` });
  const tables = h("div");
  const coverage = h("div");
  fill(body, facts, charts, coverage, tables);
  const boxes = new Map();
  let asked = first;
  const renew = async () => {
    const box = ({ label, value, note }) =>
      h("div.card", h("dt", translated(label)), h("dd", value), h("dd.note", note));
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
  if (!figures.length) return fill(charts, h("p.quiet", t`Curves come with the first step.`));
  if (!boxes.size) fill(charts);
  for (const { name, size, title: label, note, plot: figure } of figures) {
    const title = translated(label);
    if (!boxes.has(name)) {
      const box = { canvas: h("div.plot"), note: h("p.quiet") };
      boxes.set(name, box);
      charts.append(h(`div.card.${size}`, h("h3", title), box.note, box.canvas));
    }
    const box = boxes.get(name);
    box.note.textContent = sentences(note);
    await plot(box.canvas, figure, title);
    if (signal.aborted) return;
  }
}

/** Count the clips of each epoch; returns the function that counts them again, unless a user has to ask for it. */
async function drawCoverage(place, key, run, signal) {
  const draw = async () => {
    const rows = await get(`/runs/${key}/coverage`, signal);
    if (rows.length) fill(place, h("h2", t`Coverage`), card(coverageTable(rows)));
  };
  // It reads all events, whose memory and time a page should not take unasked.
  if (run.events_bytes > MANY_BYTES) {
    const onclick = event => {
      event.target.disabled = true;
      draw().catch(explain);
    };
    const ask = h("button", { type: "button", onclick }, t`Count the clips of each epoch`);
    fill(place, h("h2", t`Coverage`), card(ask, h("p.quiet", t`Reads all events, which takes some seconds.`)));
    return null;
  }
  draw().catch(explain);
  return throttle(8000, () => draw().catch(() => {}));
}

function coverageTable(rows) {
  const share = row => (row.planned ? (row.trained + row.failed + row.skipped) / row.planned : 0);
  const state = row => badge(translated(row.state), COVERAGE_TONES[row.state] || "bad");
  return table(
    t`Clips of each epoch`,
    [
      [t`Epoch`, row => row.name],
      ["", row => progressBar(share(row), t`epoch ${row.name}: share of its clips`)],
      [t`Planned`, row => count(row.planned), true],
      [t`Trained`, row => count(row.trained), true],
      [t`Failed`, row => count(row.failed), true],
      [t`Skipped`, row => count(row.skipped), true],
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
          h("h2", t`Warnings`),
          card(
            h(
              "ul.plain",
              warnings.map(text => h("li", text)),
            ),
          ),
        ]
      : null,
    spikes.length ? [h("h2", t`Spikes`), card(spikeTable(spikes))] : null,
    ranks ? [h("h2", t`Balance of ranks`), rankCard(ranks)] : null,
    history.length
      ? [h("h2", t`What happened`), card(h("ol.story", { tabindex: "0" }, [...history].reverse().map(eventLine)))]
      : null,
  ];
}

const spikeTable = spikes =>
  table(
    t`Spikes`,
    [
      [t`Step`, row => count(row.step), true],
      [t`What`, row => row.measure],
      [t`Value`, row => loss(row.value), true],
      [t`Usual`, row => loss(row.usual), true],
      [t`Clips`, row => row.clips.slice(0, 3).map(clip => h("div", clip.path))],
      ["", row => (row.skipped ? t`skipped` : row.remedy)],
    ],
    spikes,
  );

function rankCard({ planned, measured, stragglers }) {
  const columns = [
    [t`Rank`, row => row.rank, true],
    [t`Host`, row => row.host],
    [t`Factor`, row => `× ${row.factor.toFixed(2)}`, true],
  ];
  const text = t`Waiting for one another: ${percent(planned)} planned, ${percent(measured)} measured.`;
  return card(h("p", text), stragglers.length ? table(t`Slow ranks`, columns, stragglers) : null);
}

function eventLine({ tone, time, step, title, detail }) {
  const at = h("span.at", step === null ? "" : t`step ${count(step)}`);
  return h(`li.${tone}`, h("time", moment(time)), at, h("div", h("b", title), detail));
}
