// What a recipe would train: a map of its buckets with their settings in it, computed again while they are moved.

import {
  ago,
  ask,
  badge,
  button,
  bytes,
  canChange,
  card,
  count,
  duration,
  empty,
  every,
  fill,
  get,
  h,
  percent,
  plural,
  post,
  table,
  throttled,
  toast,
} from "../core.js";
import { Draft, watchRecipe } from "../drafts.js";

export const title = "Plan";

const WAYS = [
  ["partial", "train them smaller"],
  ["merge", "merge into smaller buckets"],
  ["repeat", "fill with repeats"],
  ["pad", "pad with copies"],
];
const PARTS = ["c1", "c2", "c3", "c5", "c6", "c7", "c8", "c4"];

export async function render(main, [key], signal) {
  return key ? new Plan(main, key, signal).open() : list(main, signal);
}

async function list(main, signal) {
  let former = "";
  const update = async () => {
    const rows = await get("/plan", signal);
    const now = JSON.stringify(rows);
    if (now === former || signal.aborted) return;
    former = now;
    fill(
      main,
      rows.length
        ? [
            h("div.page-head", h("h1", "Plan"), h("span.gap"), h("a", { href: "#/new" }, "New recipe")),
            card(recipeTable(rows)),
          ]
        : empty(
            "No recipe yet",
            "A plan shows what a recipe would train: its buckets, steps and waste. Make a recipe first.",
            h("a", { href: "#/new" }, "New recipe"),
          ),
    );
  };
  await update();
  every(2000, signal, update);
}

const recipeTable = rows =>
  table(
    "Recipes",
    [
      ["Recipe", row => [h("a", { href: `#/plan/${row.key}` }, row.name), h("div.quiet", row.path)]],
      ["Model", row => row.model || "–"],
      [
        "Buckets",
        row =>
          row.problem
            ? h("span.error", row.problem)
            : row.entries.length
              ? row.entries.slice(0, 6).join(", ") +
                (row.entries.length > 6 ? ` and ${row.entries.length - 6} more` : "")
              : "chosen from the footage",
      ],
      [
        "",
        row =>
          row.problem
            ? h("a", { href: `#/new/${row.key}` }, "Edit")
            : badge(row.scanned ? "can be planned" : "not scanned yet", row.scanned ? "good" : "plain"),
      ],
    ],
    rows,
  );

class Plan {
  constructor(main, key, signal) {
    Object.assign(this, { main, key, signal, asked: null, advised: null, before: null, plan: null });
    this.move = throttled(60, () => this.compute());
    this.kept = new Draft(() => this.load());
    signal.addEventListener("abort", () => {
      this.asked?.abort();
      this.advised?.abort();
      clearTimeout(this.resting);
    });
  }

  async open() {
    await this.load();
    watchRecipe(
      this.key,
      this.signal,
      () => this.known,
      async found => {
        this.known = found.digest;
        this.isMoved ? this.kept.outdated() : await this.load();
      },
    );
  }

  async load() {
    this.about = await get(`/plan/${this.key}`, this.signal);
    this.known = this.about.digest;
    if (!this.about.scanned) return this.scan();
    this.saved = this.about.controls;
    this.now = structuredClone(this.saved);
    this.before = null;
    const former = this.kept.found;
    // Controls of an older file fit if it has as many; its digest keeps them from being saved over the newer one.
    if (former?.now.batch_sizes.length === this.now.batch_sizes.length) {
      this.now = former.now;
      former.digest === this.known ? this.kept.restored() : this.kept.outdated();
      this.about.digest = former.digest;
    }
    this.build();
    await this.compute();
  }

  // The footage is not known yet.
  async scan() {
    const progress = h("p.quiet", { role: "status" });
    const follow = job => {
      start.hidden = true;
      this.watch(
        job,
        progress,
        () => this.load(),
        () => {
          start.hidden = false;
        },
      );
    };
    const start = button("Scan the footage", async () => follow(await post(`/plan/${this.key}/scan`)), {
      kind: "main",
    });
    fill(
      this.main,
      empty(
        `${this.about.name} has no catalog yet`,
        "Sizes, lengths and captions of the clips are read once; later scans open only files that changed.",
        start,
        progress,
      ),
    );
    const running = (await get("/jobs", this.signal)).find(
      job => job.kind === "scan" && job.subject === this.key && ["waiting", "running"].includes(job.state),
    );
    if (running) follow(running);
  }

