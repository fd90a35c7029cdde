// The previews of a run, step by step, with another step beside them if wished.

import { toast } from "../dialogs.js";
import { emptySection, fill, h, media } from "../elements.js";
import { get } from "../server.js";
import { t } from "../texts.js";
import { bytes, count } from "../units.js";

export async function renderPreviews(body, { key, signal }) {
  const previews = new Previews(body, key, signal);
  await previews.renew();
  return () => previews.renew();
}

class Previews {
  constructor(body, key, signal) {
    Object.assign(this, { body, key, signal, steps: [], made: [], at: null, beside: null });
    this.use = h("div.use");
    this.name = h("output");
    this.grid = h("div.clips");
    this.slider = h("input", {
      type: "range",
      min: 0,
      "aria-label": t`step of the previews`,
      oninput: () => this.go(Number(this.slider.value)),
    });
    this.other = h("select", { "aria-label": t`step beside it`, onchange: () => this.compare() });
    addEventListener("keydown", event => this.onKey(event), { signal });
  }

  async renew() {
    const { key, signal } = this;
    const [steps, made] = await Promise.all([
      get(`/runs/${key}/previews`, signal),
      get(`/runs/${key}/checkpoints/made`, signal),
    ]);
    if (!steps.length)
      return fill(
        this.body,
        emptySection(
          t`No previews yet`,
          t`Set samples.prompts and samples.every_steps in the recipe, and the run shows what it has learnt.`,
        ),
      );
    if (steps.length === this.steps.length && made.length === this.made.length) return;
    const wasLast = this.at === null || this.at === this.steps.length - 1;
    Object.assign(this, { steps, made });
    this.slider.max = steps.length - 1;
    fill(
      this.other,
      h("option", { value: "" }, t`nothing beside it`),
      steps.map(({ step }) => h("option", { value: step }, t`step ${count(step)} beside it`)),
    );
    this.other.value = this.beside ?? "";
    if (!this.slider.isConnected)
      fill(this.body, h("div.card.panel", this.slider, this.name, this.other), this.use, this.grid);
    this.go(wasLast ? steps.length - 1 : this.at);
  }

  go(at) {
    this.at = at;
    this.slider.value = at;
    this.draw();
  }

  compare() {
    this.beside = this.other.value === "" ? null : Number(this.other.value);
    this.draw();
  }

  onKey(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!this.steps.length || !by || event.target.closest("input, select, textarea")) return;
    this.go(Math.max(0, Math.min(this.steps.length - 1, this.at + by)));
  }

  draw() {
    const { step, files } = this.steps[this.at];
    const second = this.beside === null ? null : this.steps.find(one => one.step === this.beside);
    this.name.textContent = t`step ${count(step)}`;
    fill(
      this.grid,
      files.map((file, i) => [
        figure(file, `${second ? t`step ${count(step)} · ` : ""}${file.prompt}`),
        second ? figure(second.files[i], t`step ${count(second.step)}`) : null,
      ]),
    );
    const weights = this.made.filter(file => !file.media && file.step === step);
    fill(this.use, weights.length ? weights.map(weightsLine) : this.exportHint());
  }

  exportHint() {
    const link = h("a", { href: `#/run/${this.key}/checkpoints` }, t`Export a checkpoint`);
    return h(
      "p.quiet",
      t`The weights of this step are not exported. `,
      link,
      t`, or set exports in the recipe to have those of every save.`,
    );
  }
}

function figure(file, caption) {
  const shown = file?.url ? media(file.url, file.video, file.prompt) : h("div.gone", t`the file is gone`);
  return h("figure", shown, h("figcaption", caption));
}

function weightsLine({ url, path, bytes: size }) {
  const copy = async () => {
    await navigator.clipboard.writeText(path);
    toast(t`the path is copied`);
  };
  return h(
    "p.row",
    h("a.as-button", { href: url, download: "" }, t`Use this one`),
    h("code", path),
    h("span.quiet", bytes(size)),
    h("button.small", { type: "button", onclick: copy }, t`Copy the path`),
  );
}
