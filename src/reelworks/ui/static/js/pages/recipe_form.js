// A recipe as a form and as text: each changes the other, and the server says what is wrong.

import { ask, button, explain, toast } from "../dialogs.js";
import { Draft, watchRecipe } from "../drafts.js";
import { fill, h } from "../elements.js";
import { canChange, get, post } from "../server.js";
import { throttled } from "../timing.js";
import { train } from "../training.js";

export async function renderForm(main, key, signal) {
  const [sections, about] = await Promise.all([get("/new/form", signal), get(`/new/recipe/${key}`, signal)]);
  return new RecipeForm(main, key, signal, sections, about).build();
}

class RecipeForm {
  constructor(main, key, signal, sections, about) {
    Object.assign(this, {
      main,
      key,
      signal,
      sections,
      about,
      known: about.digest,
      saved: about.text,
      values: about.values || {},
      number: 0,
    });
    this.kept = new Draft(async () => this.show(await get(`/new/recipe/${key}`, signal)));
  }

  build() {
    const { about } = this;
    this.form = h("div.form-keys");
    this.search = h("input", {
      type: "search",
      placeholder: "Search all keys …",
      "aria-label": "Search keys of the recipe",
    });
    this.text = h("textarea.form-text", {
      spellcheck: "false",
      "aria-label": "The recipe as TOML",
      value: about.text,
      readonly: !canChange(),
    });
    this.problem = h("div", { role: "alert" });
    this.state = h("span.quiet", { role: "status" });
    this.saveButton = button("Save", () => this.save(), { kind: "main" });
    const check = throttled(350, () => this.draft({ text: this.text.value }));
    this.text.addEventListener("input", () => {
      this.tell();
      check();
    });
    this.search.addEventListener("input", () => this.draw());
    fill(
      this.main,
      h(
        "div.page-head.plan-head",
        h("div", h("h1", about.name), h("div.quiet", about.path)),
        h("span.gap"),
        this.state,
        h("a", { href: `#/data/${this.key}` }, "Data"),
        h("a", { href: `#/plan/${this.key}` }, "Plan"),
        about.is_of_run ? null : button("Train", () => this.train()),
        button("Save as …", () => this.saveAs()),
        this.saveButton,
      ),
      this.kept.box,
      this.problem,
      h(
        "div.form-both",
        h("section.card", { "aria-label": "Keys" }, this.search, this.form),
        h("section.card.form-side", this.text),
      ),
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
        this.text.value === this.saved ? this.show(found) : this.kept.outdated();
      },
    );
  }

  /** Show the recipe as its file is. */
  show(about) {
    this.about = about;
    this.saved = about.text;
    this.take(about, true);
  }

  /** Show a draft again; one of an older file keeps that file's digest, with which it is not saved over the newer one. */
  restore({ text, digest }) {
    if (text === this.saved) return this.kept.drop();
    this.text.value = text;
    const isOlder = digest !== this.about.digest;
    this.about = { ...this.about, digest };
    this.tell();
    isOlder ? this.kept.outdated() : this.kept.restored();
    this.draft({ text });
  }

  tell() {
    const isNew = this.text.value !== this.saved;
    isNew ? this.kept.keep({ text: this.text.value, digest: this.about.digest }) : this.kept.drop();
    this.saveButton.disabled = !isNew || !canChange() || this.about.is_of_run;
    this.saveButton.title = this.about.is_of_run ? "what a run was trained with stays as it is: save a new recipe" : "";
    this.state.textContent = isNew ? "not saved" : "";
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

  take(found, isForm = false) {
    if (found.text !== this.text.value && (isForm || document.activeElement !== this.text))
      this.text.value = found.text;
    if (found.values) this.values = found.values;
    this.fault(found.problem);
    this.draw();
    this.tell();
  }

  fault(problem) {
    this.wrong = problem?.field ? problem.field.replace(/\.\d+(?=\.)/g, "") : null;
    fill(
      this.problem,
      problem
        ? h(
            "p.error.card",
            h("b", problem.field || ""),
            problem.value ? ` = ${problem.value}` : "",
            `: ${problem.problem}\n${problem.remedy}`,
          )
        : null,
    );
    this.text.toggleAttribute("aria-invalid", Boolean(problem) && problem.field === "text");
    this.told = problem;
  }

  change(path, value) {
    const one =
      value === undefined
        ? { path, remove: true }
        : typeof value === "object"
          ? { path, toml: value.toml }
          : { path, value };
    this.draft({ text: this.text.value, changes: [one] });
  }

  draw() {
    const focused = document.activeElement?.closest?.(".form-keys [data-path]")?.dataset.path;
    const caret = document.activeElement?.selectionStart;
    const open = new Set([...this.form.querySelectorAll("details[open]")].map(one => one.dataset.key));
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    fill(
      this.form,
      this.sections.flatMap(section =>
        this.tables(section).map(([path, values, isThere]) =>
          this.section(section, path, values, isThere, words, open),
        ),
      ),
    );
    if (words.length && !this.form.children.length) fill(this.form, h("p.quiet", "No key has these words."));
    if (focused) {
      const again = [...this.form.querySelectorAll("[data-path]")].find(one => one.dataset.path === focused);
      again?.focus({ preventScroll: true });
      if (again && caret !== null && caret !== undefined && ["text", "search"].includes(again.type))
        again.setSelectionRange(caret, caret);
    }
  }

  /** The tables of a section in the recipe: [path, values, whether it is written]. */
  tables(section) {
    const path = section.key ? section.key.split(".") : [];
    let node = this.values;
    for (const part of path) node = node?.[part];
    if (section.repeated)
      return [
        ...(Array.isArray(node) ? node : []).map((values, i) => [[...path, i], values, true]),
        [[...path, Array.isArray(node) ? node.length : 0], {}, false],
      ];
    if (typeof node === "string") return [[path, section.key === "buckets" ? { entries: node } : {}, true]];
    return [[path, node || {}, node !== undefined]];
  }

  section(section, path, values, isThere, words, open) {
    const matches = field =>
      words.every(word => `${section.key}.${field.key} ${field.about}`.toLowerCase().includes(word));
    const set = section.fields.filter(field => field.key in values && (!words.length || matches(field)));
    const more = section.fields.filter(field => !(field.key in values) && (!words.length || matches(field)));
    const name = section.key ? (section.repeated ? `[[${section.key}]]` : `[${section.key}]`) : "Top of the file";
    if (section.repeated && !isThere)
      return words.length && !more.length
        ? []
        : h(
            "p.form-add",
            button(`Add ${name}`, () => this.add(section, path), { kind: "small" }),
          );
    if (!set.length && (!words.length || !more.length))
      return isThere || words.length
        ? []
        : h(
            "details.form-more.form-empty",
            { "data-key": path.join("."), open: open.has(path.join(".")) },
            h("summary", name, h("span.quiet", section.about)),
            more.map(field => this.unset(field, path)),
          );
    const key = path.join(".");
    return h(
      "fieldset.form-section",
      h("legend", name, section.repeated ? h("span.quiet", ` ${path.at(-1) + 1}`) : null),
      section.about && !section.repeated ? h("p.quiet", section.about) : null,
      section.repeated ? button("Remove", () => this.change(path, undefined), { kind: "small" }) : null,
      set.map(field => this.field(section, field, [...path, field.key], values[field.key])),
      more.length
        ? words.length
          ? more.map(field => this.unset(field, path))
          : h(
              "details.form-more",
              { "data-key": key, open: open.has(key) },
              h("summary", h("span.quiet", `${more.length} more keys, with their defaults`)),
              more.map(field => this.unset(field, path)),
            )
        : null,
    );
  }

  field(section, field, path, value) {
    const id = `key-${path.join("-")}`;
    const input = this.input(field, path, value);
    const place = [section.key, field.key].filter(Boolean).join(".");
    input.id = id;
    input.dataset.path = path.join(".");
    const isWrong =
      this.wrong && (this.wrong === place || this.wrong === path.filter(part => typeof part === "string").join("."));
    if (isWrong) input.setAttribute("aria-invalid", "true");
    if (!canChange()) input.disabled = true;
    return h(
      "div.form-field",
      h("label", { for: id, title: field.about }, field.key),
      input,
      field.required
        ? h("span")
        : h(
            "button.small.form-clear",
            {
              type: "button",
              "aria-label": `Remove ${place}`,
              title: "back to the default",
              disabled: !canChange(),
              onclick: () => this.change(path, undefined),
            },
            "×",
          ),
      isWrong
        ? h("p.error", `${this.told.problem}: ${this.told.remedy}`)
        : h("p.quiet", field.about, field.bounds ? ` (${field.bounds})` : ""),
    );
  }

  input(field, path, value) {
    const isPlain =
      { truth: "boolean", whole: "number", number: "number", text: "string" }[field.kind] === typeof value;
    if (field.kind === "truth" && isPlain)
      return h("input", {
        type: "checkbox",
        checked: value,
        onchange: event => this.change(path, event.target.checked),
      });
    if (field.kind === "choice") {
      const choices = field.choices.includes(value) ? field.choices : [...field.choices, value];
      return h(
        "select",
        { onchange: event => this.change(path, choices[event.target.selectedIndex]) },
        choices.map(one => h("option", { selected: one === value }, String(one))),
      );
    }
    if (["whole", "number"].includes(field.kind) && isPlain)
      return h("input", {
        type: "number",
        step: field.kind === "whole" ? 1 : "any",
        value,
        onchange: event => {
          if (!Number.isNaN(event.target.valueAsNumber)) this.change(path, event.target.valueAsNumber);
        },
      });
    if (field.kind === "text" && isPlain)
      return h("input", { type: "text", value, onchange: event => this.change(path, event.target.value) });
    return h("input.form-toml", {
      type: "text",
      value: toml(value),
      onchange: event => this.change(path, { toml: event.target.value }),
    });
  }

  unset(field, path) {
    const initial =
      field.default === null
        ? ({ truth: true, whole: 1, number: 1, text: "" }[field.kind] ?? field.choices[0] ?? { toml: "[]" })
        : typeof field.default === "object"
          ? { toml: toml(field.default) }
          : field.default;
    return h(
      "div.form-field.form-unset",
      h("span", field.key),
      h("span.quiet.form-default", field.default === null ? "–" : toml(field.default)),
      button("Set", () => this.change([...path, field.key], initial), { kind: "small" }),
      h("p.quiet", field.about, field.bounds ? ` (${field.bounds})` : ""),
    );
  }

  add(section, path) {
    const first = { dataset: 'path = "footage"', bucket: 'resolution = "512px", num_frames = 1' }[section.key];
    this.change(path, { toml: `{ ${first} }` });
  }

  async save() {
    const told = await post(`/new/recipe/${this.key}/save`, { text: this.text.value, digest: this.about.digest });
    toast(`saved in ${told.path}`);
    const found = await get(`/new/recipe/${this.key}`, this.signal);
    this.known = found.digest;
    this.show(found);
  }

  async saveAs() {
    const name = h("input", { type: "text", value: `${this.about.name}-2`, maxlength: 100 });
    if (
      !(await ask(
        "Save as a new recipe",
        h(
          "div.fields",
          h("label", h("span", "Name"), name),
          h("p.quiet", "Beside this recipe, with a run folder of its own; it uses the same catalog."),
        ),
        "Save",
      ))
    )
      return;
    const wish = { text: this.text.value, digest: this.about.digest, name: name.value };
    let told;
    try {
      told = await post(`/new/recipe/${this.key}/save`, wish);
    } catch (error) {
      if (error.code !== "file-exists") throw error;
      if (!(await ask(`Overwrite ${error.value}?`, h("p", "The recipe of this name is replaced."), "Overwrite")))
        return;
      told = await post(`/new/recipe/${this.key}/save`, { ...wish, overwrite: true });
    }
    this.kept.drop();
    toast(`saved as ${told.path}`);
    location.hash = `#/new/${told.key}`;
  }

  async train() {
    if (this.text.value !== this.saved) {
      if (!(await ask("Save and train?", h("p", "The recipe has changes that are not saved."), "Save and train")))
        return;
      await this.save();
    }
    await train(this.key, this.about.run, this.signal);
  }
}

/** A value as TOML writes it on one line. */
function toml(value) {
  if (Array.isArray(value)) return `[${value.map(toml).join(", ")}]`;
  if (value && typeof value === "object")
    return `{ ${Object.entries(value)
      .filter(([, one]) => one !== null)
      .map(([key, one]) => `${/^[\w-]+$/.test(key) ? key : JSON.stringify(key)} = ${toml(one)}`)
      .join(", ")} }`;
  return JSON.stringify(value);
}
