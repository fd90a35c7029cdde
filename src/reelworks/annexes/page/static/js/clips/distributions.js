// Bars of the measures of clips, and the map of their sizes, drawn as SVG in the page's colours.

import { card, emptySection, fill, h } from "../elements.js";
import { t, translated } from "../texts.js";
import { count, plural } from "../units.js";

const shortNumber = value =>
  Number(Math.abs(value) >= 1000 ? value.toFixed(0) : value.toPrecision(3)).toLocaleString("en-US");

export function drawDistributions(box, found) {
  if (!found.clips) return fill(box, emptySection(t`No measures`, t`No readable clip is chosen.`));
  fill(box, sizeMap(found), found.bars.map(barCard));
}

function barCard(one) {
  const name = translated(one.label);
  const number = one.counts.length;
  const unit = one.unit ? ` ${one.unit}` : "";
  const ends = one.values ? [one.values[0], one.values[number - 1]] : [one.edges[0], one.max];
  const isShort = one.values && number <= 8;
  const ticks = (isShort ? one.values : ends).map(value => h("span", shortNumber(value)));
  return card(
    h("h3", name),
    h("p.quiet", t`median ${shortNumber(one.median)}${unit}`),
    barDrawing(one),
    h(isShort ? "div.ticks" : "div.ends.quiet", { "aria-hidden": "true" }, ticks),
  );
}

/** The bars of a measure; those whose range `isOut` says to be outside of limits are paler. */
export function barDrawing(one, isOut = () => false) {
  const name = translated(one.label);
  const unit = one.unit ? ` ${one.unit}` : "";
  const total = one.counts.reduce((sum, value) => sum + value, 0);
  const label = t`${name}: ${plural(total, "clip")}, median ${shortNumber(one.median)} ${one.unit}`;
  return h(
    "svg.bars-of",
    { viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img", "aria-label": label },
    one.counts.map((value, i) => {
      const title = `${rangeName(one, i)}${unit}: ${plural(value, "clip")}`;
      const drawn = bar(i, one.counts.length, value / Math.max(...one.counts), title);
      const [from, to] = one.values ? [one.values[i], one.values[i]] : [one.edges[i], one.edges[i + 1] ?? one.max];
      drawn.classList.toggle("out", isOut(from, to));
      return drawn;
    }),
  );
}

/** The i-th of so many bars, of a height between 0 and 1. */
function bar(i, number, share, title) {
  const wide = 100 / number;
  const width = Math.min(wide * 0.88, 12);
  const height = 38 * share + (share ? 0.8 : 0);
  return h(
    "g",
    h("rect.hit", { x: i * wide, y: 0, width: wide, height: 40 }),
    h("rect", { x: i * wide + (wide - width) / 2, width, y: 40 - height, height }),
    h("title", title),
  );
}

function rangeName({ values, edges, counts }, i) {
  if (values) return shortNumber(values[i]);
  if (i === counts.length - 1 && edges.length === counts.length) return t`${shortNumber(edges[i])} and more`;
  return t`${shortNumber(edges[i])} to ${shortNumber(edges[i + 1])}`;
}

function sizeMap({ sizes, clips }) {
  const { cell, cells, buckets } = sizes;
  const across = Math.max(...cells.map(one => one[0]), ...buckets.map(one => one[0] / cell)) + 1.5;
  const down = Math.max(...cells.map(one => one[1]), ...buckets.map(one => one[1] / cell)) + 1.5;
  const square = Math.min(across, down);
  const drawing = h(
    "svg.sizes",
    {
      viewBox: `0 0 ${across} ${down}`,
      style: { "aspect-ratio": `${across} / ${down}` },
      role: "img",
      "aria-label": t`Sizes of ${plural(clips, "clip")}`,
    },
    h("line", { x1: 0, y1: down, x2: square, y2: down - square }),
    sizeCells(sizes, down),
    buckets.map(([width, height]) =>
      h(
        "g",
        h("circle", { cx: width / cell, cy: down - height / cell, r: 0.2 }),
        h("title", t`bucket ${width} × ${height}`),
      ),
    ),
  );
  const axes = t`width to the right, height upwards, in cells of ${shortNumber(cell)} pixels; the line is square`;
  const ends = t`to ${count(Math.round(across * cell))} pixels wide, and ${count(Math.round(down * cell))} high`;
  return h(
    "section.card.map",
    h("h3", t`Sizes`),
    h("p.quiet", axes, buckets.length ? t`; circles are buckets` : ""),
    drawing,
    h("p.quiet", ends),
  );
}

/** Squares whose area tells how many clips are of a size. */
function sizeCells({ cell, cells }, down) {
  const most = Math.max(...cells.map(one => one[2]));
  const range = (at, name) => t`${shortNumber(at * cell)} to ${shortNumber((at + 1) * cell)} ${name}`;
  return cells.map(([x, y, value]) => {
    const side = Math.sqrt(value / most) * 0.7 + 0.3;
    const square = h("rect", {
      x: x + 0.5 - side / 2,
      y: down - y - 0.5 - side / 2,
      width: side,
      height: side,
      rx: 0.08,
    });
    return h("g", square, h("title", `${range(x, t`wide`)}, ${range(y, t`high`)}: ${plural(value, "clip")}`));
  });
}