  /** Follow a job until it ends, and tell how far it is. */
  watch(job, place, onDone, onFail = () => {}) {
    const stop = button("Stop", () => post(`/jobs/${job.id}/stop`), { kind: "small" });
    const said = h("span");
    const control = new AbortController();
    const end = () => control.abort();
    this.signal.addEventListener("abort", end);
    fill(place, h("span.row.watch", badge("", "busy"), said, stop));
    const look = async () => {
      const found = await get(`/jobs/${job.id}`, this.signal);
      const line = found.output
        .split("\n")
        .filter(one => one.startsWith("scanning: "))
        .pop();
      said.textContent = line || `${found.kind} runs since ${ago(found.started || found.created).replace(" ago", "")}`;
      if (["waiting", "running"].includes(found.state)) return;
      end();
      if (found.state === "done" || found.result) return onDone(found);
      onFail();
      fill(
        place,
        h("span.error", found.error || `${found.kind} was stopped`),
        " ",
        h("a", { href: `#/jobs/${job.id}` }, "what it printed"),
      );
    };
    look();
    every(700, control.signal, look);
  }

  build() {
    const { about } = this;
    this.refresh = [];
    this.facts = h("dl.facts.plan-facts");
    this.problem = h("p.error", { role: "alert" });
    this.map = this.buildMap();
    this.advice = h("div", { "aria-live": "polite" });
    this.shares = h("div");
    this.unseen = h("div");
    this.memory = h("div");
    this.state = h("span.quiet", { role: "status" });
    this.saveButton = button("Save", () => this.save(), { kind: "main" });
    this.resetButton = h("button", { type: "button", onclick: () => this.set(structuredClone(this.saved)) }, "Reset");
    fill(
      this.main,
      h(
        "div.page-head.plan-head",
        h("div", h("h1", about.name), h("div.quiet", `${about.path} · ${about.model}`)),
        h("span.gap"),
        this.state,
        this.resetButton,
        button("Save as recipe …", () => this.saveAs()),
        this.saveButton,
      ),
      this.kept.box,
      this.facts,
      h(
        "section.card.plan-controls",
        { "aria-label": "Settings" },
        this.general(),
        this.problem,
        this.map,
        about.chosen
          ? h("p.quiet", "The entries are chosen from the footage; saving other numbers writes them into the recipe.")
          : null,
      ),
      this.advice,
      h(
        "div.two.plan-two",
        card(h("h2", "Shares of the training"), this.shares),
        card(h("h2", "Clips that this epoch does not train"), this.unseen),
      ),
      card(h("h2", "Memory and time"), this.memory),
    );
    this.showCheck();
  }

  general() {
    const world = this.number(
      "GPUs",
      () => this.now.world,
      value => {
        this.now.world = value;
      },
      { min: this.about.degree, max: 4096, step: this.about.degree, field: "world", note: "set when training starts" },
    );
    const steps =
      this.now.micro_batches_per_step === null
        ? this.number(
            "Gradient accumulation",
            () => this.now.gradient_accumulation_steps,
            value => {
              this.now.gradient_accumulation_steps = value;
            },
            { min: 1, max: 4096, field: "gradient_accumulation_steps", note: "micro-batches per GPU and step" },
          )
        : this.number(
            "Micro-batches per step",
            () => this.now.micro_batches_per_step,
            value => {
              this.now.micro_batches_per_step = value;
            },
            { min: 1, max: 65536, field: "micro_batches_per_step", note: "over all GPUs" },
          );
    const ways = h(
      "select",
      {
        onchange: event => {
          this.now.incomplete_batch = event.target.value;
          this.move();
        },
      },
      WAYS.map(([way, text]) => h("option", { value: way }, text)),
    );
    this.refresh.push(() => {
      ways.value = this.now.incomplete_batch;
      ways.parentElement.classList.toggle("moved", this.now.incomplete_batch !== this.saved.incomplete_batch);
    });
    return h(
      "div.plan-general",
      world,
      steps,
      h("label.plan-field", h("span", "Incomplete batches"), ways, h("small.quiet", "incomplete_batch")),
    );
  }

