// One run: how it stands, its curves, previews, checkpoints and recipe.

import { button } from "../dialogs.js";
import { badge, card, fill, h, progressBar } from "../elements.js";
import { loadPlotly } from "../plots.js";
import { renderCheckpoints } from "../run/checkpoints.js";
import { renderClips } from "../run/clips.js";
import { renderLearning } from "../run/learning.js";
import { renderMeasured } from "../run/measured.js";
import { renderOverview } from "../run/overview.js";
import { renderPreviews } from "../run/previews.js";
import { follow, get, post } from "../server.js";
import { t, translated } from "../texts.js";
import { throttle } from "../timing.js";
import { startTraining } from "../training.js";
import { bytes, count, duration, loss } from "../units.js";

export const title = t`Run`;
const TABS = {
  overview: [t`Overview`, renderOverview],
  previews: [t`Previews`, renderPreviews],
  checkpoints: [t`Checkpoints`, renderCheckpoints],
  measured: [t`Measured`, renderMeasured],
  clips: [t`Clips`, renderClips],
  learning: [t`Learning`, renderLearning],
  recipe: [t`Recipe`, renderRecipe],
};

export async function render(main, [key, tab = "overview"], signal) {
  const head = h("div");
  const body = h("div");
  const name = Object.hasOwn(TABS, tab) ? tab : "overview";
  // What the first tab needs is asked for at once.
  const first = name === "overview" ? get(`/runs/${key}/figures`, signal) : null;
  first?.catch(() => {}); // it is told where it is waited for
  if (first) loadPlotly().catch(() => {});
  let run = await get(`/runs/${key}`, signal);
  document.title = `${run.name} · Reelworks`;
  fill(main, head, tabBar(key, tab), body);
  let last = null; // step that has come since the page was opened
  const drawHead = () => fill(head, header(key, run, last, refresh));
  const refresh = async () => {
    run = await get(`/runs/${key}`, signal);
    drawHead();
  };
  drawHead();
  const renew = await TABS[name][1](body, { key, run: () => run, signal, first });
  const renewAll = throttle(1200, async () => {
    if (signal.aborted) return;
    try {
      await refresh();
      await renew?.();
    } catch (error) {
      if (!signal.aborted) console.warn(error);
    }
  });
  let { step, others } = run;
  // A run that is gone is opened again, which tells so; one that is still there merely cannot be followed.
  const onEnd = () => get(`/runs/${key}`, signal).catch(() => signal.aborted || dispatchEvent(new Event("hashchange")));
  const onNews = news => {
    const now = news.last?.step ?? 0;
    if (now !== step || news.others !== others || news.state !== run.state) renewAll();
    [step, others, last] = [now, news.others, news.last];
    const tip = document.getElementById("now");
    if (tip && last) tip.textContent = stepText(run, last);
  };
  follow(`/runs/${key}/follow`, signal, onNews, onEnd);
}

function tabBar(key, tab) {
  const link = ([name, [text]]) =>
    h("a", { href: `#/run/${key}/${name}`, "aria-current": name === tab ? "page" : null }, text);
  const others = [h("a", { href: `#/data/${key}` }, t`Its data`), h("a", { href: `#/plan/${key}` }, t`Its plan`)];
  return h("nav.tabs", { "aria-label": t`Parts of the run` }, Object.entries(TABS).map(link), h("span.gap"), others);
}

function stepText({ total_steps: total }, last) {
  const step = total ? t`step ${count(last.step)} of ${count(total)}` : t`step ${count(last.step)}`;
  return t`${step} · loss ${loss(last.loss)}`;
}

function header(key, run, last, refresh) {
  const shown = last || { step: run.step, loss: run.loss };
  const printed = run.job ? [" ", h("a", { href: `#/jobs/${run.job}` }, t`what it printed`)] : null;
  const reading = t`reading its events: ${Math.round(100 * run.reading)} %; curves are of this part`;
  return [
    h(
      "div.page-head",
      h("h1", run.name),
      badge(translated(run.state), run.tone),
      h("span", { id: "now" }, shown.step ? stepText(run, shown) : ""),
      run.seconds_left !== null ? h("span.quiet", t`${duration(run.seconds_left)} left`) : null,
      h("span.gap"),
      h("span.quiet", bytes(run.bytes)),
      actions(key, run, refresh),
    ),
    run.total_steps ? progressBar(run.step / run.total_steps, t`share of the steps`) : null,
    run.detail ? h(run.tone === "bad" ? "p.error" : "p.quiet", run.detail, printed) : null,
    run.reading !== null ? h("p.quiet", { role: "status" }, reading) : null,
  ];
}

function actions(key, run, refresh) {
  const stop = async () => {
    await post(`/runs/${key}/stop`);
    await refresh();
  };
  const resume = async () => {
    await startTraining(`/runs/${key}/resume`, key);
    await refresh();
  };
  const isResumable = ["stopped", "crashed", "not started"].includes(run.state);
  return [
    run.can_stop ? button(t`Stop`, stop, { title: t`saves after the current step, and ends` }) : null,
    isResumable ? button(t`Resume`, resume, { title: t`trains on from its newest good checkpoint` }) : null,
  ];
}

async function renderRecipe(body, { run }) {
  const text = value => (typeof value === "object" ? JSON.stringify(value) : String(value));
  const pairs = Object.entries(run().environment).map(([name, value]) => [h("dt", name), h("dd", text(value))]);
  fill(body, h("pre.log", { tabindex: "0" }, run().recipe), h("h2", t`Environment`), card(h("dl.pairs", pairs)));
}
