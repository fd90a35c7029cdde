// What a run keeps, why, and what would go.

import { ask, button, toast } from "../dialogs.js";
import { Draft } from "../drafts.js";
import { badge, card, empty, fill, h, table } from "../elements.js";
import { get, post } from "../server.js";
import { every } from "../timing.js";
import { bytes, count, loss, moment, plural } from "../units.js";
import { picture } from "./jobs.js";

export async function renderCheckpoints(body, { key, run, signal }) {
  const list = h("div");
  const making = h("div");
  const rest = h("div");
  const maker = new Maker(making, key, signal, () => renew());
  fill(body, list, making, rest);
  const renew = async () => {
    const [found, made] = await Promise.all([
      get(`/runs/${key}/checkpoints`, signal),
      get(`/runs/${key}/checkpoints/made`, signal),
    ]);
    if (!found.rows.length)
      return fill(
        list,
        empty(
          "No checkpoint yet",
          "One is saved after checkpoints.every_steps steps, when the run is stopped, and at its end.",
        ),
      );
    const act = (path, text) => async () => {
      const told = await post(`/runs/${key}/checkpoints/${path}`);
      toast(text ? text(told) : "done");
      await renew();
    };
    fill(
      list,
      card(
        h(
          "p",
          `${plural(found.rows.length, "checkpoint")}, ${bytes(found.total_bytes)}; ${bytes(found.free_bytes)} free on the disk`,
        ),
        found.forecast ? h("p.quiet", `Until the end: ${found.forecast}`) : null,
        table(
          "Checkpoints",
          [
            ["Step", row => count(row.step), true],
            ["Epoch", row => row.epoch ?? "–", true],
            ["Size", row => bytes(row.bytes), true],
            ["Saved", row => moment(row.created)],
            [
              "Metrics",
              row => Object.entries(row.metrics || {}).map(([name, value]) => h("div", `${name} ${loss(value)}`)),
            ],
            [
              "Kept because",
              row =>
                row.state === "kept"
                  ? row.reasons.join("; ")
                  : [
                      badge(
                        row.state === "goes" ? "goes at the next save" : "damaged",
                        row.state === "goes" ? "warn" : "bad",
                      ),
                      h("div.quiet", row.reasons.join("; ")),
                    ],
            ],
            [
              "",
              row =>
                h(
                  "span.row",
                  button(
                    row.pinned ? "Unpin" : "Pin",
                    act(`${row.step}/${row.pinned ? "unpin" : "pin"}`, () =>
                      row.pinned
                        ? `step ${row.step} is no longer pinned`
                        : `step ${row.step} stays, whatever the policy says`,
                    ),
                    { kind: "small" },
                  ),
                  button(
                    "Verify",
                    act(`${row.step}/verify`, told =>
                      told.good ? `step ${row.step} is whole: all digests match` : `step ${row.step}: ${told.reason}`,
                    ),
                    { kind: "small" },
                  ),
                  button("Export", () => exportIt(key, row.step, run().recipe), { kind: "small" }),
                  button("Generate", () => maker.open(row.step), { kind: "small" }),
                ),
            ],
          ],
          [...found.rows].reverse(),
        ),
        h(
          "div.actions",
          button(
            "Delete what would go",
            async () => {
              const plan = await get(`/runs/${key}/checkpoints/prune`, signal);
              if (!plan.deleted.length) return toast("the policy keeps all of them");
              const list = h(
                "ul",
                plan.deleted.map(row =>
                  h("li", `step ${count(row.step)}, ${bytes(row.bytes)}: ${row.reasons.join("; ")}`),
                ),
              );
              if (
                await ask(
                  `Delete ${plan.deleted.length} of ${plan.deleted.length + plan.kept.length} checkpoints?`,
                  list,
                  "Delete",
                )
              )
                await act("prune", told => `${told.deleted.length} deleted`)();
            },
            { kind: "danger" },
          ),
        ),
      ),
    );
    fill(rest, ...files(made));
  };
  await renew();
  await maker.restore();
  return renew;
}

function* files(made) {
  const [weights, shown] = [made.filter(file => !file.media), made.filter(file => file.media)];
  if (weights.length) {
    yield h("h2", "Exported");
    yield card(
      table(
        "Exported files",
        [
          ["File", file => h("a", { href: file.url, download: "" }, file.name)],
          ["Size", file => bytes(file.bytes), true],
          ["Written", file => moment(file.time)],
        ],
        weights,
      ),
    );
  }
  if (shown.length) {
    yield h("h2", "Generated");
    yield h(
      "div.clips",
      shown.map(file =>
        h(
          "figure",
          file.media.startsWith("video/")
            ? h("video", {
                src: file.url,
                loop: true,
                muted: true,
                autoplay: true,
                controls: true,
                "aria-label": file.name,
              })
            : h("img", { src: file.url, alt: file.name, loading: "lazy" }),
          h("figcaption", file.name),
        ),
      ),
    );
  }
}

async function form(title, fields, verb) {
  const inputs = Object.fromEntries(fields.map(([name, , input]) => [name, input]));
  const content = h(
    "div.fields",
    fields.map(([, label, input]) => h("label", h("span", label), input)),
  );
  if (!(await ask(title, content, verb))) return null;
  return Object.fromEntries(
    Object.entries(inputs).map(([name, input]) => [name, input.type === "checkbox" ? input.checked : input.value]),
  );
}