  /** A number with a slider that doubles: both set the same value. */
  number(label, read, write, { min, max, step = 1, field, note }) {
    const box = h("input", { type: "number", min, max, step, "data-field": field });
    const slider = h("input", {
      type: "range",
      min: 0,
      max: Math.log2(max / min),
      step: 1,
      "aria-label": label,
      tabindex: -1,
    });
    const error = h("small.error", { "data-error": field });
    const take = value => {
      if (Number.isInteger(value) && value >= min) {
        write(value);
        this.changed();
      }
    };
    box.addEventListener("input", () => take(box.valueAsNumber));
    slider.addEventListener("input", () => take(min * 2 ** slider.valueAsNumber));
    const outer = h(
      "label.plan-field",
      h("span", label),
      h("span.plan-number", box, slider),
      h("small.quiet", note),
      error,
    );
    this.refresh.push(() => {
      if (box.valueAsNumber !== read()) box.value = read();
      slider.value = Math.log2(read() / min);
      outer.classList.toggle("moved", read() !== (this.saved[field] ?? read()));
    });
    return outer;
  }

  buildMap() {
    const { entries } = this.about;
    const sizes = [...new Set(entries.map(entry => entry.resolution))].sort(
      (a, b) =>
        Math.max(...entries.filter(e => e.resolution === b).map(e => e.pixels)) -
        Math.max(...entries.filter(e => e.resolution === a).map(e => e.pixels)),
    );
    const frames = [...new Set(entries.map(entry => entry.num_frames))].sort((a, b) => a - b);
    this.cells = [];
    const body = sizes.map(size =>
      h(
        "tr",
        h("th", { scope: "row" }, size),
        frames.map(number => {
          const index = entries.findIndex(entry => entry.resolution === size && entry.num_frames === number);
          return index < 0 ? h("td.none", { "aria-label": "no bucket" }) : this.cell(index);
        }),
      ),
    );
    return h(
      "div.scroll",
      { tabindex: "0", role: "region", "aria-label": "Buckets" },
      h(
        "table.plan-map",
        h("caption.hidden", "Buckets by resolution and number of frames"),
        h(
          "thead",
          h(
            "tr",
            h("th", { scope: "col" }, h("span.quiet", "frames →")),
            frames.map(number => h("th", { scope: "col" }, number === 1 ? "1 · pictures" : count(number))),
          ),
        ),
        h("tbody", body),
      ),
    );
  }

  cell(index) {
    const entry = this.about.entries[index];
    const { place } = entry;
    const clips = h("b");
    const former = h("span.former");
    const share = h("span.quiet");
    const buckets = this.about.buckets.filter(bucket => bucket.entry === index);
    const glyphs = buckets.map(bucket => glyph(bucket));
    const shapes = h(
      "div.plan-shapes",
      { role: "img" },
      glyphs.map(one => one.element),
    );
    const inputs = [];
    if (place !== null) {
      const size = h("input", {
        type: "number",
        min: 1,
        max: this.about.most_clips,
        step: 1,
        "aria-label": `batch size of ${entry.label}`,
        "data-field": `batch_sizes.${place}`,
      });
      const chance = h("input", {
        type: "range",
        min: 0,
        max: 1,
        step: 0.01,
        "aria-label": `probability of ${entry.label}`,
        "data-field": `keep_probs.${place}`,
      });
      const said = h("output");
      size.addEventListener("input", () => {
        if (Number.isInteger(size.valueAsNumber) && size.valueAsNumber > 0) {
          this.now.batch_sizes[place] = size.valueAsNumber;
          this.changed();
        }
      });
      chance.addEventListener("input", () => {
        this.now.keep_probs[place] = chance.valueAsNumber;
        this.changed();
      });
      const first = h("label", { title: "clips per micro-batch on one GPU" }, h("span", "batch"), size);
      const second = h(
        "label",
        { title: "chance that a fitting clip is assigned here" },
        h("span", "keep"),
        chance,
        said,
      );
      this.refresh.push(() => {
        if (size.valueAsNumber !== this.now.batch_sizes[place]) size.value = this.now.batch_sizes[place];
        if (chance.valueAsNumber !== this.now.keep_probs[place]) chance.value = this.now.keep_probs[place];
        said.textContent = `${Math.round(100 * this.now.keep_probs[place])} %`;
        first.classList.toggle("moved", this.now.batch_sizes[place] !== this.saved.batch_sizes[place]);
        second.classList.toggle("moved", this.now.keep_probs[place] !== this.saved.keep_probs[place]);
      });
      inputs.push(h("div.plan-inputs", first, second));
    }
    const element = h("td", h("div.plan-count", clips, former, share), shapes, inputs);
    this.cells.push({ index, element, clips, former, share, buckets, glyphs, shapes });
    return element;
  }

