// One run: how it stands, its curves, previews, checkpoints and recipe.

import { button, explain, toast } from "../dialogs.js";
import { badge, card, empty, fill, h, progress, table } from "../elements.js";
import { loadPlotly, plot } from "../plots.js";
import { follow, get, post } from "../server.js";
import { throttled } from "../timing.js";
import { startTraining } from "../training.js";
import { bytes, count, duration, loss, moment, percent } from "../units.js";
import { renderCheckpoints } from "./checkpoints.js";

export const title = "Run";
const MANY_BYTES = 5e7;
const TABS = {
  overview: "Overview",
  previews: "Previews",
  checkpoints: "Checkpoints",
  clips: "Clips",
  recipe: "Recipe",
};

export async function render(main, [key, tab = "overview"], signal) {
  const head = h("div");
  const body = h("div");
  const tabs = h(
    "nav.tabs",
    { "aria-label": "Parts of the run" },
    Object.entries(TABS).map(([name, text]) =>
      h("a", { href: `#/run/${key}/${name}`, "aria-current": name === tab ? "page" : null }, text),
    ),
    h("span.gap"),
    h("a", { href: `#/data/${key}` }, "Its data"),
    h("a", { href: `#/plan/${key}` }, "Its plan"),
  );
  // What the first tab needs is asked for at once.
  const first = TABS[tab] && tab !== "overview" ? null : get(`/runs/${key}/figures`, signal);
  first?.catch(() => {}); // it is told where it is waited for
  if (first) loadPlotly().catch(() => {});
  let run = await get(`/runs/${key}`, signal);
  document.title = `${run.name} · Reelworks`;
  fill(main, head, tabs, body);
  const now = { last: null };
  const drawHead = () => fill(head, ...header(key, run, now.last, refresh));
  const refresh = async () => {
    run = await get(`/runs/${key}`, signal);
    drawHead();
  };
  drawHead();
  const part = { overview, previews, checkpoints: renderCheckpoints, clips, recipe }[tab] || overview;
  const renew = await part(body, { key, run: () => run, signal, first });
  const renewAll = throttled(1200, async () => {
    if (signal.aborted) return;
    try {
      await refresh();
      await renew?.();
    } catch (error) {
      if (!signal.aborted) console.warn(error);
    }
  });
  let { step, others } = run;
  follow(`/runs/${key}/follow`, signal, news => {
    const last = news.last?.step ?? 0;
    if (last !== step || news.others !== others || news.state !== run.state) renewAll();
    [step, others, now.last] = [last, news.others, news.last];
    const tip = document.getElementById("now");
    if (tip && news.last) tip.textContent = tipText(run, news.last);
  });
}

const tipText = (run, last) =>
  `step ${count(last.step)}${run.total_steps ? ` of ${count(run.total_steps)}` : ""} · loss ${loss(last.loss)}`;

function header(key, run, last, refresh) {
  const shown = last || { step: run.step, loss: run.loss };
  const stops = run.can_stop
    ? button(
        "Stop",
        async () => {
          await post(`/runs/${key}/stop`);
          await refresh();
        },
        { title: "saves after the current step, and ends" },
      )
    : null;
  const resumes = ["stopped", "crashed", "not started"].includes(run.state)
    ? button(
        "Resume",
        async () => {
          await startTraining(`/runs/${key}/resume`, key);
          await refresh();
        },
        { title: "trains on from its newest good checkpoint" },
      )
    : null;
  return [
    h(
      "div.page-head",
      h("h1", run.name),
      badge(run.state, run.tone),
      h("span", { id: "now" }, shown.step ? tipText(run, shown) : ""),
      run.seconds_left !== null ? h("span.quiet", `${duration(run.seconds_left)} left`) : null,
      h("span.gap"),
      h("span.quiet", bytes(run.bytes)),
      stops,
      resumes,
    ),
    run.total_steps ? progress(run.step / run.total_steps, "share of the steps") : null,
    run.detail
      ? h(
          run.tone === "bad" ? "p.error" : "p.quiet",
          run.detail,
          run.job ? [" ", h("a", { href: `#/jobs/${run.job}` }, "what it printed")] : null,
        )
      : null,
    run.reading !== null
      ? h(
          "p.quiet",
          { role: "status" },
          `reading its events: ${Math.round(100 * run.reading)} %; curves are of this part`,
        )
      : null,
  ];
}

