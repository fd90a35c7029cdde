// Bars of the measures of clips, and the map of their sizes, drawn as SVG in the page's colours.

import { card, empty, fill, h } from "./elements.js";
import { count, plural } from "./units.js";

const short = value =>
  Number(Math.abs(value) >= 1000 ? value.toFixed(0) : value.toPrecision(3)).toLocaleString("en-US");

export async function drawDistributions(box, found) {
  if (!found.clips) return fill(box, empty("No measures", "No readable clip is chosen."));
  fill(box, sizeMap(found), found.bars.map(bars));
}

function bars(one) {
  const most = Math.max(...one.counts);
  const number = one.counts.length;
  const isExact = Boolean(one.values);
  const name = i =>
    isExact
      ? short(one.values[i])
      : i === number - 1 && one.edges.length === number
        ? `${short(one.edges[i])} and more`
        : `${short(one.edges[i])} to ${short(one.edges[i + 1])}`;
  const total = one.counts.reduce((sum, value) => sum + value, 0);
  const wide = 100 / number;
  const bar = Math.min(wide * 0.88, 12);
  const drawing = h(
    "svg.bars-of",
    {
      viewBox: "0 0 100 40",
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": `${one.label}: ${plural(total, "clip")}, median ${short(one.median)} ${one.unit}`,
    },
    one.counts.map((value, i) =>
      h(
        "g",
        h("rect.hit", { x: i * wide, y: 0, width: wide, height: 40 }),
        h("rect", {
          x: i * wide + (wide - bar) / 2,
          width: bar,
          y: 40 - (38 * value) / most - (value ? 0.8 : 0),
          height: (38 * value) / most + (value ? 0.8 : 0),
        }),
        h("title", `${name(i)}${one.unit ? ` ${one.unit}` : ""}: ${plural(value, "clip")}`),
      ),
    ),
  );
  const low = isExact ? one.values[0] : one.edges[0];
  const high = isExact ? one.values[number - 1] : one.max;
  return card(
    h("h3", one.label),
    h("p.quiet", `median ${short(one.median)}${one.unit ? ` ${one.unit}` : ""}`),
    drawing,
    isExact && number <= 8
      ? h(
          "div.ticks",
          { "aria-hidden": "true" },
          one.values.map(value => h("span", short(value))),
        )
      : h("div.ends.quiet", { "aria-hidden": "true" }, h("span", short(low)), h("span", short(high))),
  );
}

function sizeMap({ sizes, clips }) {
  const { cell, cells, buckets } = sizes;
  const most = Math.max(...cells.map(one => one[2]));
  const across = Math.max(...cells.map(one => one[0]), ...buckets.map(one => one[0] / cell)) + 1.5;
  const down = Math.max(...cells.map(one => one[1]), ...buckets.map(one => one[1] / cell)) + 1.5;
  const side = value => Math.sqrt(value / most) * 0.7 + 0.3;
  const drawing = h(
    "svg.sizes",
    {
      viewBox: `0 0 ${across} ${down}`,
      style: { "aspect-ratio": `${across} / ${down}` },
      role: "img",
      "aria-label": `Sizes of ${plural(clips, "clip")}`,
    },
    h("line", { x1: 0, y1: down, x2: Math.min(across, down), y2: down - Math.min(across, down) }),
    cells.map(([x, y, value]) =>
      h(
        "g",
        h("rect", {
          x: x + 0.5 - side(value) / 2,
          y: down - y - 0.5 - side(value) / 2,
          width: side(value),
          height: side(value),
          rx: 0.08,
        }),
        h(
          "title",
          `${short(x * cell)} to ${short((x + 1) * cell)} wide, ${short(y * cell)} to ${short((y + 1) * cell)} high: ${plural(value, "clip")}`,
        ),
      ),
    ),
    buckets.map(([width, height]) =>
      h(
        "g",
        h("circle", { cx: width / cell, cy: down - height / cell, r: 0.2 }),
        h("title", `bucket ${width} × ${height}`),
      ),
    ),
  );
  return h(
    "section.card.map",
    h("h3", "Sizes"),
    h(
      "p.quiet",
      `width to the right, height upwards, in cells of ${short(cell)} pixels; the line is square${buckets.length ? "; circles are buckets" : ""}`,
    ),
    drawing,
    h("p.quiet", `to ${count(Math.round(across * cell))} pixels wide, and ${count(Math.round(down * cell))} high`),
  );
}