  changed() {
    for (const call of this.refresh) call();
    this.tell();
    this.move();
  }

  set(controls) {
    this.now = controls;
    this.changed();
  }

  get isMoved() {
    return JSON.stringify({ ...this.now, world: 0 }) !== JSON.stringify({ ...this.saved, world: 0 });
  }

  tell() {
    JSON.stringify(this.now) === JSON.stringify(this.saved)
      ? this.kept.drop()
      : this.kept.keep({ now: this.now, digest: this.about.digest });
    this.saveButton.disabled = !this.isMoved || !canChange() || this.about.is_of_run;
    this.saveButton.title = this.about.is_of_run ? "what a run was trained with stays as it is: save a new recipe" : "";
    this.resetButton.disabled = JSON.stringify(this.now) === JSON.stringify(this.saved);
  }

  async compute() {
    for (const call of this.refresh) call();
    this.tell();
    this.asked?.abort();
    this.advised?.abort();
    clearTimeout(this.resting);
    const asked = new AbortController();
    this.asked = asked;
    const controls = JSON.stringify(this.now);
    this.main.classList.add("busy");
    try {
      const plan = await get(`/plan/${this.key}/outline?controls=${encodeURIComponent(controls)}`, asked.signal);
      if (asked.signal.aborted || this.signal.aborted) return;
      this.fault(null);
      this.plan = plan;
      this.before ??= plan;
      this.draw();
      this.resting = setTimeout(() => this.advise(controls), 250);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.fault(error);
    } finally {
      if (this.asked === asked) this.main.classList.remove("busy");
    }
  }

