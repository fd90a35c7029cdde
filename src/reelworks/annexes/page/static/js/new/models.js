// The model of a new recipe, chosen from those that can be trained, and the folders that it needs beside the footage.

import { fill, h, table } from "../elements.js";
import { get } from "../server.js";
import { t } from "../texts.js";
import { bytes, count, duration } from "../units.js";
import { onlyElement } from "./footage.js";

const TINY = t`tiny, with fresh weights, for experiments`;

export class ModelChoice {
  constructor(models, footage, signal, onChange) {
    Object.assign(this, { models, footage, signal, onChange, model: null, selects: {} });
    this.needs = h("div.new-companions");
    this.list = h("div.new-models", { role: "radiogroup", "aria-label": t`Model`, tabindex: "-1" });
    this.search = h("input", {
      type: "search",
      placeholder: "wan, flux, qwen …",
      "aria-label": t`Search models`,
      oninput: () => this.draw(),
    });
    this.sizes = h("div");
    this.element = [this.search, this.list, this.needs, this.sizes];
    this.draw();
  }

  /** Keys of the chosen folders by kind; empty where none is chosen. */
  get companions() {
    return Object.fromEntries(Object.entries(this.selects).map(([kind, select]) => [kind, select.value]));
  }

  restore(companions) {
    for (const [kind, key] of Object.entries(companions)) if (this.selects[kind]) this.selects[kind].value = key;
  }

  draw() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = this.models.filter(model => words.every(word => searchText(model).includes(word)));
    const group = ([family, models]) =>
      h(
        "fieldset",
        h("legend", family),
        models.map(model => this.row(model)),
      );
    const none = h("p.quiet", t`No model of this name can be trained here.`);
    fill(this.list, found.length ? groupByFamily(found).map(group) : none);
  }

  row(model) {
    const radio = h("input", {
      type: "radio",
      name: "model",
      value: model.name,
      checked: this.model === model,
      onchange: () => this.choose(model),
    });
    return h("label.new-model", radio, h("span", model.name), h("span.quiet", factText(model)));
  }

  chooseNamed(name) {
    const model = this.models.find(one => one.name === name);
    if (!model) return;
    this.choose(model);
    this.draw();
  }

  choose(model) {
    this.model = model;
    const { folders, folder } = this.footage;
    const left = onlyElement(folders.filter(one => one !== folder)); // what is not the footage
    const options = () =>
      folders.map(({ key, path }) => h("option", { value: key, selected: key === left?.key }, path));
    const select = kind =>
      h("select", { "data-field": `--${kind}` }, h("option", { value: "" }, t`choose a folder`), options());
    this.selects = Object.fromEntries(model.needs.map(kind => [kind, select(kind)]));
    fill(
      this.needs,
      Object.entries(this.selects).map(([kind, one]) =>
        h("label.new-field", h("span", t`Folder of the ${kind}s, with the names of the footage`), one),
      ),
    );
    this.onChange();
    this.tellSizes(model);
  }

  /** Tell on what GPUs the model can be trained; what comes when another one is chosen is dropped. */
  async tellSizes(model) {
    fill(this.sizes);
    const sizes = await get(`/new/models/${encodeURIComponent(model.name)}/sizes`, this.signal);
    if (this.model !== model || !sizes.length) return;
    const columns = [
      [t`GPU of`, one => `${one.vram_gb} GB`, true],
      [t`takes`, one => bytes(one.bytes), true],
      [t`training steps`, one => count(one.steps), true],
      [t`time`, one => duration(one.seconds), true],
    ];
    const about = t`A LoRA of 20 pictures, by the memory of the GPU; times are estimated for one ${sizes[0].gpu}.`;
    fill(this.sizes, table(about, columns, sizes), h("p.quiet", about));
  }
}

function searchText({ name, family, weights, also, lines }) {
  return [name, family, weights || "", ...also, lines ? "video clips" : "pictures images"].join(" ").toLowerCase();
}

/** [family, models] of each family; the tiny models come last. */
function groupByFamily(models) {
  const groups = new Map();
  for (const model of models) {
    const group = model.published ? model.family : TINY;
    groups.set(group, [...(groups.get(group) || []), model]);
  }
  return [...groups].sort((a, b) => Number(a[0] === TINY) - Number(b[0] === TINY));
}

function factText({ lines, num_frames: frames, fps, side, sound, needs, distilled }) {
  const rate = fps ? t` at ${fps} fps` : "";
  const size = lines ? t`clips up to ${lines}p × ${frames}${rate}` : t`pictures up to ${side} px`;
  return [size, sound && t`with sound`, needs.length && t`needs ${needs.join(t` and `)}`, distilled && t`distilled`]
    .filter(Boolean)
    .join(" · ");
}
