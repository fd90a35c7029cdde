// A recipe as a form and as text: each changes the other, and the server says what is wrong.

import { ask, button, explain, toast } from "../dialogs.js";
import { Draft, watchRecipe } from "../drafts.js";
import { fill, h } from "../elements.js";
import { canChange, get, Problem, post } from "../server.js";
import { t } from "../texts.js";
import { newest, throttle } from "../timing.js";
import { train } from "../training.js";
import { KeyList } from "./keys.js";
import { saveAs } from "./save_as.js";

export async function renderForm(main, key, signal) {
  const [sections, about] = await Promise.all([get("/new/form", signal), get(`/new/recipe/${key}`, signal)]);
  return new RecipeForm(main, key, signal, sections, about).build();
}

class RecipeForm {
  constructor(main, key, signal, sections, about) {
    Object.assign(this, { main, key, signal, about, known: about.digest, saved: about.text });
    this.changes = []; // of the form, which the text does not have yet
    this.next = newest(signal);
    this.kept = new Draft(async () => this.show(await get(`/new/recipe/${key}`, signal)));
    this.keys = new KeyList(sections, about.values || {}, change => this.change(change));
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
    const check = throttle(350, () => this.draft().catch(explain));
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
        this.isNew ? this.kept.tellOutdated() : this.show(found);
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
    this.next();
    Object.assign(this, { about, saved: about.text, changes: [] });
    this.take(about);
  }

  /** Show a draft again; one of an older file keeps that file's digest, so that it is not saved over a newer one. */
  restore({ text, changes, digest }) {
    this.text.value = text;
    this.changes = changes;
    if (!this.isNew) return this.kept.drop();
    const isOlder = digest !== this.about.digest;
    this.about = { ...this.about, digest };
    this.tell();
    isOlder ? this.kept.tellOutdated() : this.kept.tellRestored();
    this.draft().catch(explain);
  }

  get isNew() {
    return this.text.value !== this.saved || this.changes.length > 0;
  }

  tell() {
    const { about, changes, isNew } = this;
    isNew ? this.kept.keep({ text: this.text.value, changes, digest: about.digest }) : this.kept.drop();
    this.saveButton.disabled = !isNew || !canChange() || this.about.is_of_run;
    this.saveButton.title = this.about.is_of_run
      ? t`what a run was trained with stays as it is: save a new recipe`
      : "";
    this.state.textContent = isNew ? t`not saved` : "";
  }

  /** Make a change of the form in the text; a later one of the same key replaces it, as after a second click. */
  change(change) {
    this.changes = [...this.changes.filter(one => String(one.path) !== String(change.path)), change];
    this.tell();
    this.draft().catch(explain);
  }

  /** Send the text with all changes that it does not have yet; returns the answer, or null if it comes too late. */
  async draft() {
    const signal = this.next();
    const wish = { text: this.text.value, changes: this.changes };
    try {
      const found = await post(`/new/recipe/${this.key}/draft`, wish, signal);
      if (wish.text !== this.text.value) return null; // which was typed since, and is sent in a moment
      if (found.values) this.changes = []; // a text that is no TOML takes them later
      this.take(found);
      return found;
    } catch (error) {
      if (error.name !== "AbortError") throw error;
      this.signal.throwIfAborted();
      return null;
    }
  }

  /** Wait until the text has all changes of the form; one that is wrong is not left out of what is saved or trained. */
  async settle() {
    let found = null;
    while (this.changes.length && !found) found = await this.draft();
    if (found?.problem) throw new Problem(400, found.problem);
  }

  /** Show what the server made of a draft. */
  take(found) {
    if (found.text !== this.text.value) this.write(found.text);
    this.fault(found.problem);
    this.keys.show(found.values, found.problem);
    this.tell();
  }

  /** Show another text, with the cursor where it was. */
  write(text) {
    const { value, selectionStart: at } = this.text;
    this.text.value = text;
    const place = text.startsWith(value.slice(0, at)) ? at : text.length - (value.length - at);
    if (document.activeElement === this.text) this.text.setSelectionRange(place, place);
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
    await this.settle();
    const text = this.text.value;
    const told = await post(`/new/recipe/${this.key}/save`, { text, digest: this.about.digest });
    toast(t`saved in ${told.path}`);
    const found = await get(`/new/recipe/${this.key}`, this.signal);
    this.known = found.digest;
    this.kept.drop();
    if (this.text.value === text && !this.changes.length) return this.show(found);
    Object.assign(this, { about: found, saved: found.text }); // what was typed meanwhile is a draft of the new file
    this.tell();
  }

  async saveAs() {
    await this.settle();
    const wish = () => ({ text: this.text.value, digest: this.about.digest });
    const key = await saveAs(`/new/recipe/${this.key}/save`, this.about.name, wish);
    if (!key) return;
    this.kept.drop();
    location.hash = `#/new/${key}`;
  }

  async train() {
    await this.settle();
    if (this.isNew) {
      const question = h("p", t`The recipe has changes that are not saved.`);
      if (!(await ask(t`Save and train?`, question, t`Save and train`))) return;
      await this.save();
    }
    await train(this.key, this.about.run, this.signal);
  }
}