  /** Show an error at its control, or above the map if it has none. */
  fault(error) {
    for (const input of this.main.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
    for (const place of this.main.querySelectorAll("[data-error]")) place.textContent = "";
    this.problem.textContent = "";
    this.main.classList.toggle("faulty", Boolean(error));
    if (!error) return;
    for (const input of this.map.querySelectorAll("input:invalid")) input.setAttribute("aria-invalid", "true");
    const field =
      {
        "parallel.sequence_degree": "world",
        "train.micro_batches_per_step": "micro_batches_per_step",
        "train.gradient_accumulation_steps": "gradient_accumulation_steps",
      }[error.field] ||
      error.field ||
      "";
    const text = `${error.message}${error.remedy ? `: ${error.remedy}` : ""}`;
    this.main.querySelector(`[data-field="${CSS.escape(field)}"]`)?.setAttribute("aria-invalid", "true");
    const place = this.main.querySelector(`[data-error="${CSS.escape(field)}"]`);
    (place || this.problem).textContent = place ? text : `${error.field ? `${error.field}: ` : ""}${text}`;
  }

  draw() {
    const { plan, before } = this;
    const unseen = one =>
      Object.entries(one.left_out).reduce((sum, [reason, clips]) => sum + (reason === "held_out" ? 0 : clips.clips), 0);
    const facts = [
      [
        "Steps per epoch",
        one => one.steps_per_epoch,
        count,
        `of ${plural(plan.micro_batches_per_step, "micro-batch")}`,
      ],
      [
        "Clips trained",
        one => one.planned,
        count,
        plan.repeated ? `and ${count(plan.repeated)} repeats` : `of ${count(plan.catalog.clips)}`,
      ],
      ["GPUs wait", one => one.imbalance, percent, "imbalance", 0.1],
      ["Padding", one => one.padding, percent, "copies of weight 0", 0.1],
      ["Not trained", unseen, count, plan.held_out ? `and ${count(plan.held_out)} held out` : "by any bucket"],
      ["Batches not full", one => one.incomplete, count, `of ${count(plan.micro_batches)}`],
    ];
    fill(
      this.facts,
      facts.map(([name, read, write, note, most]) => {
        const [now, then] = [read(plan), read(before)];
        const is = write(now) !== write(then);
        return h(
          `div.card${most && now > most ? ".too-much" : ""}`,
          h("dt", name),
          h("dd", write(now), is ? h("span.former", `was ${write(then)}`) : null),
          h("dd.note", note),
        );
      }),
    );
    this.drawMap();
    this.drawShares();
    this.drawUnseen();
  }

  drawMap() {
    const clipsOf = plan => Object.fromEntries(plan.buckets.map(bucket => [bucket.name, bucket.clips]));
    const [now, then] = [clipsOf(this.plan), clipsOf(this.before)];
    const sum = (counts, cell) => cell.buckets.reduce((total, bucket) => total + (counts[bucket.name] || 0), 0);
    const most = Math.max(1, ...this.cells.map(cell => sum(now, cell)));
    for (const cell of this.cells) {
      const [clips, former] = [sum(now, cell), sum(then, cell)];
      cell.clips.textContent = count(clips);
      cell.former.textContent = clips === former ? "" : `was ${count(former)}`;
      cell.share.textContent = clips ? percent(clips / this.plan.planned) : "";
      cell.element.style.setProperty("--tint", `${(clips ? 4 + 22 * Math.sqrt(clips / most) : 0).toFixed(1)}%`);
      cell.element.classList.toggle("unused", !clips);
      const largest = Math.max(1, ...cell.buckets.map(bucket => now[bucket.name] || 0));
      for (const [i, one] of cell.glyphs.entries()) one.set(now[cell.buckets[i].name] || 0, largest);
      cell.shapes.setAttribute(
        "aria-label",
        cell.buckets
          .filter(bucket => now[bucket.name])
          .map(bucket => `${bucket.ratio}: ${plural(now[bucket.name], "clip")}`)
          .join(", ") || "no clip",
      );
    }
  }

  /** Shares of each entry, its aspect ratios together. */
  drawShares() {
    const byName = Object.fromEntries(
      this.about.buckets.map(bucket => [bucket.name, this.about.entries[bucket.entry].label]),
    );
    const group = plan => {
      const sums = new Map();
      for (const share of plan.shares) {
        const label = byName[share.name] || share.name;
        const sum = sums.get(label) || { label, clips: 0, tokens: 0, time: 0, gradient: 0 };
        for (const measure of ["clips", "tokens", "time", "gradient"]) sum[measure] += share[`share_of_${measure}`];
        sums.set(label, sum);
      }
      return sums;
    };
    const [now, then] = [group(this.plan), group(this.before)];
    const meter = (row, measure, tone) => {
      const former = then.get(row.label)?.[measure] ?? 0;
      const is = percent(former) !== percent(row[measure]);
      return h(
        "div.meter",
        {
          style: { "--share": `${100 * row[measure]}%`, "--tone": `var(--${tone})` },
          title: is ? `was ${percent(former)}` : null,
        },
        percent(row[measure]),
        h("i"),
      );
    };
    fill(
      this.shares,
      h("p.quiet", "Every step weighs the same in the gradient; time is the cost of the micro-batches."),
      table(
        "Shares of the entries",
        [
          ["Bucket", row => row.label],
          ["Clips", row => meter(row, "clips", "c1"), true],
          ["Tokens", row => meter(row, "tokens", "c1"), true],
          ["Time", row => meter(row, "time", "c8"), true],
          ["Gradient", row => meter(row, "gradient", "c2"), true],
        ],
        [...now.values()],
      ),
    );
  }

  drawUnseen() {
    const now = this.plan.left_out;
    const then = this.before.left_out;
    const rows = [...new Set([...Object.keys(now), ...Object.keys(then)])].map(reason => ({
      reason,
      clips: now[reason]?.clips || 0,
      former: then[reason]?.clips || 0,
      nearest: now[reason]?.nearest || {},
    }));
    if (!rows.length) return fill(this.unseen, h("p", "All clips are trained."));
    const names = h("div");
    fill(
      this.unseen,
      table(
        "Clips that are not trained",
        [
          [
            "Reason",
            row => [
              this.about.reasons[row.reason],
              Object.keys(row.nearest).length
                ? h(
                    "div.quiet",
                    "nearest: ",
                    Object.entries(row.nearest)
                      .sort((a, b) => b[1] - a[1])
                      .slice(0, 3)
                      .map(([entry, clips]) => `${entry} (${count(clips)})`)
                      .join(", "),
                  )
                : null,
            ],
          ],
          [
            "Clips",
            row => [count(row.clips), row.clips !== row.former ? h("div.former", `was ${count(row.former)}`) : null],
            true,
          ],
        ],
        rows,
      ),
      h(
        "p.plan-names",
        button(
          "Show some of them",
          async () => {
            const found = await get(
              `/plan/${this.key}/reasons?controls=${encodeURIComponent(JSON.stringify(this.now))}`,
              this.signal,
            );
            fill(
              names,
              Object.entries(found).map(([reason, files]) =>
                h(
                  "details",
                  h("summary", this.about.reasons[reason]),
                  h(
                    "ul.files",
                    files.map(file =>
                      h("li", h("code", file.path), file.detail ? h("span.quiet", ` ${file.detail}`) : null),
                    ),
                  ),
                ),
              ),
            );
          },
          { kind: "small" },
        ),
      ),
      names,
    );
    const shown = this.unseen.querySelector("button");
    shown.disabled = false; // reading needs no token
  }

  async advise(controls) {
    this.advised = new AbortController();
    try {
      const found = await get(`/plan/${this.key}/advice?controls=${encodeURIComponent(controls)}`, this.advised.signal);
      if (this.signal.aborted || this.advised.signal.aborted) return;
      this.drawAdvice(found);
    } catch (error) {
      if (error.name !== "AbortError") console.warn(error);
    }
  }

  drawAdvice({ proposals, fewer_ranks: fewer }) {
    if (!proposals) return fill(this.advice);
    const gives = one =>
      `${count(one.steps)} steps, GPUs wait ${percent(one.imbalance)}, padding ${percent(one.padding)}${one.suffices === false ? "; better, but not enough" : ""}`;
    const items = proposals.map(one =>
      h(
        "li",
        h(
          "button.small",
          { type: "button", onclick: () => this.apply(one) },
          [
            ...(one.incomplete_batch !== this.now.incomplete_batch
              ? [WAYS.find(([way]) => way === one.incomplete_batch)?.[1]]
              : []),
            ...one.batch_sizes.map(size => `${size.entry}: batch ${size.from} → ${size.to}`),
          ].join(", "),
        ),
        h("span.quiet", gives(one)),
      ),
    );
    if (fewer)
      items.push(
        h(
          "li",
          h(
            "button.small",
            { type: "button", onclick: () => this.set({ ...this.now, world: fewer.world }) },
            `${plural(fewer.world, "GPU")}`,
          ),
          h("span.quiet", gives(fewer)),
        ),
      );
    if (!items.length) items.push(h("li", "Neither merging nor other batch sizes nor fewer GPUs improve it."));
    fill(
      this.advice,
      h(
        "section.card.plan-advice",
        h("h2", "Less waste"),
        h("p.quiet", "Each was planned on the same clips."),
        h("ul.cures", items),
      ),
    );
  }

  apply(proposal) {
    const next = structuredClone(this.now);
    next.incomplete_batch = proposal.incomplete_batch;
    for (const { entry, to } of proposal.batch_sizes) {
      const found = this.about.entries.find(one => one.label === entry);
      if (found && found.place !== null) next.batch_sizes[found.place] = to;
    }
    this.set(next);
  }

  // Memory and time, from a job that loads the model.
  showCheck(note = null) {
    fill(
      this.memory,
      h(
        "p.quiet",
        "Loads the model and runs the largest bucket of each resolution once, forward and backward, on this machine.",
      ),
      h(
        "p.plan-names",
        button("Check memory and time", async () => {
          const place = h("div");
          const positions = structuredClone(this.now);
          fill(this.memory, place);
          try {
            this.watch(await post(`/plan/${this.key}/check`, { controls: positions }), place, job =>
              this.drawCheck(job, positions),
            );
          } catch (error) {
            this.showCheck();
            throw error;
          }
        }),
      ),
      note,
    );
  }

  drawCheck(job, positions) {
    this.showCheck();
    const found = job.result;
    if (!found)
      return this.memory.append(
        h("p.error", job.error || "it printed no result"),
        h("a", { href: `#/jobs/${job.id}` }, "what it printed"),
      );
    const { total, host, ...parts } = found.memory;
    const shown = Object.entries(parts)
      .filter(([, size]) => size > total / 1000)
      .sort((a, b) => b[1] - a[1]);
    const rate = {};
    for (const one of found.rehearsed) {
      const bucket = this.about.buckets.find(b => b.name === one.bucket);
      if (bucket) rate[this.about.entries[bucket.entry].resolution] = one.seconds / (one.batch_size * bucket.tokens);
    }
    const known = this.plan.buckets.every(
      bucket =>
        this.about.buckets.find(b => b.name === bucket.name) && rate[this.resolution(bucket.name)] !== undefined,
    );
    const busy = this.plan.buckets.reduce(
      (sum, bucket) => sum + bucket.clips * bucket.tokens_per_clip * (rate[this.resolution(bucket.name)] || 0),
      0,
    );
    const same = JSON.stringify(positions) === JSON.stringify(this.now);
    this.memory.append(
      h(
        "h3.plan-memory",
        `${bytes(total)} ${found.device === "cpu" ? "of memory" : "on each GPU"}`,
        host ? h("span.quiet", ` and ${bytes(host)} of CPU memory`) : null,
      ),
      h(
        "div.bar",
        { role: "img", "aria-label": shown.map(([name, size]) => `${name} ${bytes(size)}`).join(", ") },
        shown.map(([, size], i) =>
          h("span", { style: { "--share": size / total, "--tone": `var(--${PARTS[i % PARTS.length]})` } }),
        ),
      ),
      h(
        "div.legend",
        shown.map(([name, size], i) =>
          h("span", { style: { "--tone": `var(--${PARTS[i % PARTS.length]})` } }, `${name} `, h("b", bytes(size))),
        ),
      ),
      table(
        "Passes",
        [
          ["Pass, forward and backward", one => one.bucket],
          ["Batch size", one => count(one.batch_size), true],
          ["Activations", one => bytes(one.activations_bytes), true],
          [`Time on ${found.device}`, one => duration(one.seconds), true],
        ],
        found.rehearsed,
      ),
      known && same && found.rehearsed.length
        ? h(
            "p",
            `An epoch would take about ${duration(busy / this.now.world / Math.max(0.01, 1 - this.plan.imbalance))} on ${plural(this.now.world, found.device === "cpu" ? "such processor" : "such GPU")}, in proportion to tokens; reading and encoding come on top.`,
          )
        : null,
      found.violations.map(one => h("p.error", `${one.module}: ${one.problem}. ${one.remedy || ""}`)),
      found.warnings.map(text => h("p.hint", text)),
    );
  }

  resolution(name) {
    const bucket = this.about.buckets.find(one => one.name === name);
    return bucket ? this.about.entries[bucket.entry].resolution : "";
  }

  async save() {
    const told = await post(`/plan/${this.key}/save`, { controls: this.now, digest: this.about.digest });
    toast(`saved in ${told.path}`);
    const { world } = this.now;
    this.about = await get(`/plan/${this.key}`, this.signal);
    this.known = this.about.digest;
    this.saved = this.about.controls;
    this.now = { ...structuredClone(this.saved), world };
    this.before = null;
    this.changed();
  }

  async saveAs() {
    const name = h("input", {
      type: "text",
      value: `${this.about.name}-2`,
      maxlength: 100,
      "aria-describedby": "save-note",
    });
    const content = h(
      "div.fields",
      h("label", h("span", "Name"), name),
      h("p.quiet", { id: "save-note" }, "Beside this recipe, with a run folder of its own; it uses the same catalog."),
    );
    if (!(await ask("Save as a new recipe", content, "Save"))) return;
    const wish = { controls: this.now, digest: this.about.digest, name: name.value };
    let told;
    try {
      told = await post(`/plan/${this.key}/save`, wish);
    } catch (error) {
      if (error.code !== "file-exists") throw error;
      if (!(await ask(`Overwrite ${error.value}?`, h("p", "The recipe of this name is replaced."), "Overwrite")))
        return;
      told = await post(`/plan/${this.key}/save`, { ...wish, overwrite: true });
    }
    this.kept.drop();
    toast(`saved as ${told.path}`);
    location.hash = `#/plan/${told.key}`;
  }
}

/** A bucket as a rectangle of its aspect ratio, the darker the more clips it has. */
function glyph(bucket) {
  const scale = 15 / Math.max(bucket.height, bucket.width);
  const width = Math.max(3, bucket.width * scale);
  const height = Math.max(3, bucket.height * scale);
  const tip = h("title");
  const rect = h("rect", { x: (16 - width) / 2, y: (16 - height) / 2, width, height, rx: 1 });
  const element = h("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, tip, rect);
  return {
    element,
    set(clips, most) {
      rect.style.fillOpacity = clips ? (0.25 + (0.75 * clips) / most).toFixed(2) : "0";
      tip.textContent = `${bucket.ratio}: ${plural(clips, "clip")}, ${bucket.width} × ${bucket.height}, ${plural(bucket.tokens, "token")} each`;
    },
  };
}
