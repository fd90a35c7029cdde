// The settings of a plan that hold for all of its buckets.

import { h } from "../elements.js";
import { t } from "../texts.js";

const WAYS = [
  ["partial", t`train them smaller`],
  ["merge", t`merge into smaller buckets`],
  ["repeat", t`fill with repeats`],
  ["pad", t`pad with copies`],
];

export const wayText = way => WAYS.find(([name]) => name === way)?.[1];

/** The settings in one line; each shows itself again when one of `page.refresh` is called. */
export function settingsLine(page) {
  return h("div.plan-general", gpus(page), stepSize(page), incompleteBatches(page));
}

const gpus = page =>
  numberField(page, t`GPUs`, "world", {
    min: page.about.degree,
    max: 4096,
    step: page.about.degree,
    note: t`set when training starts`,
  });

const stepSize = page =>
  page.now.micro_batches_per_step === null
    ? numberField(page, t`Gradient accumulation`, "gradient_accumulation_steps", {
        max: 4096,
        note: t`micro-batches per GPU and step`,
      })
    : numberField(page, t`Micro-batches per step`, "micro_batches_per_step", { max: 65536, note: t`over all GPUs` });

function incompleteBatches(page) {
  const onchange = event => {
    page.now.incomplete_batch = event.target.value;
    page.move();
  };
  const ways = h(
    "select",
    { onchange },
    WAYS.map(([way, text]) => h("option", { value: way }, text)),
  );
  const field = h("label.plan-field", h("span", t`Incomplete batches`), ways, h("small.quiet", "incomplete_batch"));
  page.refresh.push(() => {
    ways.value = page.now.incomplete_batch;
    field.classList.toggle("moved", page.now.incomplete_batch !== page.saved.incomplete_batch);
  });
  return field;
}

/** A number with a slider that doubles: both set the same value. */
function numberField(page, label, field, { min = 1, max, step = 1, note }) {
  const box = h("input", { type: "number", min, max, step, "data-field": field });
  const slider = h("input", {
    type: "range",
    min: 0,
    max: Math.log2(max / min),
    step: 1,
    "aria-label": label,
    tabindex: -1,
  });
  const take = value => {
    if (!Number.isInteger(value) || value < min) return;
    page.now[field] = value;
    page.update();
  };
  box.addEventListener("input", () => take(box.valueAsNumber));
  slider.addEventListener("input", () => take(min * 2 ** slider.valueAsNumber));
  const outer = h(
    "label.plan-field",
    h("span", label),
    h("span.plan-number", box, slider),
    h("small.quiet", note),
    h("small.error", { "data-error": field }),
  );
  page.refresh.push(() => {
    const value = page.now[field];
    if (box.valueAsNumber !== value) box.value = value;
    slider.value = Math.log2(value / min);
    outer.classList.toggle("moved", value !== (page.saved[field] ?? value));
  });
  return outer;
}
