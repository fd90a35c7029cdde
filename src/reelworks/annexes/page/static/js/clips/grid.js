// A grid of clips that keeps only the tiles in sight, however many clips there are.

import { fill, h } from "../elements.js";
import { t } from "../texts.js";

export const PAGE = 120;
const GAP = 12;
const LEAST = 172;
const TEXT = 50;
const TALLEST = 8e6; // pixels; browsers make no element that is much taller
const REST = 110; // milliseconds without scrolling before pictures are asked for

export class Grid {
  /** @param options { page(offset, limit): clips, tile(clip): element, open(index), show(tile, clip, isWanted) } */
  constructor(options, signal) {
    Object.assign(this, options);
    this.host = h("div.tiles", { role: "listbox", "aria-label": t`Clips` });
    this.tiles = new Map();
    this.pages = new Map();
    [this.total, this.focused, this.real, this.former, this.run] = [0, 0, 0, 0, 0];
    const draw = () => {
      cancelAnimationFrame(this.frame);
      this.frame = requestAnimationFrame(() => this.draw());
    };
    addEventListener("scroll", draw, { signal, passive: true });
    const sizes = new ResizeObserver(() => {
      if (this.host.clientWidth !== this.width) this.measure();
    });
    sizes.observe(this.host);
    signal.addEventListener("abort", () => {
      sizes.disconnect();
      clearTimeout(this.rest);
    });
    this.host.addEventListener("keydown", event => this.onKey(event));
  }
  /** Show other clips from the first one on, or the same ones again after a change. */
  reset(total, first, { stay = false } = {}) {
    this.run += 1;
    this.total = total;
    this.pages = new Map([[0, Promise.resolve(first)]]);
    this.items = new Map(first.map((clip, i) => [i, clip]));
    for (const tile of this.tiles.values()) tile.remove();
    this.tiles.clear();
    if (!stay) {
      this.focused = 0;
      [this.real, this.former] = [0, 0];
      if (this.host.getBoundingClientRect().top < 0) this.host.scrollIntoView({ behavior: "instant" });
    }
    this.focused = Math.min(this.focused, Math.max(total - 1, 0));
    this.measure();
  }
  measure() {
    this.width = this.host.clientWidth;
    if (!this.width) return;
    this.columns = Math.max(Math.floor((this.width + GAP) / (LEAST + GAP)), 2);
    this.tileWidth = (this.width - GAP * (this.columns - 1)) / this.columns;
    this.rowHeight = Math.round(this.tileWidth * 0.72) + TEXT + GAP;
    this.realHeight = Math.ceil(this.total / this.columns) * this.rowHeight;
    this.host.style.height = `${Math.min(this.realHeight, TALLEST)}px`;
    for (const tile of this.tiles.values()) tile.remove();
    this.tiles.clear();
    this.draw();
  }
  /** The place among all rows at the window's top; of very many rows, long jumps of the scroll bar are scaled. */
  top() {
    const at = Math.max(0, -this.host.getBoundingClientRect().top);
    const room = Math.min(this.realHeight, TALLEST) - innerHeight;
    const all = this.realHeight - innerHeight;
    if (this.realHeight <= TALLEST) this.real = at;
    else if (at <= 0 || at >= room) this.real = at <= 0 ? 0 : all;
    else
      this.real =
        Math.abs(at - this.former) < 3 * innerHeight
          ? Math.min(Math.max(this.real + at - this.former, 0), all)
          : (at / room) * all;
    this.former = at;
    return at;
  }
  draw() {
    if (!this.width || !this.host.isConnected) return;
    const at = this.top();
    const shift = at - this.real;
    const from = Math.max(Math.floor(this.real / this.rowHeight) - 1, 0) * this.columns;
    const below = Math.max(0, this.host.getBoundingClientRect().top);
    const to = Math.min((Math.ceil((this.real + innerHeight - below) / this.rowHeight) + 1) * this.columns, this.total);
    for (const [index, tile] of this.tiles)
      if (index < from || index >= to) {
        if (!tile.contains(document.activeElement)) {
          tile.remove();
          this.tiles.delete(index);
        }
      }
    for (let index = from; index < to; index++) {
      let tile = this.tiles.get(index);
      if (!tile) {
        tile = this.place(index);
        this.tiles.set(index, tile);
      }
      const row = Math.floor(index / this.columns);
      const column = index % this.columns;
      tile.style.transform = `translate(${column * (this.tileWidth + GAP)}px, ${row * this.rowHeight + shift}px)`;
    }
    [this.from, this.to] = [from, to];
    clearTimeout(this.rest);
    this.rest = setTimeout(() => this.look(), this.looked === this.run ? REST : 0);
  }
  place(index) {
    const tile = h("div.tile", {
      role: "option",
      "aria-selected": "false",
      "aria-posinset": index + 1,
      "aria-setsize": this.total,
      tabindex: index === this.focused ? "0" : "-1",
      style: { width: `${this.tileWidth}px`, height: `${this.rowHeight - GAP}px` },
    });
    tile.addEventListener("click", () => {
      this.focus(index);
      this.open(index);
    });
    tile.addEventListener("focus", () => {
      this.focused = index;
    });
    this.host.append(tile);
    const clip = this.items.get(index);
    clip ? this.put(tile, clip) : fill(tile, h("div.pic"));
    return tile;
  }
  put(tile, clip) {
    tile.clip = clip;
    fill(tile, this.tile(clip));
    tile.setAttribute("aria-label", this.label(clip));
  }
  /** Ask for the clips and pictures of tiles in sight. */
  look() {
    this.looked = this.run;
    for (let index = this.from; index < this.to; index++) {
      const tile = this.tiles.get(index);
      if (!tile) continue;
      if (tile.clip) {
        if (!tile.asked) {
          tile.asked = true;
          this.show(tile, tile.clip, () => tile.isConnected);
        }
      } else if (!this.pages.has(Math.floor(index / PAGE)))
        this.item(index).then(
          () => this.look(),
          () => {},
        );
    }
  }
  /** Return the clip at a place, loading its page if need be. */
  async item(index) {
    const number = Math.floor(index / PAGE);
    const run = this.run;
    if (this.items.has(index)) return this.items.get(index);
    if (!this.pages.has(number)) this.pages.set(number, this.page(number * PAGE, PAGE));
    const clips = await this.pages.get(number).catch(error => {
      this.pages.delete(number);
      throw error;
    });
    if (run !== this.run) return clips[index - number * PAGE];
    clips.forEach((clip, i) => {
      const place = number * PAGE + i;
      const tile = this.tiles.get(place);
      this.items.set(place, clip);
      if (tile && !tile.clip) this.put(tile, clip);
    });
    return this.items.get(index);
  }
  /** Draw a clip again that has changed. */
  replace(index, clip) {
    this.items.set(index, clip);
    const tile = this.tiles.get(index);
    if (tile) {
      tile.asked = false;
      this.put(tile, clip);
      this.look();
    }
  }
  focus(index) {
    this.focused = index;
    const row = Math.floor(index / this.columns) * this.rowHeight;
    const margin = 70;
    const rect = this.host.getBoundingClientRect();
    const place = rect.top + row + (Math.max(0, -rect.top) - this.real);
    const by =
      place < margin
        ? place - margin
        : place + this.rowHeight > innerHeight
          ? place + this.rowHeight - innerHeight + 8
          : 0;
    if (by) scrollBy({ top: by, behavior: "instant" });
    this.draw();
    for (const [at, tile] of this.tiles) tile.tabIndex = at === index ? 0 : -1;
    this.tiles.get(index)?.focus({ preventScroll: true });
  }
  onKey(event) {
    const rows = Math.max(Math.floor(innerHeight / this.rowHeight) - 1, 1) * this.columns;
    const steps = {
      ArrowLeft: -1,
      ArrowRight: 1,
      ArrowUp: -this.columns,
      ArrowDown: this.columns,
      PageUp: -rows,
      PageDown: rows,
      Home: -this.total,
      End: this.total,
    };
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.open(this.focused);
    } else if (event.key in steps && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      this.focus(Math.min(Math.max(this.focused + steps[event.key], 0), this.total - 1));
    }
  }
}
