// The list of runs and of what waits.

import { button } from "../dialogs.js";
import { badge, card, emptySection, fill, h, progressBar, spark, table } from "../elements.js";
import { isOpen } from "../jobs.js";
import { canChange, get, post } from "../server.js";
import { t, translated } from "../texts.js";
import { drawOnChange } from "../timing.js";
import { startTraining } from "../training.js";
import { ago, bytes, count, duration, loss } from "../units.js";

export const title = t`Runs`;

const MOST = 8; // runs that are compared at once
const RECENT = 86400; // seconds for which a command that failed is listed

export async function render(main, _, signal) {
  const list = h("div");
  const queue = h("div");
  const recipes = h("div");
  const choice = new Choice();
  const newRun = h("a", { href: "#/new" }, t`New run`);
  fill(main, h("div.page-head", h("h1", t`Runs`), h("span.gap"), choice.button, newRun), list, queue, recipes);
  const load = () => Promise.all(["/runs", "/jobs", "/recipes"].map(path => get(path, signal)));
  const draw = ([runs, jobs, files], update) => {
    choice.keepOf(runs);
    fill(list, runs.length || jobs.length ? null : emptyList(files), runs.length ? card(runTable(runs, choice)) : null);
    const shown = jobs.filter(job => isOpen(job) || (job.state === "failed" && Date.now() / 1000 - job.ended < RECENT));
    fill(queue, shown.length ? [h("h2", t`Started here`), card(jobTable(shown, update))] : null);
    fill(recipes, files.length ? [h("h2", t`Recipes`), card(recipeTable(files, update))] : null);
  };
  const steady = ([runs, ...rest]) => [runs.map(run => ({ ...run, changed: 0, seconds_left: 0 })), ...rest];
  await drawOnChange(2000, signal, load, draw, steady);
}

/** The runs that are chosen to be compared, and the button that does it. */
class Choice {
  constructor() {
    this.keys = new Set();
    const onclick = () => {
      location.hash = `#/compare/${[...this.keys].join(",")}`;
    };
    this.button = h("button", { type: "button", disabled: true, onclick }, t`Compare`);
  }

  /** Forget runs that are not there any more. */
  keepOf(runs) {
    this.keys = new Set([...this.keys].filter(key => runs.some(run => run.key === key)));
    this.tell();
  }

  tell() {
    const { size } = this.keys;
    this.button.disabled = size < 2 || size > MOST;
    this.button.textContent = size > 1 ? t`Compare ${size} runs` : t`Compare`;
  }

  box({ key, name }) {
    const onchange = event => {
      event.target.checked ? this.keys.add(key) : this.keys.delete(key);
      this.tell();
    };
    return h("input", {
      type: "checkbox",
      checked: this.keys.has(key),
      "aria-label": t`choose ${name} to compare`,
      onchange,
    });
  }
}

function emptyList(files) {
  const link = text => h("a", { href: "#/new" }, text);
  if (files.length)
    return emptySection(
      t`No run yet`,
      t`Train one of the recipes below, or make a new one from a folder.`,
      link(t`New run`),
    );
  const makeSample = async () => {
    location.hash = `#/jobs/${(await post("/sample")).id}`;
  };
  const hint = t`makes some 120 small clips and pictures and a recipe that trains in minutes, without a GPU`;
  const text = t`A folder of pictures or clips is all it takes: choose a model, look at the crops, and train.`;
  return emptySection(
    t`Nothing here yet`,
    text,
    link(t`Make the first run`),
    h("p", button(t`Or try it on sample footage`, makeSample, { title: hint })),
  );
}

const runTable = (runs, choice) =>
  table(
    t`Runs`,
    [
      ["", run => choice.box(run)],
      [
        t`Run`,
        run => [
          h("a", { href: `#/run/${run.key}` }, run.name),
          h("div.quiet", [run.model, run.path].filter(Boolean).join(" · ")),
        ],
      ],
      [
        t`State`,
        run => [
          badge(translated(run.state), run.tone),
          run.detail ? h("div.quiet", { title: run.detail }, run.detail.slice(0, 90)) : null,
        ],
      ],
      [t`Progress`, progressCell],
      [t`Loss`, run => [spark(run.spark, t`loss of ${run.name}, now ${loss(run.loss)}`), h("div", loss(run.loss))]],
      [t`On disk`, run => bytes(run.bytes), true],
      [t`Changed`, run => ago(run.changed), true],
    ],
    runs,
  );

function progressCell({ name, step, total_steps: total, reading, seconds_left: left }) {
  if (reading !== null) return h("span.quiet", t`reading ${Math.round(100 * reading)} %`);
  return [
    h("span", total ? t`${count(step)} of ${count(total)}` : count(step)),
    total ? progressBar(step / total, t`${name}: share of its steps`) : null,
    left !== null ? h("div.quiet", t`${duration(left)} left`) : null,
  ];
}

function jobTable(jobs, update) {
  const stop = id => async () => {
    await post(`/jobs/${id}/stop`);
    await update();
  };
  const tones = { failed: "bad", running: "busy" };
  return table(
    t`Started here`,
    [
      [t`What`, job => h("a", { href: `#/jobs/${job.id}` }, `${job.kind} ${job.title}`)],
      [t`State`, job => [badge(translated(job.state), tones[job.state]), job.error ? h("div.error", job.error) : null]],
      [t`Since`, job => ago(job.started || job.created), true],
      ["", job => (isOpen(job) ? button(job.state === "waiting" ? t`Take out` : t`Stop`, stop(job.id)) : null)],
    ],
    jobs,
  );
}

function recipeTable(recipes, update) {
  const start = key => async () => {
    await startTraining(`/recipes/${key}/train`, key);
    await update();
  };
  const hint = canChange() ? t`waits for trainings that run` : t`needs the token`;
  const link = (page, key, text) => h("a", { href: `#/${page}/${key}` }, text);
  return table(
    t`Recipes`,
    [
      [t`Recipe`, recipe => recipe.path],
      [
        "",
        ({ key }) =>
          h(
            "span.row",
            link("data", key, t`Data`),
            link("plan", key, t`Plan`),
            link("new", key, t`Edit`),
            button(t`Train`, start(key), { title: hint }),
          ),
      ],
    ],
    recipes,
  );
}
