// Limits on columns of numbers: sliders under the bars of each, the clips next to a limit, and the filter they make.

import { ask, button, explain, toast } from "../dialogs.js";
import { card, emptySection, fill, h } from "../elements.js";
import { get, post } from "../server.js";
import { t } from "../texts.js";
import { newest, throttle } from "../timing.js";
import { count, plural } from "../units.js";
import { barDrawing } from "./distributions.js";
import { showPicture, tileContent } from "./tiles.js";

const STEPS = 400; // of a slider
const MILLISECONDS = 60; // between two questions while a slider moves
const SIDES = ["least", "most"];
const NAMES = {
  height: [t`height`, t`pixels`],
  width: [t`width`, t`pixels`],
  duration_seconds: [t`duration`, t`seconds`],
  fps: [t`frame rate`, t`frames per second`],
};

/** The sliders of a dataset's columns, and the filter that they make, which a recipe takes over at a button. */
export class Limits {
  constructor({ key, about, pictures, signal, onWrite }) {
    Object.assign(this, { key, about, pictures, onWrite, former: undefined, drawn: [] });
    Object.assign(this, { next: newest(signal), nextColumns: newest(signal) });
    this.box = h("div.limits");
    this.told = h("section.card.limits-told", { "aria-live": "polite" });
    this.cards = h("div.limits-cards");
    this.move = throttle(MILLISECONDS, name => this.ask(name));
    const facet = about().facets.find(one => one.name === "dataset");
    const names = facet.values.map(value => value.id);
    this.dataset = names[0];
    const choose = h(
      "select",
      { "aria-label": t`dataset`, onchange: event => this.choose(event.target.value).catch(explain) },
      names.map(name => h("option", { value: name }, name)),
    );
    fill(this.box, names.length > 1 ? choose : null, this.told, this.cards);
  }

  choose(dataset) {
    this.dataset = dataset;
    this.former = undefined;
    this.next();
    fill(this.told); // it tells of the other dataset
    return this.load();
  }

  /** Read the columns, with the limits that the recipe's filter has now, or with `keep` those that the sliders have. */
  async load({ keep = false } = {}) {
    const kept = new Map(keep ? this.drawn.map(one => [one.column.name, one.limits]) : []);
    const query = new URLSearchParams({ dataset: this.dataset });
    const columns = await get(`/data/${this.key}/columns?${query}`, this.nextColumns());
    this.drawn = columns.map(column => {
      return new ColumnCard({ ...column, ...kept.get(column.name) }, name => this.move(name));
    });
    const none = emptySection(t`No columns`, t`The catalog has no column of numbers.`);
    fill(this.cards, this.drawn.length ? this.drawn.map(one => one.box) : none);
    await this.ask(null);
  }

  /** Ask what the limits do, and show the clips next to those of a column. */
  async ask(moved) {
    const query = new URLSearchParams({ dataset: this.dataset });
    for (const { column, limits } of this.drawn)
      query.append("limit", `${column.name}:${limits.least ?? ""}:${limits.most ?? ""}`);
    if (moved) query.set("moved", moved);
    try {
      this.show(await get(`/data/${this.key}/limits?${query}`, this.next()), moved);
    } catch (error) {
      explain(error);
    }
  }

  show(found, moved) {
    for (const one of this.drawn) one.tell(found.left_out[one.column.name]);
    this.drawn.find(one => one.column.name === moved)?.showClips(found, this.key, this.pictures);
    const left = found.clips - found.inside;
    const isRecipe = this.about().kind === "recipe";
    const write = button(t`Write into the recipe`, () => this.write(found), { kind: "main" });
    write.disabled ||= found.filter === found.former;
    const back = { disabled: this.former === undefined };
    const undo = button(t`Undo`, () => this.send(found.former, this.former, t`The former filter is back.`), back);
    fill(
      this.told,
      h("p", h("b", t`${count(found.inside)} of ${plural(found.clips, "clip")}`), t`, ${count(left)} left out`),
      h("p", h("code", found.filter || t`no filter`)),
      isRecipe ? h("div.actions", undo, write) : null,
    );
  }