async function overview(body, { key, run, signal, first }) {
  const facts = h("div");
  const charts = h("section.figures", { "aria-label": "Curves" });
  const tables = h("div");
  const coverage = h("div");
  fill(body, facts, charts, coverage, tables);
  const boxes = new Map();
  const renew = async () => {
    fill(
      facts,
      h(
        "dl.facts",
        run().headline.map(fact => h("div.card", h("dt", fact.label), h("dd", fact.value), h("dd.note", fact.note))),
      ),
    );
    fill(tables, ...lists(run()));
    const figures = await (first || get(`/runs/${key}/figures`, signal));
    first = null;
    for (const figure of figures) {
      let box = boxes.get(figure.name);
      if (!box) {
        const canvas = h("div.plot");
        box = { canvas, note: h("p.quiet") };
        boxes.set(figure.name, box);
        charts.append(h(`div.card.${figure.size}`, h("h3", figure.title), box.note, canvas));
      }
      box.note.textContent = figure.note;
      await plot(box.canvas, figure.plot, figure.title);
      if (signal.aborted) return;
    }
    if (!figures.length) fill(charts, h("p.quiet", "Curves come with the first step."));
  };
  await renew();
  const count_ = async () => {
    const rows = await get(`/runs/${key}/coverage`, signal);
    if (rows.length) fill(coverage, h("h2", "Coverage"), card(coverageTable(rows)));
  };
  if (run().events_bytes > MANY_BYTES) {
    // it reads all events, whose memory and time a page should not take unasked
    fill(
      coverage,
      h("h2", "Coverage"),
      card(
        h(
          "button",
          {
            type: "button",
            onclick: event => {
              event.target.disabled = true;
              count_().catch(explain);
            },
          },
          "Count the clips of each epoch",
        ),
        h("p.quiet", "Reads all events, which takes some seconds."),
      ),
    );
    return renew;
  }
  count_().catch(explain);
  const slowly = throttled(8000, () => count_().catch(() => {}));
  return async () => {
    await renew();
    slowly();
  };
}

function coverageTable(rows) {
  return table(
    "Clips of each epoch",
    [
      ["Epoch", row => row.name],
      [
        "",
        row =>
          progress(
            row.planned ? (row.trained + row.failed + row.skipped) / row.planned : 0,
            `epoch ${row.name}: share of its clips`,
          ),
      ],
      ["Planned", row => count(row.planned), true],
      ["Trained", row => count(row.trained), true],
      ["Failed", row => count(row.failed), true],
      ["Skipped", row => count(row.skipped), true],
      [
        "",
        row =>
          row.state === "adds up"
            ? badge("adds up", "good")
            : badge(row.state, row.state === "under way" ? "busy" : "bad"),
      ],
    ],
    rows.slice(0, 30),
  );
}

function* lists(run) {
  if (run.warnings.length) {
    yield h("h2", "Warnings");
    yield card(
      h(
        "ul.plain",
        run.warnings.map(text => h("li", text)),
      ),
    );
  }
  if (run.spikes.length) {
    yield h("h2", "Spikes");
    yield card(
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
        run.spikes,
      ),
    );
  }
  if (run.ranks) {
    yield h("h2", "Balance of ranks");
    yield card(
      h(
        "p",
        `Waiting for one another: ${percent(run.ranks.planned)} planned, ${percent(run.ranks.measured)} measured.`,
      ),
      run.ranks.stragglers.length
        ? table(
            "Slow ranks",
            [
              ["Rank", row => row.rank, true],
              ["Host", row => row.host],
              ["Factor", row => `× ${row.factor.toFixed(2)}`, true],
            ],
            run.ranks.stragglers,
          )
        : null,
    );
  }
  if (run.history.length) {
    yield h("h2", "What happened");
    yield card(
      h(
        "ol.story",
        { tabindex: "0" },
        [...run.history]
          .reverse()
          .map(one =>
            h(
              `li.${one.tone}`,
              h("time", moment(one.time)),
              h("span.at", one.step === null ? "" : `step ${count(one.step)}`),
              h("div", h("b", one.title), one.detail),
            ),
          ),
      ),
    );
  }
}

async function clips(body, { run }) {
  const renew = async () => {
    const { accounting, balance, buckets, reasons } = run();
    if (!accounting.length) return fill(body, empty("No plan yet", "A run counts its clips when it starts."));
    fill(
      body,
      card(
        h("h2", "Every clip"),
        h(
          "div.bar",
          { "aria-hidden": "true" },
          accounting.map(part => h("span", { style: { "--share": part.share, "--tone": `var(--${part.tone})` } })),
        ),
        h(
          "div.legend",
          accounting.map(part =>
            h("span", { style: { "--tone": `var(--${part.tone})` } }, h("b", count(part.total)), ` ${part.label}`),
          ),
        ),
        balance ? h("p.balance", balance) : null,
      ),
      card(
        h("h2", "Buckets"),
        table(
          "Buckets",
          [
            ["Bucket", b => b.name],
            ["Clips", b => count(b.clips), true],
            ["Share", b => percent(b.share_of_clips), true],
            ["Of the tokens", b => percent(b.share_of_tokens), true],
            ["Batch size", b => b.batch_size, true],
            ["Micro-batches", b => count(b.micro_batches), true],
          ],
          buckets,
        ),
      ),
      reasons.map(reason =>
        card(
          h("h2", `${count(reason.total)} ${reason.label}`),
          h("p.quiet", reason.remedy),
          h(
            "ul.files",
            { tabindex: "0" },
            reason.files
              .slice(0, 200)
              .map(file => h("li", file.path, file.detail ? h("span.quiet", ` – ${file.detail}`) : null)),
          ),
        ),
      ),
    );
  };
  await renew();
  return renew;
}

