// A recipe as a form and as text: each changes the other, and the server says what is wrong.

import { ask, button, explain, toast } from "../dialogs.js";
import { Draft, watchRecipe } from "../drafts.js";
import { fill, h } from "../elements.js";
import { canChange, get, post } from "../server.js";
import { t } from "../texts.js";
import { throttle } from "../timing.js";
import { train } from "../training.js";
import { KeyList } from "./keys.js";
import { saveAs } from "./save_as.js";

export async function renderForm(main, key, signal) {
  const [sections, about] = await Promise.all([get("/new/form", signal), get(`/new/recipe/${key}`, signal)]);
  return new RecipeForm(main, key, signal, sections, about).build();
}

class RecipeForm {
  constructor(main, key, signal, sections, about) {
    Object.assign(this, { main, key, signal, about, known: about.digest, saved: about.text, number: 0 });
    this.kept = new Draft(async () => this.show(await get(`/new/recipe/${key}`, signal)));
    this.keys = new KeyList(sections, about.values || {}, change =>
      this.draft({ text: this.text.value, changes: [change] }),
    );
  }

  build() {
    const { about } = this;
    const attributes = {
      spellcheck: "false",
      "aria-label": t`The recipe as TOML`,
      value: about.text,
      readonly: !canChange(),
    };
    this.text = h("textarea.form-text", attributes);
    this.problem = h("div", { role: "alert" });
    const check = throttle(350, () => this.draft({ text: this.text.value }));
    this.text.addEventListener("input", () => {
      this.tell();
      check();
    });
    const keys = h("section.card", { "aria-label": t`Keys` }, this.keys.search, this.keys.element);
    fill(
      this.main,
      this.head(),
      this.kept.box,
      this.problem,
      h("div.form-both", keys, h("section.card.form-side", this.text)),
    );
    const former = this.kept.found;
    this.take(about);
    if (former) this.restore(former);
    watchRecipe(
      this.key,
      this.signal,
      () => this.known,
      found => {
        this.known = found.digest;
        this.text.value === this.saved ? this.show(found) : this.kept.tellOutdated();
      },
    );
  }

  head() {
    const { about, key } = this;
    this.state = h("span.quiet", { role: "status" });
    this.saveButton = button(t`Save`, () => this.save(), { kind: "main" });
    const links = [h("a", { href: `#/data/${key}` }, t`Data`), h("a", { href: `#/plan/${key}` }, t`Plan`)];
    const training = about.is_of_run ? null : button(t`Train`, () => this.train());
    return h(
      "div.page-head.plan-head",
      h("div", h("h1", about.name), h("div.quiet", about.path)),
      h("span.gap"),
      this.state,
      links,
      training,
      button(t`Save as …`, () => this.saveAs()),
      this.saveButton,
    );
  }

  /** Show the recipe as its file is; answers about an earlier text come too late. */
  show(about) {
    this.number++;
    this.about = about;
    this.saved = about.text;
    this.take(about, true);
  }

  /** Show a draft again; one of an older file keeps that file's digest, so that it is not saved over a newer one. */
  restore({ text, digest }) {
    if (text === this.saved) return this.kept.drop();
    this.text.value = text;
    const isOlder = digest !== this.about.digest;
    this.about = { ...this.about, digest };
    this.tell();
    isOlder ? this.kept.tellOutdated() : this.kept.tellRestored();
    this.draft({ text });
  }

  tell() {
    const isNew = this.text.value !== this.saved;
    isNew ? this.kept.keep({ text: this.text.value, digest: this.about.digest }) : this.kept.drop();
    this.saveButton.disabled = !isNew || !canChange() || this.about.is_of_run;
    this.saveButton.title = this.about.is_of_run
      ? t`what a run was trained with stays as it is: save a new recipe`
      : "";
    this.state.textContent = isNew ? t`not saved` : "";
  }

  /** Send text and changes; answers of an earlier request are left out. */
  async draft(wish) {
    const number = ++this.number;
    this.asked?.abort();
    this.asked = new AbortController();
    try {
      const found = await post(`/new/recipe/${this.key}/draft`, wish, this.asked.signal);
      if (number === this.number && !this.signal.aborted) this.take(found, Boolean(wish.changes));
    } catch (error) {
      explain(error);
    }
  }

  /** Show what the server made of a draft; text that is being typed stays, unless the form has changed it. */
  take(found, isForm = false) {
    if (found.text !== this.text.value && (isForm || document.activeElement !== this.text))
      this.text.value = found.text;
    this.fault(found.problem);
    this.keys.show(found.values, found.problem);
    this.tell();
  }

  fault(problem) {
    const value = problem?.value ? ` = ${problem.value}` : "";
    fill(
      this.problem,
      problem
        ? h("p.error.card", h("b", problem.field || ""), `${value}: ${problem.problem}\n${problem.remedy}`)
        : null,
    );
    this.text.toggleAttribute("aria-invalid", problem?.field === "text");
  }

  async save() {
    const text = this.text.value;
    const told = await post(`/new/recipe/${this.key}/save`, { text, digest: this.about.digest });
    toast(t`saved in ${told.path}`);
    const found = await get(`/new/recipe/${this.key}`, this.signal);
    this.known = found.digest;
    this.kept.drop();
    if (this.text.value === text) return this.show(found);
    Object.assign(this, { about: found, saved: found.text }); // what was typed meanwhile is a draft of the new file
    this.tell();
  }

  async saveAs() {
    const wish = () => ({ text: this.text.value, digest: this.about.digest });
    const key = await saveAs(`/new/recipe/${this.key}/save`, this.about.name, wish);
    if (!key) return;
    this.kept.drop();
    location.hash = `#/new/${key}`;
  }

  async train() {
    if (this.text.value !== this.saved) {
      const question = h("p", t`The recipe has changes that are not saved.`);
      if (!(await ask(t`Save and train?`, question, t`Save and train`))) return;
      await this.save();
    }
    await train(this.key, this.about.run, this.signal);
  }
}
