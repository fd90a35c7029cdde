// The plan of one recipe: its settings, and what they give.

import { button, toast } from "../dialogs.js";
import { Draft, watchRecipe } from "../drafts.js";
import { card, fill, h } from "../elements.js";
import { saveAs } from "../recipe/save_as.js";
import { canChange, get, post } from "../server.js";
import { t } from "../texts.js";
import { throttle } from "../timing.js";
import { drawAdvice } from "./advice.js";
import { BucketMap } from "./bucket_map.js";
import { MemoryCheck } from "./memory_check.js";
import { drawFacts, drawShares, drawUntrained } from "./outcome.js";
import { offerScan } from "./scan.js";
import { settingsLine } from "./settings.js";

const FIELDS = {
  "parallel.sequence_degree": "world",
  "train.micro_batches_per_step": "micro_batches_per_step",
  "train.gradient_accumulation_steps": "gradient_accumulation_steps",
};

export class PlanPage {
  constructor(main, key, signal) {
    Object.assign(this, { main, key, signal, asked: null, advised: null, before: null, plan: null });
    this.move = throttle(60, () => this.compute());
    this.kept = new Draft(() => this.load());
    this.stage = this.kept.found?.now.stage ?? 0;
    signal.addEventListener("abort", () => this.rest());
  }

  async open() {
    await this.load();
    watchRecipe(
      this.key,
      this.signal,
      () => this.known,
      async found => {
        this.known = found.digest;
        this.isMoved ? this.kept.tellOutdated() : await this.load();
      },
    );
  }

  /** Return what the recipe's file says of the stage that is shown; `null` if another was chosen meanwhile. */
  async read() {
    const { stage } = this;
    const about = await get(`/plan/${this.key}?stage=${stage}`, this.signal);
    return stage === this.stage ? about : null;
  }

  async load() {
    const about = await this.read();
    if (!about) return;
    this.about = about;
    this.known = this.about.digest;
    if (!this.about.scanned) return offerScan(this.main, this.about, this.signal, () => this.load());
    this.saved = this.about.controls;
    this.now = structuredClone(this.saved);
    this.before = null;
    const former = this.kept.found;
    // Controls of an older file fit if it has as many; its digest keeps them from being saved over the newer one.
    const fits = former?.now.stage === this.now.stage && former.now.batch_sizes.length === this.now.batch_sizes.length;
    if (fits) {
      this.now = former.now;
      former.digest === this.known ? this.kept.tellRestored() : this.kept.tellOutdated();
      this.about.digest = former.digest;
    }
    this.build();
    await this.compute();
  }

  build() {
    const { about } = this;
    this.refresh = [];
    this.facts = h("dl.facts.plan-facts");
    this.problem = h("p.error", { role: "alert" });
    const settings = settingsLine(this);
    this.map = new BucketMap(this);
    this.advice = h("div", { "aria-live": "polite" });
    this.shares = h("div");
    this.untrained = h("div");
    const chosen = t`The entries are chosen from the footage; saving other numbers writes them into the recipe.`;
    fill(
      this.main,
      this.head(),
      this.kept.box,
      this.facts,
      h(
        "section.card.plan-controls",
        { "aria-label": t`Settings` },
        settings,
        this.problem,
        this.map.element,
        about.chosen ? h("p.quiet", chosen) : null,
      ),
      this.advice,
      h(
        "div.two.plan-two",
        card(h("h2", t`Shares of the training`), this.shares),
        card(h("h2", t`Clips that this epoch does not train`), this.untrained),
      ),
      card(h("h2", t`Memory and time`), new MemoryCheck(this).element),
    );
  }

  head() {
    const { about } = this;
    this.saveButton = button(t`Save`, () => this.save(), { kind: "main" });
    this.resetButton = h("button", { type: "button", onclick: () => this.set(structuredClone(this.saved)) }, t`Reset`);
    return h(
      "div.page-head.plan-head",
      h("div", h("h1", about.name), h("div.quiet", `${about.path} · ${about.model}`)),
      about.stages.length ? this.stageChoice() : null,
      h("span.gap"),
      this.resetButton,
      button(t`Save as recipe …`, () => this.saveAs()),
      this.saveButton,
    );
  }

