// Values of recipes: the input in which one is changed, and how TOML writes it.

import { h } from "../elements.js";

const TYPES = { truth: "boolean", whole: "number", number: "number", text: "string" };
const INITIAL = { truth: true, whole: 1, number: 1, text: "" };

/** The input for a value of a field; `change` takes the new value, or { toml } if it is written as TOML. */
export function valueInput(field, value, change) {
  if (field.kind === "choice") return choiceInput(field, value, change);
  if (TYPES[field.kind] !== typeof value)
    return h("input.form-toml", {
      type: "text",
      value: toml(value),
      onchange: event => change({ toml: event.target.value }),
    });
  if (field.kind === "truth")
    return h("input", { type: "checkbox", checked: value, onchange: event => change(event.target.checked) });
  if (field.kind === "text") return h("input", { type: "text", value, onchange: event => change(event.target.value) });
  const onchange = event => {
    if (!Number.isNaN(event.target.valueAsNumber)) change(event.target.valueAsNumber);
  };
  return h("input", { type: "number", step: field.kind === "whole" ? 1 : "any", value, onchange });
}

function choiceInput(field, value, change) {
  const choices = field.choices.includes(value) ? field.choices : [...field.choices, value];
  const options = choices.map(one => h("option", { selected: one === value }, String(one)));
  return h("select", { onchange: event => change(choices[event.target.selectedIndex]) }, options);
}

/** The value with which a key is set for the first time. */
export function initialValue(field) {
  if (field.default === null) return INITIAL[field.kind] ?? field.choices[0] ?? { toml: "[]" };
  return typeof field.default === "object" ? { toml: toml(field.default) } : field.default;
}

/** A value as TOML writes it on one line. */
export function toml(value) {
  if (Array.isArray(value)) return `[${value.map(toml).join(", ")}]`;
  if (!value || typeof value !== "object") return JSON.stringify(value);
  const name = key => (/^[\w-]+$/.test(key) ? key : JSON.stringify(key));
  const pairs = Object.entries(value).filter(([, one]) => one !== null);
  return `{ ${pairs.map(([key, one]) => `${name(key)} = ${toml(one)}`).join(", ")} }`;
}
