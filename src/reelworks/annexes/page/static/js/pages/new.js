// A first LoRA from footage, a model and a trigger word; and any recipe as form and text.

import { button } from "../dialogs.js";
import { Draft } from "../drafts.js";
import { badge, card, fill, h } from "../elements.js";
import { isOpen, scanLine, stopButton, watchJob } from "../jobs.js";
import { Footage } from "../new/footage.js";
import { ImportCard } from "../new/import.js";
import { ModelChoice } from "../new/models.js";
import { resultCard } from "../new/result.js";
import { renderForm } from "../recipe/form.js";
import { canChange, get, post } from "../server.js";
import { t } from "../texts.js";
import { train } from "../training.js";
import { duration } from "../units.js";

export const title = t`New`;

const TEXTS = ["trigger", "name", "vram", "weights"];
const FIELDS = { vram_gb: "--vram", trigger: "--trigger", weights: "--weights" };
const TRIGGER_NOTE = [
  t`A rare word that calls what is learnt. It is put before every caption, and is the caption of files without one; `,
  t`leave it empty if the captions say it.`,
];

export async function render(main, [key], signal) {
  return key ? renderForm(main, key, signal) : new NewLora(main, signal).open();
}

class NewLora {
  constructor(main, signal) {
    Object.assign(this, { main, signal, isNamed: false });
    this.kept = new Draft(() => {
      this.isNamed = false;
      return this.open();
    });
  }

  async open() {
    const [models, folders] = await Promise.all([get("/new/models", this.signal), get("/new/folders", this.signal)]);
    const former = this.kept.found;
    this.footage = new Footage(folders, former?.folder, this.signal, () => this.tell());
    this.models = new ModelChoice(models, this.footage, this.signal, () => this.tell());
    this.result = h("div", { "aria-live": "polite" });
    this.problems = h("p.error", { role: "alert" });
    this.makeInputs();
    this.go = button(t`Make the recipe`, () => this.make(), { kind: "main" });
    const steps = h("div.new-steps", this.stepCards());
    const head = h("div.page-head", h("h1", t`New LoRA`), h("span.gap"), h("a", { href: "#/plan" }, t`Recipes`));
    const go = h("div.new-go", this.problems, this.go);
    const moved = new ImportCard(this.footage, this.signal, about => train(about.key, about.run, this.signal));
    fill(this.main, head, this.kept.box, steps, go, this.result, moved.element);
    this.models.chooseNamed(former?.model);
    if (former) this.restore(former);
    for (const kind of ["input", "change"]) steps.addEventListener(kind, () => this.keep());
    this.tell();
  }

  makeInputs() {
    const text = (maxlength, more) => h("input", { type: "text", maxlength, ...more });
    this.name = text(100, {
      "data-field": "name",
      oninput: () => {
        this.isNamed = true;
      },
    });
    this.trigger = text(200, {
      placeholder: "ohwx cat",
      "data-field": "--trigger",
      "aria-describedby": "trigger-note",
    });
    this.weights = text(1000, { placeholder: t`the published ones`, "data-field": "--weights" });
    this.vram = h("input", {
      type: "number",
      min: 1,
      max: 100000,
      step: "any",
      placeholder: t`this machine's`,
      "data-field": "--vram",
    });
  }

  stepCards() {
    const heading = (number, text) => h("h2", h("span.new-number", number), text);
    const label = (text, input) => h("label", h("span", text), input);
    const more = [
      label(t`Name of the recipe`, this.name),
      label(t`GPU memory, GB`, this.vram),
      label(t`Other weights`, this.weights),
    ];
    return [
      card(heading("1", t`Footage`), this.footage.element),
      card(heading("2", t`Model`), this.models.element),
      card(
        heading("3", t`Trigger word`),
        h("label.new-field", h("span.hidden", t`Trigger word`), this.trigger),
        h("p.quiet", { id: "trigger-note" }, TRIGGER_NOTE),
        h("details.new-more", h("summary", t`More`), h("div.fields", more)),
      ),
    ];
  }

