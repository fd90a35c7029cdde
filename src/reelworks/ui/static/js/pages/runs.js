// The list of runs and of what waits.

import { button } from "../dialogs.js";
import { badge, card, empty, fill, h, progress, spark, table } from "../elements.js";
import { canChange, get, post } from "../server.js";
import { every } from "../timing.js";
import { startTraining } from "../training.js";
import { ago, bytes, count, duration, loss } from "../units.js";

export const title = "Runs";

export async function render(main, _, signal) {
  const chosen = new Set();
  const list = h("div");
  const queue = h("div");
  const recipes = h("div");
  const compare = h(
    "button",
    {
      type: "button",
      disabled: true,
      onclick: () => {
        location.hash = `#/compare/${[...chosen].join(",")}`;
      },
    },
    "Compare",
  );
  fill(
    main,
    h("div.page-head", h("h1", "Runs"), h("span.gap"), compare, h("a", { href: "#/new" }, "New run")),
    list,
    queue,
    recipes,
  );
  const choose = (key, on) => {
    on ? chosen.add(key) : chosen.delete(key);
    compare.disabled = chosen.size < 2 || chosen.size > 8;
    compare.textContent = chosen.size > 1 ? `Compare ${chosen.size} runs` : "Compare";
  };
  let former = "";
  const update = async () => {
    const [runs, jobs, files] = await Promise.all([
      get("/runs", signal),
      get("/jobs", signal),
      get("/recipes", signal),
    ]);
    const now = JSON.stringify([runs.map(run => ({ ...run, changed: 0, seconds_left: 0 })), jobs, files]);
    if (now === former || signal.aborted) return;
    former = now;
    fill(
      list,
      runs.length || jobs.length ? [] : nothing(files),
      runs.length ? card(runTable(runs, chosen, choose)) : [],
    );
    const open = jobs.filter(
      job =>
        ["waiting", "running"].includes(job.state) || (job.state === "failed" && Date.now() / 1000 - job.ended < 86400),
    );
    fill(queue, open.length ? [h("h2", "Started here"), card(jobTable(open, update))] : []);
    fill(recipes, files.length ? [h("h2", "Recipes"), card(recipeTable(files, update))] : []);
  };
  await update();
  every(2000, signal, update);
}

const nothing = files =>
  files.length
    ? empty(
        "No run yet",
        "Train one of the recipes below, or make a new one from a folder.",
        h("a", { href: "#/new" }, "New run"),
      )
    : empty(
        "Nothing here yet",
        "A folder of pictures or clips is all it takes: choose a model, look at the crops, and train.",
        h("a", { href: "#/new" }, "Make the first run"),
        h(
          "p",
          button(
            "Or try it on sample footage",
            async () => {
              location.hash = `#/jobs/${(await post("/sample")).id}`;
            },
            { title: "makes some 120 small clips and pictures and a recipe that trains in minutes, without a GPU" },
          ),
        ),
      );

function runTable(runs, chosen, choose) {
  return table(
    "Runs",
    [
      [
        "",
        run =>
          h("input", {
            type: "checkbox",
            checked: chosen.has(run.key),
            "aria-label": `choose ${run.name} to compare`,
            onchange: e => choose(run.key, e.target.checked),
          }),
      ],
      [
        "Run",
        run => [
          h("a", { href: `#/run/${run.key}` }, run.name),
          h("div.quiet", [run.model, run.path].filter(Boolean).join(" · ")),
        ],
      ],
      [
        "State",
        run => [
          badge(run.state, run.tone),
          run.detail ? h("div.quiet", { title: run.detail }, run.detail.slice(0, 90)) : null,
        ],
      ],
      [
        "Progress",
        run =>
          run.reading !== null
            ? h("span.quiet", `reading ${Math.round(100 * run.reading)} %`)
            : [
                h("span", run.total_steps ? `${count(run.step)} of ${count(run.total_steps)}` : count(run.step)),
                run.total_steps ? progress(run.step / run.total_steps, `${run.name}: share of its steps`) : null,
                run.seconds_left !== null ? h("div.quiet", `${duration(run.seconds_left)} left`) : null,
              ],
      ],
      ["Loss", run => [spark(run.spark, `loss of ${run.name}, now ${loss(run.loss)}`), h("div", loss(run.loss))]],
      ["On disk", run => bytes(run.bytes), true],
      ["Changed", run => ago(run.changed), true],
    ],
    runs,
  );
}

function jobTable(jobs, update) {
  return table(
    "Started here",
    [
      ["What", job => [h("a", { href: `#/jobs/${job.id}` }, `${job.kind} ${job.title}`)]],
      [
        "State",
        job => [
          badge(job.state, { failed: "bad", running: "busy" }[job.state]),
          job.error ? h("div.error", job.error) : null,
        ],
      ],
      ["Since", job => ago(job.started || job.created), true],
      [
        "",
        job =>
          ["waiting", "running"].includes(job.state)
            ? button(job.state === "waiting" ? "Take out" : "Stop", async () => {
                await post(`/jobs/${job.id}/stop`);
                await update();
              })
            : null,
      ],
    ],
    jobs,
  );
}

function recipeTable(recipes, update) {
  return table(
    "Recipes",
    [
      ["Recipe", recipe => recipe.path],
      [
        "",
        recipe =>
          h(
            "span.row",
            h("a", { href: `#/data/${recipe.key}` }, "Data"),
            h("a", { href: `#/plan/${recipe.key}` }, "Plan"),
            h("a", { href: `#/new/${recipe.key}` }, "Edit"),
            button(
              "Train",
              async () => {
                await startTraining(`/recipes/${recipe.key}/train`, recipe.key);
                await update();
              },
              { title: canChange() ? "waits for trainings that run" : "needs the token" },
            ),
          ),
      ],
    ],
    recipes,
  );
}