  async write(found) {
    const lines = [
      h("p", t`The recipe's filter of ${this.dataset} is now:`),
      h("pre", found.former || t`no filter`),
      h("p", t`It becomes:`),
      h("pre", found.filter || t`no filter`),
      h("p.quiet", t`No file is moved or deleted: clips that it leaves out come back with another filter.`),
    ];
    if (await ask(t`Write the filter?`, lines, t`Write`)) await this.send(found.former, found.filter, t`Written.`);
  }

  async send(former, filter, text) {
    const { ready } = await post(`/data/${this.key}/filter`, { dataset: this.dataset, filter, former });
    this.former = former;
    toast(text, "good");
    if (!ready) return fill(this.told, h("p.quiet", t`The clips are being read again …`)); // and then shown again
    await this.onWrite();
    await this.load();
  }
}

/** Bars of a column, two sliders, and the clips next to a limit that was moved. */
class ColumnCard {
  constructor(column, onMove) {
    Object.assign(this, { column, onMove, limits: { least: column.least, most: column.most } });
    const [label, unit] = NAMES[column.name] || [column.label, column.unit];
    this.name = label;
    this.left = h("p.quiet");
    this.clips = h("div.limit-clips");
    this.drawing = h("div");
    this.inputs = Object.fromEntries(SIDES.map(side => [side, this.makeInputs(side)]));
    this.box = card(
      h("h3", this.name, " ", unit ? h("span.quiet", `(${unit})`) : null),
      this.drawing,
      SIDES.map(side => this.inputs[side].line),
      this.left,
      this.clips,
    );
    this.draw();
  }

  makeInputs(side) {
    const { low, high, name } = this.column;
    const end = side === "least" ? low : high;
    const slider = h("input", { type: "range", min: 0, max: STEPS, step: 1, "data-limit": `${name}:${side}` });
    const number = h("input", { type: "number", step: "any", placeholder: t`none` });
    const label = side === "least" ? t`at least` : t`at most`;
    for (const input of [slider, number]) input.setAttribute("aria-label", `${this.name}: ${label}`);
    const set = value => {
      this.limits[side] = value;
      this.draw();
      this.onMove(name);
    };
    slider.addEventListener("input", () => {
      const value = low + ((high - low) * slider.value) / STEPS;
      set(Number(slider.value) === (side === "least" ? 0 : STEPS) ? null : Number(value.toPrecision(6)));
    });
    number.addEventListener("change", () => set(number.value === "" ? null : Number(number.value)));
    return { slider, number, end, line: h("label.limit", h("span", label), slider, number) };
  }

  draw() {
    const { low, high } = this.column;
    for (const side of SIDES) {
      const { slider, number, end } = this.inputs[side];
      const value = this.limits[side];
      slider.disabled = low === high;
      slider.value = String(high > low ? Math.round((STEPS * ((value ?? end) - low)) / (high - low)) : 0);
      if (document.activeElement !== number) number.value = value ?? "";
    }
    const [least, most] = [this.limits.least ?? -Infinity, this.limits.most ?? Infinity];
    fill(
      this.drawing,
      barDrawing(this.column, (from, to) => to < least || from > most),
    );
  }

  tell(left) {
    const missing = this.column.missing ? t`, ${count(this.column.missing)} lack the number` : "";
    fill(this.left, left === undefined ? "" : t`${plural(left, "clip")} outside`, missing);
  }

  showClips(found, key, pictures) {
    const groups = SIDES.filter(side => found[side]).flatMap(side => [
      clipGroup(t`just outside`, found[side].outside, key, pictures),
      clipGroup(t`just inside`, found[side].inside, key, pictures),
    ]);
    fill(this.clips, groups);
  }
}

function clipGroup(title, clips, key, pictures) {
  const tiles = clips.map(clip => {
    const tile = h("li.tile", tileContent(clip, ""));
    showPicture(pictures, key, tile, clip, () => tile.isConnected);
    return tile;
  });
  return h("figure", h("figcaption", title), tiles.length ? h("ul", tiles) : h("p.quiet", t`no clip`));
}