  keep() {
    const texts = Object.fromEntries(TEXTS.map(name => [name, this[name].value]));
    const {
      footage: { folder },
      models: { model, companions },
    } = this;
    this.kept.keep({ folder: folder?.key, model: model?.name, named: this.isNamed, texts, companions });
  }

  restore({ named, texts, companions }) {
    this.models.restore(companions);
    for (const name of TEXTS) this[name].value = texts[name];
    this.isNamed = named;
    this.kept.tellRestored();
  }

  tell() {
    const { folder } = this.footage;
    const { model } = this.models;
    const lacking = [!folder && t`footage`, !model && t`a model`].filter(Boolean);
    this.go.disabled = !canChange() || lacking.length > 0;
    this.go.title = lacking.length ? t`choose ${lacking.join(t` and `)} first` : "";
    if (this.isNamed || lacking.length) return;
    const name = folder.path
      .split("/")
      .pop()
      .replace(/[^\w.+-]+/g, "-")
      .replace(/^[^a-z0-9]+/i, "");
    this.name.value = `${name || "lora"}-${model.name}`;
  }

  // The recipe, and what it will take.
  async make(overwrite = false) {
    this.fault(null);
    const { folder } = this.footage;
    const { model, companions } = this.models;
    const chosen = Object.fromEntries(Object.entries(companions).filter(([, key]) => key));
    const texts = { trigger: this.trigger.value.trim(), weights: this.weights.value.trim(), name: this.name.value };
    const vram = this.vram.value ? this.vram.valueAsNumber : null;
    try {
      this.follow(
        await post("/new/lora", {
          folder: folder.key,
          model: model.name,
          ...texts,
          overwrite,
          vram_gb: vram,
          companions: chosen,
        }),
      );
    } catch (error) {
      this.fault(error);
      if (error.code === "file-exists") this.offerOverwrite(error.value);
    }
  }

  offerOverwrite(path) {
    const again = button(t`Overwrite it`, () => this.make(true), { kind: "small" });
    fill(
      this.result,
      h(
        "p.new-again",
        t`${path} exists already. `,
        again,
        " ",
        h("span.quiet", t`or give the recipe another name under More`),
      ),
    );
  }

  fault(error) {
    for (const input of this.main.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
    this.problems.textContent = error ? `${error.message}${error.remedy ? `: ${error.remedy}` : ""}` : "";
    if (!error) return;
    const field = FIELDS[error.field] || error.field || "";
    const input = this.main.querySelector(`[data-field="${CSS.escape(field)}"]`);
    input?.setAttribute("aria-invalid", "true");
    const more = input?.closest("details");
    if (more) more.open = true;
  }

  follow(job) {
    const said = h("span");
    const began = Date.now();
    const { model } = this.models;
    fill(this.result, card(h("span.row", { role: "status" }, badge("", "busy"), said, stopButton(job.id, t`Cancel`))));
    watchJob(job.id, this.signal, found => {
      const text = t`Reading the footage, and computing the memory that ${model.name} takes, without its weights`;
      said.textContent = scanLine(found) || `${text}: ${duration((Date.now() - began) / 1000)}`;
      if (isOpen(found)) return;
      return found.result && found.state === "done" ? this.show(found) : this.tellFailure(found);
    });
  }

  tellFailure({ id, error }) {
    const [message, ...rest] = (error || t`it was stopped`).replace(/^error: /, "").split("\n");
    const field = /(--\w+)/.exec(message)?.[1];
    fill(this.result);
    this.fault({ message, remedy: rest.join(" ").replace(/^\s*remedy: /, ""), field });
    this.problems.append(" ", h("a", { href: `#/jobs/${id}` }, t`what it printed`));
  }

  async show(job) {
    this.kept.drop();
    const about = await get(`/new/recipe/${job.subject}`, this.signal);
    fill(
      this.result,
      resultCard(job.result, about, () => train(about.key, about.run, this.signal)),
    );
    const behavior = matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth";
    this.result.scrollIntoView({ behavior, block: "nearest" });
  }
}