async function exportIt(key, step, recipe) {
  const isLora = /^\[lora\]/m.test(recipe);
  const options = (...names) => names.map(name => h("option", { value: name }, name));
  const fields = [
    ["dtype", "Numbers as", h("select", options("bfloat16", "float16", "float32"))],
    ["ema", "Averaged weights", h("input", { type: "checkbox", checked: true })],
  ];
  if (isLora) fields.unshift(["format", "Names of", h("select", options("diffusers", "comfyui", "kohya"))]);
  const chosen = await form(`Export step ${step}`, fields, "Export");
  if (!chosen) return;
  const job = await post(`/runs/${key}/checkpoints/${step}/export`, chosen);
  location.hash = `#/jobs/${job.id}`;
}

/** The form below the checkpoints that generates from one of them, and shows what comes of it. */
class Maker {
  constructor(place, key, signal, onMade) {
    Object.assign(this, { place, key, signal, onMade, made: h("div.clips") });
    this.kept = new Draft(() => fill(place), `${location.hash} generate`);
  }

  async restore() {
    const former = this.kept.found;
    if (former) await this.open(former.step, former.values);
  }

  async open(step, values = this.values()) {
    const usual = await get(`/runs/${this.key}/checkpoints/generate`, this.signal);
    const { picture, clip } = usual;
    const number = (placeholder, more = {}) => h("input", { type: "number", min: 1, placeholder, ...more });
    this.inputs = {
      prompt: h("textarea", { rows: 3, required: true }),
      width: number((clip || picture).width),
      height: number((clip || picture).height),
      num_frames: clip && number(clip.num_frames),
      num_inference_steps: number(usual.num_inference_steps),
      guidance_scale: number(usual.guidance_scale, { step: "any" }),
      seed: number(0, { min: 0 }),
      lora_scale: usual.lora_scale === null ? null : number(usual.lora_scale, { min: -10, max: 10, step: "any" }),
    };
    for (const [name, input] of this.fields()) input.value = values[name] ?? "";
    const names = {
      prompt: "Prompt",
      width: "Width",
      height: "Height",
      num_frames: "Frames",
      num_inference_steps: "Steps",
      guidance_scale: "Guidance",
      seed: "Seed",
      lora_scale: "Strength of the LoRA",
    };
    if (clip)
      this.inputs.num_frames.addEventListener("input", () =>
        this.suggest(this.inputs.num_frames.value === "1" ? picture : clip),
      );
    const form = h(
      "form.card.generate",
      { "aria-label": "Generate", oninput: () => this.kept.keep({ step, values: this.values() }) },
      h(
        "div.row",
        h("h2", `Generate from step ${count(step)}`),
        h("span.gap"),
        h(
          "button.small",
          {
            type: "button",
            onclick: () => {
              this.kept.drop();
              fill(this.place);
            },
          },
          "Close",
        ),
      ),
      this.kept.box,
      h(
        "div.fields",
        this.fields().map(([name, input]) => h("label", h("span", names[name]), input)),
      ),
      h(
        "p.quiet",
        "A field that is left empty has the value shown in it: the size with the most training, and the recipe's samples or the model's usual settings.",
      ),
      h(
        "div.actions",
        button(
          "Generate",
          async () => {
            if (form.reportValidity()) await this.make(step);
          },
          { kind: "main" },
        ),
      ),
      this.made,
    );
    fill(this.place, form);
    this.inputs.prompt.focus();
  }

  fields() {
    return Object.entries(this.inputs || {}).filter(([, input]) => input);
  }
  values() {
    return Object.fromEntries(
      this.fields()
        .filter(([, input]) => input.value !== "")
        .map(([name, input]) => [name, input.type === "number" ? input.valueAsNumber : input.value]),
    );
  }
  suggest({ width, height }) {
    this.inputs.width.placeholder = width;
    this.inputs.height.placeholder = height;
  }

  /** Start the command, and put its result first once it has ended. */
  async make(step) {
    const wish = this.values();
    const job = await post(`/runs/${this.key}/checkpoints/${step}/generate`, wish);
    this.kept.drop();
    const said = h("span");
    const box = h("figure");
    const control = new AbortController();
    const more = h("a", { href: `#/jobs/${job.id}` }, "what it prints");
    this.signal.addEventListener("abort", () => control.abort());
    fill(
      box,
      h(
        "div.gone",
        { role: "status" },
        badge("", "busy"),
        said,
        button("Stop", () => post(`/jobs/${job.id}/stop`), { kind: "small" }),
      ),
      h("figcaption", more),
    );
    this.made.prepend(box);
    const look = async () => {
      const found = await get(`/jobs/${job.id}`, this.signal);
      said.textContent =
        found.state === "waiting" ? "waits" : found.output.trim().split("\n").pop() || "loading the model …";
      if (["waiting", "running"].includes(found.state)) return;
      control.abort();
      if (found.state !== "done") return fill(box, h("p.error", found.error || "it was stopped"), more);
      fill(box, await picture(found, this.signal), h("figcaption", `${wish.prompt} `, more));
      await this.onMade();
    };
    look();
    every(700, control.signal, look);
  }
}
