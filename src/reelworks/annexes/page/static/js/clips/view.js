// The clips of a recipe or catalog: filters, search and order, and the grid or the distributions of what they choose.

import { explain } from "../dialogs.js";
import { emptySection, fill, h } from "../elements.js";
import { get } from "../server.js";
import { t, translated } from "../texts.js";
import { newest, throttle } from "../timing.js";
import { count, plural } from "../units.js";
import { showClip } from "./details.js";
import { drawDistributions } from "./distributions.js";
import { filterBox } from "./filters.js";
import { Grid, PAGE } from "./grid.js";
import { Limits } from "./limits.js";
import { Pictures } from "./pictures.js";
import { showPicture, tileContent, tileLabel } from "./tiles.js";

export class ClipView {
  /** @param about returns what is known of the clips now */
  constructor(body, key, about, signal) {
    Object.assign(this, { key, about, signal, chosen: {}, opened: new Set(), pictures: new Pictures(signal) });
    Object.assign(this, { text: "", part: "clips", counts: null, isStale: false, version: about().version });
    Object.assign(this, { next: newest(signal), nextBars: newest(signal) });
    this.grid = this.makeGrid();
    this.told = h("p.told", { role: "status" });
    this.filters = h("aside.filters", { "aria-label": t`Filters` });
    this.parts = h("div.parts", { role: "group", "aria-label": t`view` });
    this.shown = h("div");
    this.bars = h("div.bars");
    this.limits = this.makeLimits();
    this.content = h("div", this.shown);
    this.search = this.makeSearch();
    this.order = h(
      "select",
      { "aria-label": t`order`, onchange: () => this.load() },
      Object.entries(about().sorts).map(([name, label]) => h("option", { value: name }, translated(label))),
    );
    this.drawParts();
    const details = h(
      "details.filters-box",
      { open: matchMedia("(min-width: 821px)").matches },
      h("summary", t`Filters`),
      this.filters,
    );
    const toolbar = h("div.toolbar", this.search, this.order, this.parts, this.told);
    fill(body, h("div.data", details, h("section", { "aria-label": t`Clips` }, toolbar, this.content)));
    this.order.value = "name";
    this.load();
  }

  makeGrid() {
    const { key, pictures, signal } = this;
    const page = async (offset, limit) =>
      (await get(`/data/${key}/clips${this.query({ offset, limit })}`, signal)).clips;
    const show = (tile, clip, wanted) => showPicture(pictures, key, tile, clip, wanted);
    return new Grid(
      {
        page,
        tile: clip => tileContent(clip, this.order.value),
        label: tileLabel,
        show,
        open: index => this.openClip(index),
      },
      signal,
    );
  }

  makeLimits() {
    const { key, about, pictures, signal } = this;
    return new Limits({ key, about, pictures, signal, onWrite: () => this.load({ stay: true }) });
  }

  makeSearch() {
    const search = h("input", {
      type: "search",
      placeholder: t`path or caption`,
      "aria-label": t`search in paths and captions`,
      spellcheck: "false",
    });
    const typed = throttle(180, () => {
      if (this.text === search.value.trim()) return;
      this.text = search.value.trim();
      this.load();
    });
    search.addEventListener("input", typed);
    search.addEventListener("keydown", event => {
      if (event.key === "Escape" && !search.value) search.blur();
    });
    return search;
  }

  /** The choice as the query of an address. */
  query(more = {}) {
    const query = new URLSearchParams();
    for (const [name, values] of Object.entries(this.chosen)) for (const value of values) query.append(name, value);
    if (this.text) query.set("q", this.text);
    query.set("sort", this.order.value);
    for (const [name, value] of Object.entries(more)) query.set(name, value);
    return `?${query}`;
  }

  /** Ask for the clips of the choice, and show them from the first one on, or from where the page is. */
  async load({ stay = false } = {}) {
    const signal = this.next();
    this.shown.classList.add("busy");
    try {
      await this.show(await get(`/data/${this.key}/clips${this.query({ offset: 0, limit: PAGE })}`, signal), stay);
    } catch (error) {
      if (!signal.aborted) explain(error);
    } finally {
      if (!signal.aborted) this.shown.classList.remove("busy");
    }
  }

  async show({ counts, version, total, clips }, stay) {
    Object.assign(this, { counts, version });
    this.grid.reset(total, clips, { stay });
    this.tell(total);
    this.drawFilters();
    fill(this.shown, total ? this.grid.host : this.emptySection());
    if (total) this.grid.measure();
    if (this.part === "bars") await this.loadBars();
  }

  async loadBars() {
    drawDistributions(this.bars, await get(`/data/${this.key}/distributions${this.query()}`, this.nextBars()));
  }

  /** Show clips again that a scan has changed. */
  renew() {
    this.version = this.about().version;
    this.pictures.forgetProblems();
    if (this.part === "limits") this.limits.load({ keep: true }).catch(explain);
    if (!document.querySelector("dialog[open]")) this.load({ stay: true });
  }

  emptySection() {
    const clear = h("button", { type: "button", onclick: () => this.clear() }, t`Clear the filters`);
    if (this.about().clips) return emptySection(t`No clip is chosen`, t`No clip meets all filters.`, clear);
    return emptySection(t`No clips`, t`The catalog is empty: put pictures or clips into the folder, and scan again.`);
  }

  clear() {
    for (const name of Object.keys(this.chosen)) delete this.chosen[name];
    this.text = "";
    this.search.value = "";
    this.load();
  }

  tell(total) {
    const isFiltered = this.text || Object.values(this.chosen).some(values => values.length);
    const text = isFiltered ? t`${count(total)} of ${plural(this.about().clips, "clip")}` : plural(total, "clip");
    const clear = h("button.small", { type: "button", onclick: () => this.clear() }, t`Clear`);
    fill(this.told, h("b", text), isFiltered ? clear : null);
  }

  drawFilters() {
    const focused = document.activeElement?.dataset?.filter;
    fill(
      this.filters,
      this.about().facets.map(facet => filterBox(facet, this.counts?.[facet.name] || facet.counts, this)),
    );
    if (focused) this.filters.querySelector(`[data-filter="${CSS.escape(focused)}"]`)?.focus();
  }

  drawParts() {
    const part = (name, label) =>
      h(
        "button",
        { type: "button", "aria-pressed": String(this.part === name), onclick: () => this.choosePart(name) },
        label,
      );
    fill(this.parts, part("clips", t`Clips`), part("bars", t`Distributions`), part("limits", t`Limits`));
  }

  async choosePart(name) {
    this.part = name;
    this.drawParts();
    fill(this.content, { clips: this.shown, bars: this.bars, limits: this.limits.box }[name]);
    this.order.hidden = name !== "clips";
    if (name === "clips") return this.grid.measure();
    if (!this.bars.children.length) fill(this.bars, h("p.quiet.loading", t`loading …`));
    try {
      await (name === "bars" ? this.loadBars() : this.limits.load());
    } catch (error) {
      explain(error);
    }
  }

  openClip(index) {
    const { key, grid, pictures, signal } = this;
    const onChange = (at, clip) => {
      grid.replace(at, clip);
      this.isStale = true;
    };
    const onClose = at => {
      grid.focus(at);
      if (!this.isStale) return;
      this.isStale = false;
      this.load({ stay: true });
    };
    showClip({ key, index, grid, pictures, signal, onChange, onClose });
  }
}