async function previews(body, { key, signal }) {
  let steps = [];
  let made = [];
  let at = null;
  let beside = null;
  const use = h("div.use");
  const slider = h("input", { type: "range", min: 0, "aria-label": "step of the previews" });
  const other = h("select", { "aria-label": "step beside it" });
  const name = h("output");
  const grid = h("div.clips");
  const media = file =>
    file?.url
      ? file.video
        ? h("video", {
            src: file.url,
            loop: true,
            muted: true,
            autoplay: true,
            controls: true,
            playsinline: true,
            "aria-label": file.prompt,
          })
        : h("img", { src: file.url, alt: file.prompt, loading: "lazy" })
      : h("div.gone", "the file is gone");
  const draw = () => {
    const shown = steps[at];
    const second = beside === null ? null : steps.find(s => s.step === beside);
    name.textContent = `step ${count(shown.step)}`;
    fill(
      grid,
      shown.files.map((file, i) => [
        h("figure", media(file), h("figcaption", second ? `step ${count(shown.step)} · ` : "", file.prompt)),
        second ? h("figure", media(second.files[i]), h("figcaption", `step ${count(second.step)}`)) : null,
      ]),
    );
    const weights = made.filter(file => !file.media && file.step === shown.step);
    fill(
      use,
      weights.length
        ? weights.map(file =>
            h(
              "p.row",
              h("a.as-button", { href: file.url, download: "" }, "Use this one"),
              h("code", file.path),
              h("span.quiet", bytes(file.bytes)),
              h(
                "button.small",
                {
                  type: "button",
                  onclick: async () => {
                    await navigator.clipboard.writeText(file.path);
                    toast("the path is copied");
                  },
                },
                "Copy the path",
              ),
            ),
          )
        : h(
            "p.quiet",
            "The weights of this step are not exported. ",
            h("a", { href: `#/run/${key}/checkpoints` }, "Export a checkpoint"),
            ", or set exports in the recipe to have those of every save.",
          ),
    );
  };
  slider.addEventListener("input", () => {
    at = Number(slider.value);
    draw();
  });
  other.addEventListener("change", () => {
    beside = other.value === "" ? null : Number(other.value);
    draw();
  });
  const onKey = event => {
    if (
      !steps.length ||
      event.target.closest("input, select, textarea") ||
      !["ArrowLeft", "ArrowRight"].includes(event.key)
    )
      return;
    at = Math.max(0, Math.min(steps.length - 1, at + (event.key === "ArrowLeft" ? -1 : 1)));
    slider.value = at;
    draw();
  };
  addEventListener("keydown", onKey);
  signal.addEventListener("abort", () => removeEventListener("keydown", onKey));
  const renew = async () => {
    const [found, exported] = await Promise.all([
      get(`/runs/${key}/previews`, signal),
      get(`/runs/${key}/checkpoints/made`, signal),
    ]);
    if (!found.length)
      return fill(
        body,
        empty(
          "No previews yet",
          "Set samples.prompts and samples.every_steps in the recipe, and the run shows what it has learnt.",
        ),
      );
    if (found.length === steps.length && exported.length === made.length) return;
    made = exported;
    const wasLast = at === null || at === steps.length - 1;
    steps = found;
    if (wasLast) at = steps.length - 1;
    slider.max = steps.length - 1;
    slider.value = at;
    fill(
      other,
      h("option", { value: "" }, "nothing beside it"),
      steps.map(s => h("option", { value: s.step }, `step ${count(s.step)} beside it`)),
    );
    other.value = beside ?? "";
    if (!slider.isConnected) fill(body, h("div.card.panel", slider, name, other), use, grid);
    draw();
  };
  await renew();
  return renew;
}

async function recipe(body, { run }) {
  fill(
    body,
    h("pre.log", { tabindex: "0" }, run().recipe),
    h("h2", "Environment"),
    card(
      h(
        "dl.pairs",
        Object.entries(run().environment).map(([name, value]) => [
          h("dt", name),
          h("dd", typeof value === "object" ? JSON.stringify(value) : String(value)),
        ]),
      ),
    ),
  );
}
