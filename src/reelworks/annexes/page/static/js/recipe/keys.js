// The keys of a recipe by section: those that it sets, and those that have their defaults.

import { button } from "../dialogs.js";
import { fill, h } from "../elements.js";
import { canChange } from "../server.js";
import { t } from "../texts.js";
import { initialValue, toml, valueInput } from "./values.js";

const FIRST = { dataset: 'path = "footage"', bucket: 'resolution = "512px", num_frames = 1' }; // of an added table

export class KeyList {
  /** @param onChange takes a change: {path, value}, {path, toml} or {path, remove} */
  constructor(sections, values, onChange) {
    Object.assign(this, { sections, values, onChange, problem: null });
    this.element = h("div.form-keys");
    this.search = h("input", {
      type: "search",
      placeholder: t`Search all keys …`,
      "aria-label": t`Search keys of the recipe`,
      oninput: () => this.draw(),
    });
  }

  /** Show other values and what is wrong with them; texts that cannot be read have no values. */
  show(values, problem) {
    if (values) this.values = values;
    this.problem = problem;
    this.wrong = problem?.field ? problem.field.replace(/\.\d+(?=\.)/g, "") : null;
    this.draw();
  }

  change(path, value) {
    if (value === undefined) return this.onChange({ path, remove: true });
    this.onChange(typeof value === "object" ? { path, toml: value.toml } : { path, value });
  }

  draw() {
    const focused = document.activeElement?.closest?.(".form-keys [data-path]")?.dataset.path;
    const place = this.shown().indexOf(document.activeElement);
    const caret = document.activeElement?.selectionStart;
    this.open = new Set([...this.element.querySelectorAll("details[open]")].map(one => one.dataset.key));
    this.words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    fill(
      this.element,
      this.sections.flatMap(section => this.tables(section).map(one => this.table(section, one))),
    );
    if (this.words.length && !this.element.children.length)
      fill(this.element, h("p.quiet", t`No key has these words.`));
    if (focused) this.focus(focused, place, caret);
  }

  /** What can be focused, fields and buttons. */
  shown() {
    return [...this.element.querySelectorAll("[data-path]")].filter(one => one.checkVisibility());
  }

  /** Focus what is of a path; if that is gone, its key, and else what has come into its place. */
  focus(path, place, caret) {
    const shown = this.shown();
    const [key] = path.split(":");
    const named = [path, key, `${key}:set`].map(name => shown.find(one => one.dataset.path === name)).find(Boolean);
    const input = named || shown[Math.max(0, place - 1)];
    input?.focus({ preventScroll: true });
    const hasCaret = caret !== null && caret !== undefined && ["text", "search"].includes(input?.type);
    if (hasCaret) input.setSelectionRange(caret, caret);
  }

  /** The tables of a section in the recipe; of a repeated one, the last is the table that may be added. */
  tables(section) {
    const path = section.key ? section.key.split(".") : [];
    let node = this.values;
    for (const part of path) node = node?.[part];
    if (section.repeated) {
      const rows = Array.isArray(node) ? node : [];
      const written = rows.map((values, i) => ({ path: [...path, i], values, isWritten: true }));
      return [...written, { path: [...path, rows.length], values: {}, isWritten: false }];
    }
    if (typeof node === "string")
      return [{ path, values: section.key === "buckets" ? { entries: node } : {}, isWritten: true }];
    return [{ path, values: node || {}, isWritten: node !== undefined }];
  }

  table(section, { path, values, isWritten }) {
    const isSearch = this.words.length > 0;
    const fields = section.fields.filter(field => this.matches(section, field));
    const set = fields.filter(field => field.key in values);
    const more = fields.filter(field => !(field.key in values));
    if (section.repeated && !isWritten) return isSearch && !more.length ? null : this.addButton(section, path);
    if (!set.length && (!isSearch || !more.length))
      return isWritten || isSearch ? null : this.emptyTable(section, path, more);
    return h(
      "fieldset.form-section",
      h("legend", heading(section), section.repeated ? h("span.quiet", ` ${path.at(-1) + 1}`) : null),
      section.about && !section.repeated ? h("p.quiet", section.about) : null,
      section.repeated ? this.button(t`Remove`, [path, "remove"], () => this.change(path)) : null,
      set.map(field => this.field(section, field, [...path, field.key], values[field.key])),
      this.unsetFields(more, path, isSearch),
    );
  }

  matches(section, field) {
    const text = `${section.key}.${field.key} ${field.about}`.toLowerCase();
    return this.words.every(word => text.includes(word));
  }

  addButton(section, path) {
    const add = () => this.change(path, { toml: `{ ${FIRST[section.key]} }` });
    return h("p.form-add", this.button(t`Add ${heading(section)}`, [path, "add"], add));
  }

  button(text, [path, name], action) {
    const made = button(text, action, { kind: "small" });
    made.dataset.path = `${path.join(".")}:${name}`;
    return made;
  }

  emptyTable(section, path, fields) {
    const key = path.join(".");
    const summary = h("summary", heading(section), h("span.quiet", section.about));
    return h(
      "details.form-more.form-empty",
      { "data-key": key, open: this.open.has(key) },
      summary,
      fields.map(field => this.unset(field, path)),
    );
  }

  unsetFields(fields, path, isSearch) {
    const rows = fields.map(field => this.unset(field, path));
    if (!fields.length || isSearch) return rows;
    const key = path.join(".");
    const summary = h("summary", h("span.quiet", t`${fields.length} more keys, with their defaults`));
    return h("details.form-more", { "data-key": key, open: this.open.has(key) }, summary, rows);
  }

  field(section, field, path, value) {
    const id = `key-${path.join("-")}`;
    const input = valueInput(field, value, now => this.change(path, now));
    const place = [section.key, field.key].filter(Boolean).join(".");
    input.id = id;
    input.dataset.path = path.join(".");
    const isWrong = this.wrong && [place, path.filter(part => typeof part === "string").join(".")].includes(this.wrong);
    if (isWrong) input.setAttribute("aria-invalid", "true");
    if (!canChange()) input.disabled = true;
    const clear = {
      type: "button",
      "aria-label": t`Remove ${place}`,
      title: t`back to the default`,
      disabled: !canChange(),
      "data-path": `${path.join(".")}:clear`,
      onclick: () => this.change(path),
    };
    return h(
      "div.form-field",
      h("label", { for: id, title: field.about }, field.key),
      input,
      field.required ? h("span") : h("button.small.form-clear", clear, "×"),
      isWrong ? h("p.error", `${this.problem.problem}: ${this.problem.remedy}`) : fieldNote(field),
    );
  }

  unset(field, path) {
    const shown = field.default === null ? "–" : toml(field.default);
    const full = [...path, field.key];
    return h(
      "div.form-field.form-unset",
      h("span", field.key),
      h("span.quiet.form-default", shown),
      this.button(t`Set`, [full, "set"], () => this.change(full, initialValue(field))),
      fieldNote(field),
    );
  }
}

function heading({ key, repeated }) {
  if (!key) return t`Top of the file`;
  return repeated ? `[[${key}]]` : `[${key}]`;
}

const fieldNote = ({ about, bounds }) => h("p.quiet", about, bounds ? ` (${bounds})` : "");
