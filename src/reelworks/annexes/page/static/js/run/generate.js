// The form below the checkpoints that generates from one of them, and shows what comes of it.

import { button } from "../dialogs.js";
import { Draft } from "../drafts.js";
import { badge, fill, h } from "../elements.js";
import { generatedMedia, isOpen, stopButton, watchJob } from "../jobs.js";
import { get, post } from "../server.js";
import { t } from "../texts.js";
import { newest } from "../timing.js";
import { count } from "../units.js";

const NAMES = {
  prompt: t`Prompt`,
  width: t`Width`,
  height: t`Height`,
  num_frames: t`Frames`,
  num_inference_steps: t`Steps`,
  guidance_scale: t`Guidance`,
  seed: t`Seed`,
  lora_scale: t`Strength of the LoRA`,
};
const NOTE = [
  t`A field that is left empty has the value shown in it: the size with the most training, `,
  t`and the recipe's samples or the model's usual settings.`,
];

export class Generator {
  constructor(place, key, signal, onMade) {
    Object.assign(this, { place, key, signal, onMade, inputs: {}, made: h("div.clips"), next: newest(signal) });
    this.kept = new Draft(() => fill(place), `${location.hash} generate`);
  }

  async restore() {
    const former = this.kept.found;
    if (former) await this.open(former.step, former.values);
  }

  async open(step, former = null) {
    const usual = await get(`/runs/${this.key}/checkpoints/${step}/generate`, this.next());
    const values = former || this.values;
    this.inputs = makeInputs(usual);
    for (const [name, input] of Object.entries(this.inputs)) input.value = values[name] ?? "";
    const { picture, clip } = usual;
    if (clip)
      this.inputs.num_frames.addEventListener("input", event =>
        this.suggest(event.target.value === "1" ? picture : clip),
      );
    if (this.kept.found) this.kept.keep({ step, values });
    fill(this.place, this.build(step));
    this.inputs.prompt.focus();
  }

  build(step) {
    const close = () => {
      this.kept.drop();
      fill(this.place);
    };
    const make = async () => {
      if (form.reportValidity()) await this.make(step);
    };
    const labels = Object.entries(this.inputs).map(([name, input]) => h("label", h("span", NAMES[name]), input));
    const form = h(
      "form.card.generate",
      { "aria-label": t`Generate`, oninput: () => this.kept.keep({ step, values: this.values }) },
      h(
        "div.row",
        h("h2", t`Generate from step ${count(step)}`),
        h("span.gap"),
        h("button.small", { type: "button", onclick: close }, t`Close`),
      ),
      this.kept.box,
      h("div.fields", labels),
      h("p.quiet", NOTE),
      h("div.actions", button(t`Generate`, make, { kind: "main" })),
      this.made,
    );
    return form;
  }

  /** What is typed, without the fields that are empty. */
  get values() {
    const typed = Object.entries(this.inputs).filter(([, input]) => input.value !== "");
    return Object.fromEntries(
      typed.map(([name, input]) => [name, input.type === "number" ? input.valueAsNumber : input.value]),
    );
  }

  suggest({ width, height }) {
    this.inputs.width.placeholder = width;
    this.inputs.height.placeholder = height;
  }

  /** Start the command, and put its result first once it has ended. */
  async make(step) {
    const wish = this.values;
    const job = await post(`/runs/${this.key}/checkpoints/${step}/generate`, wish);
    this.kept.drop();
    const said = h("span");
    const more = h("a", { href: `#/jobs/${job.id}` }, t`what it prints`);
    const status = h("div.gone", { role: "status" }, badge("", "busy"), said, stopButton(job.id));
    const box = h("figure", status, h("figcaption", more));
    this.made.prepend(box);
    watchJob(job.id, this.signal, async found => {
      said.textContent =
        found.state === "waiting" ? t`waits` : found.output.trim().split("\n").pop() || t`loading the model …`;
      if (isOpen(found)) return;
      if (found.state !== "done") return fill(box, h("p.error", found.error || t`it was stopped`), more);
      fill(box, await generatedMedia(found, this.signal), h("figcaption", `${wish.prompt} `, more));
      await this.onMade();
    });
  }
}

/** The fields of the form by name; their placeholders tell what is used if they are left empty. */
function makeInputs({ picture, clip, num_inference_steps: steps, guidance_scale: guidance, lora_scale: strength }) {
  const number = (placeholder, more = {}) => h("input", { type: "number", min: 1, placeholder, ...more });
  return {
    prompt: h("textarea", { rows: 3, required: true }),
    width: number((clip || picture).width),
    height: number((clip || picture).height),
    ...(clip && { num_frames: number(clip.num_frames) }),
    num_inference_steps: number(steps),
    guidance_scale: number(guidance, { step: "any" }),
    seed: number(0, { min: 0 }),
    ...(strength !== null && { lora_scale: number(strength, { min: -10, max: 10, step: "any" }) }),
  };
}
