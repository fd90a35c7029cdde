// The buckets of a plan by resolution and number of frames, with their settings in them.

import { h } from "../elements.js";
import { t } from "../texts.js";
import { count, percent, plural } from "../units.js";

export class BucketMap {
  constructor(page) {
    this.page = page;
    this.cells = [];
    this.element = this.build();
  }

  build() {
    const { entries } = this.page.about;
    const frames = [...new Set(entries.map(entry => entry.num_frames))].sort((a, b) => a - b);
    const heads = frames.map(number => h("th", { scope: "col" }, number === 1 ? t`1 · pictures` : count(number)));
    const rows = resolutions(entries).map(size =>
      h(
        "tr",
        h("th", { scope: "row" }, size),
        frames.map(number => {
          const index = entries.findIndex(entry => entry.resolution === size && entry.num_frames === number);
          return index < 0 ? h("td.none", { "aria-label": t`no bucket` }) : this.buildCell(index);
        }),
      ),
    );
    return h(
      "div.scroll",
      { tabindex: "0", role: "region", "aria-label": t`Buckets` },
      h(
        "table.plan-map",
        h("caption.hidden", t`Buckets by resolution and number of frames`),
        h("thead", h("tr", h("th", { scope: "col" }, h("span.quiet", t`frames →`)), heads)),
        h("tbody", rows),
      ),
    );
  }

  buildCell(index) {
    const entry = this.page.about.entries[index];
    const clips = h("b");
    const former = h("span.former");
    const share = h("span.quiet");
    const buckets = this.page.about.buckets.filter(bucket => bucket.entry === index);
    const glyphs = buckets.map(bucket => glyph(bucket));
    const shapes = h(
      "div.plan-shapes",
      { role: "img" },
      glyphs.map(one => one.element),
    );
    const shares = this.page.about.buckets.some(bucket => bucket.sequence_degree > 1);
    const gpus = shares ? h("small.quiet", t`${plural(buckets[0].sequence_degree, "GPU")} per clip`) : null;
    const inputs = entry.place === null ? null : h("div.plan-inputs", this.batchSize(entry), this.keepProb(entry));
    const element = h("td", h("div.plan-count", clips, former, share), shapes, gpus, inputs);
    this.cells.push({ element, clips, former, share, buckets, glyphs, shapes });
    return element;
  }

  batchSize({ label, place }) {
    const { page } = this;
    const size = h("input", {
      type: "number",
      min: 1,
      max: page.about.most_clips,
      step: 1,
      "aria-label": t`batch size of ${label}`,
      "data-field": `batch_sizes.${place}`,
    });
    const field = h("label", { title: t`clips per micro-batch` }, h("span", t`batch`), size);
    size.addEventListener("input", () => {
      if (!Number.isInteger(size.valueAsNumber) || size.valueAsNumber < 1) return;
      page.now.batch_sizes[place] = size.valueAsNumber;
      page.update();
    });
    page.refresh.push(() => {
      const value = page.now.batch_sizes[place];
      if (size.valueAsNumber !== value) size.value = value;
      field.classList.toggle("moved", value !== page.saved.batch_sizes[place]);
    });
    return field;
  }

  keepProb({ label, place }) {
    const { page } = this;
    const chance = h("input", {
      type: "range",
      min: 0,
      max: 1,
      step: 0.01,
      "aria-label": t`probability of ${label}`,
      "data-field": `keep_probs.${place}`,
    });
    const said = h("output");
    const field = h(
      "label",
      { title: t`chance that a fitting clip is assigned here` },
      h("span", t`keep`),
      chance,
      said,
    );
    chance.addEventListener("input", () => {
      page.now.keep_probs[place] = chance.valueAsNumber;
      page.update();
    });
    page.refresh.push(() => {
      const value = page.now.keep_probs[place];
      if (chance.valueAsNumber !== value) chance.value = value;
      said.textContent = `${Math.round(100 * value)} %`;
      field.classList.toggle("moved", value !== page.saved.keep_probs[place]);
    });
    return field;
  }

  /** Show the clips of each cell in a plan, and those of an earlier plan where they differ. */
  draw(plan, before) {
    const [now, then] = [clipsByBucket(plan), clipsByBucket(before)];
    const sum = (clips, cell) => cell.buckets.reduce((total, bucket) => total + (clips[bucket.name] || 0), 0);
    const most = Math.max(1, ...this.cells.map(cell => sum(now, cell)));
    for (const cell of this.cells) {
      const [clips, former] = [sum(now, cell), sum(then, cell)];
      cell.clips.textContent = count(clips);
      cell.former.textContent = clips === former ? "" : t`was ${count(former)}`;
      cell.share.textContent = clips ? percent(clips / plan.planned) : "";
      cell.element.style.setProperty("--tint", `${(clips ? 4 + 22 * Math.sqrt(clips / most) : 0).toFixed(1)}%`);
      cell.element.classList.toggle("unused", !clips);
      drawShapes(cell, now);
    }
  }
}

/** The resolutions of the entries, those of more pixels first. */
function resolutions(entries) {
  const pixels = size => Math.max(...entries.filter(entry => entry.resolution === size).map(entry => entry.pixels));
  return [...new Set(entries.map(entry => entry.resolution))].sort((a, b) => pixels(b) - pixels(a));
}

const clipsByBucket = plan => Object.fromEntries(plan.buckets.map(bucket => [bucket.name, bucket.clips]));

function drawShapes({ buckets, glyphs, shapes }, clips) {
  const largest = Math.max(1, ...buckets.map(bucket => clips[bucket.name] || 0));
  for (const [i, one] of glyphs.entries()) one.set(clips[buckets[i].name] || 0, largest);
  const used = buckets.filter(bucket => clips[bucket.name]);
  const label = used.map(bucket => `${bucket.ratio}: ${plural(clips[bucket.name], "clip")}`).join(", ");
  shapes.setAttribute("aria-label", label || t`no clip`);
}

/** A bucket as a rectangle of its aspect ratio, the darker the more clips it has. */
function glyph(bucket) {
  const scale = 15 / Math.max(bucket.height, bucket.width);
  const [width, height] = [Math.max(3, bucket.width * scale), Math.max(3, bucket.height * scale)];
  const tip = h("title");
  const rect = h("rect", { x: (16 - width) / 2, y: (16 - height) / 2, width, height, rx: 1 });
  const size = t`${bucket.width} × ${bucket.height}, ${plural(bucket.tokens, "token")} each`;
  return {
    element: h("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, tip, rect),
    set(clips, most) {
      rect.style.fillOpacity = clips ? (0.25 + (0.75 * clips) / most).toFixed(2) : "0";
      tip.textContent = `${bucket.ratio}: ${plural(clips, "clip")}, ${size}`;
    },
  };
}
