// Elements that all pages are made of. Texts are always set as text, never as HTML.

import { bytes } from "./units.js";

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "polyline", "rect", "circle", "line", "g", "title"]);
const isShown = part => part !== null && part !== undefined && part !== false;

/** Make an element: h("a.name", { href, onclick }, "text", child). What is null or false is left out. */
export function h(selector, ...parts) {
  const attributes = parts[0]?.constructor === Object ? parts.shift() : {};
  const [tag, ...classes] = selector.split(".");
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(attributes)) setAttribute(element, name, value);
  element.append(...parts.flat(3).filter(isShown));
  return element;
}

function setAttribute(element, name, value) {
  if (!isShown(value)) return;
  if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
  else if (name === "value" || name === "checked") element[name] = value;
  else element.setAttribute(name, value === true ? "" : value);
}

/** Replace the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(3).filter(isShown));
  return element;
}

/** What a page shows if there is nothing yet: a title, what to do next, and something to do it with. */
export const emptySection = (title, text, ...actions) => h("section.empty", h("h2", title), h("p", text), actions);
export const badge = (text, tone) => h(`span.badge.${tone || "plain"}`, text);
export const card = (...children) => h("section.card", ...children);

/** A table with a caption for screen readers; columns are [heading, cell of a row, is a number]. */
export function table(caption, columns, rows) {
  const head = h(
    "tr",
    columns.map(([name, , isNumber]) => h(isNumber ? "th.n" : "th", { scope: "col" }, name)),
  );
  const body = rows.map(row =>
    h(
      "tr",
      columns.map(([, cell, isNumber]) => h(isNumber ? "td.n" : "td", cell(row))),
    ),
  );
  const box = h(
    "div.scroll",
    { tabindex: "0", role: "region", "aria-label": caption },
    h("table", h("caption.hidden", caption), h("thead", head), h("tbody", body)),
  );
  stacking.observe(box);
  return box;
}

/** A small curve without axes; `label` says it in words. */
export function spark(values, label) {
  const known = values.map((v, i) => [i, v]).filter(([, v]) => Number.isFinite(v));
  if (known.length < 2) return h("span.quiet", "–");
  const [low, high] = [Math.min(...known.map(p => p[1])), Math.max(...known.map(p => p[1]))];
  const points = known.map(
    ([i, v]) =>
      `${((100 * i) / (values.length - 1)).toFixed(1)},${(22 - (20 * (v - low)) / (high - low || 1)).toFixed(1)}`,
  );
  return h(
    "svg.spark",
    { viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img", "aria-label": label },
    h("polyline", { points: points.join(" ") }),
  );
}

export function progressBar(share, label) {
  return h(
    "div.progress",
    {
      role: "progressbar",
      "aria-label": label,
      "aria-valuemin": 0,
      "aria-valuemax": 100,
      "aria-valuenow": Math.round(100 * share),
    },
    h("i", { style: { width: `${Math.min(100, 100 * share)}%` } }),
  );
}

const TONES = ["c1", "c2", "c3", "c5", "c6", "c7", "c8", "c4"];

/** The parts of memory as a bar, the largest first, and its legend; the smallest parts are left out. */
export function memoryBar({ total, host, ...parts }) {
  const shown = Object.entries(parts)
    .filter(([, size]) => size > total / 1000)
    .sort((a, b) => b[1] - a[1]);
  const tone = i => `var(--${TONES[i % TONES.length]})`;
  const label = shown.map(([name, size]) => `${name} ${bytes(size)}`).join(", ");
  return [
    h(
      "div.bar",
      { role: "img", "aria-label": label },
      shown.map(([, size], i) => h("span", { style: { "--share": size / total, "--tone": tone(i) } })),
    ),
    h(
      "div.legend",
      shown.map(([name, size], i) => h("span", { style: { "--tone": tone(i) } }, `${name} `, h("b", bytes(size)))),
    ),
  ];
}

/** A video that plays silently, or a picture. */
export const media = (url, isVideo, label) =>
  isVideo
    ? h("video", {
        src: url,
        loop: true,
        muted: true,
        autoplay: true,
        controls: true,
        playsinline: true,
        "aria-label": label,
      })
    : h("img", { src: url, alt: label, loading: "lazy" });