  /** Choose the stage whose plan is shown; what was moved in another one is dropped, as by a reset. */
  stageChoice() {
    const { stage } = this.saved;
    const options = this.about.stages.map((name, i) => h("option", { value: i, selected: i === stage }, name));
    const onchange = event => {
      this.kept.drop();
      this.stage = event.target.selectedIndex;
      this.load();
    };
    return h("label", t`Stage`, " ", h("select", { onchange }, options));
  }

  update() {
    for (const call of this.refresh) call();
    this.tell();
    this.move();
  }

  set(controls) {
    this.now = controls;
    this.update();
  }

  get isMoved() {
    return JSON.stringify({ ...this.now, world: 0 }) !== JSON.stringify({ ...this.saved, world: 0 });
  }

  tell() {
    const isSaved = JSON.stringify(this.now) === JSON.stringify(this.saved);
    isSaved ? this.kept.drop() : this.kept.keep({ now: this.now, digest: this.about.digest });
    this.saveButton.disabled = !this.isMoved || !canChange() || this.about.is_of_run;
    this.saveButton.title = this.about.is_of_run
      ? t`what a run was trained with stays as it is: save a new recipe`
      : "";
    this.resetButton.disabled = isSaved;
  }

  /** Forget what was asked for and has not come. */
  rest() {
    this.asked?.abort();
    this.advised?.abort();
    clearTimeout(this.resting);
  }

  async compute() {
    for (const call of this.refresh) call();
    this.tell();
    this.rest();
    const asked = new AbortController();
    this.asked = asked;
    const controls = encodeURIComponent(JSON.stringify(this.now));
    this.main.classList.add("busy");
    try {
      const plan = await get(`/plan/${this.key}/outline?controls=${controls}`, asked.signal);
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
    for (const input of this.map.element.querySelectorAll("input:invalid")) input.setAttribute("aria-invalid", "true");
    const field = CSS.escape(FIELDS[error.field] || error.field || "");
    const text = `${error.message}${error.remedy ? `: ${error.remedy}` : ""}`;
    this.main.querySelector(`[data-field="${field}"]`)?.setAttribute("aria-invalid", "true");
    const place = this.main.querySelector(`[data-error="${field}"]`);
    if (place) place.textContent = text;
    else this.problem.textContent = `${error.field ? `${error.field}: ` : ""}${text}`;
  }

  draw() {
    const { about, plan, before } = this;
    drawFacts(this.facts, plan, before);
    this.map.draw(plan, before);
    drawShares(this.shares, about, plan, before);
    drawUntrained(this.untrained, about, plan, before, () => {
      const controls = encodeURIComponent(JSON.stringify(this.now));
      return get(`/plan/${this.key}/reasons?controls=${controls}`, this.signal);
    });
  }

  async advise(controls) {
    this.advised = new AbortController();
    try {
      const found = await get(`/plan/${this.key}/advice?controls=${controls}`, this.advised.signal);
      if (!this.signal.aborted && !this.advised.signal.aborted) drawAdvice(this.advice, found, this);
    } catch (error) {
      if (error.name !== "AbortError") console.warn(error);
    }
  }

  async save() {
    const controls = structuredClone(this.now);
    const told = await post(`/plan/${this.key}/save`, { controls, digest: this.about.digest });
    toast(t`saved in ${told.path}`);
    const about = await this.read();
    if (!about) return;
    this.about = about;
    this.known = about.digest;
    this.saved = about.controls;
    const isMoved = JSON.stringify(this.now) !== JSON.stringify(controls); // meanwhile
    if (!isMoved) this.now = { ...structuredClone(this.saved), world: controls.world };
    this.before = null;
    this.kept.drop();
    this.update();
  }

  async saveAs() {
    const wish = () => ({ controls: this.now, digest: this.about.digest });
    const key = await saveAs(`/plan/${this.key}/save`, this.about.name, wish);
    if (!key) return;
    this.kept.drop();
    location.hash = `#/plan/${key}`;
  }
}
