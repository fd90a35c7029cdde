/* global drawFigure, stacking */
// What all pages share: elements, requests, formats, plots, dialogs. Texts are always set as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "polyline", "rect", "circle", "line", "g", "title"]);
const isShown = part => part !== null && part !== undefined && part !== false;

/** Make an element: h("a.name", { href, onclick }, "text", child, null). Attributes that are null or false are left out. */
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

// The token comes in the address that the terminal prints, after "#", which browsers send to nobody.
const KEY = "reelworks-token";
export function takeToken() {
  const found = /^#token=([\w-]+)$/.exec(location.hash);
  if (found) {
    localStorage.setItem(KEY, found[1]);
    history.replaceState(null, "", "#/runs");
  }
  document.getElementById("read-only").hidden = canChange();
}
export const canChange = () => Boolean(localStorage.getItem(KEY));

/** An error that the server explains: problem, field, value and remedy. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.problem || "the server did not answer");
    Object.assign(this, { status }, body);
  }
}

async function request(method, path, body, signal) {
  const headers = method === "GET" ? {} : { "X-Reelworks-Token": localStorage.getItem(KEY) || "" };
  const isFile = body instanceof Blob;
  if (body !== undefined && !isFile) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(`/api${path}`, {
      method,
      headers,
      signal,
      body: body === undefined || isFile ? body : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { problem: "the page's server does not answer", remedy: "start it again: reelworks ui" });
  }
  const value = (answer.headers.get("content-type") || "").includes("json") ? await answer.json() : null;
  if (!answer.ok) {
    if (answer.status === 401) {
      localStorage.removeItem(KEY);
      document.getElementById("read-only").hidden = false;
    }
    const detail = value?.detail ? { problem: JSON.stringify(value.detail) } : {};
    throw new Problem(answer.status, value ? { ...detail, ...value } : {});
  }
  return value;
}
export const get = (path, signal) => request("GET", path, undefined, signal);
export const post = (path, body = {}, signal) => request("POST", path, body, signal);
export const put = (path, body, signal) => request("PUT", path, body, signal);

/** Call a function with each message of the server, until the page is left. */
export function follow(path, signal, onNews) {
  const source = new EventSource(`/api${path}`);
  source.onmessage = event => onNews(JSON.parse(event.data));
  signal.addEventListener("abort", () => source.close());
}

/** Call a function again and again, one call at a time, until the page is left; hidden pages rest. */
export function every(milliseconds, signal, call) {
  let timer;
  const again = async () => {
    if (!document.hidden)
      await call().catch(error => {
        if (error.name !== "AbortError") console.warn(error);
      });
    if (!signal.aborted) timer = setTimeout(again, milliseconds);
  };
  timer = setTimeout(again, milliseconds);
  signal.addEventListener("abort", () => clearTimeout(timer));
}

/** Return a function that calls another at most once in so many milliseconds, the last time included. */
export function throttled(milliseconds, call) {
  let last = -Infinity;
  let timer = null;
  return (...values) => {
    clearTimeout(timer);
    const wait = Math.max(0, last + milliseconds - performance.now());
    timer = setTimeout(() => {
      last = performance.now();
      call(...values);
    }, wait);
  };
}

const number = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
export const count = value => (value === null || value === undefined ? "–" : number.format(value));
export const plural = (value, noun) =>
  `${count(value)} ${value === 1 ? noun : `${noun.replace(/(ch)$/, "$1e").replace(/([^aeiou])y$/, "$1ie")}s`}`;
export const percent = share => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(1)} %`);
export function loss(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return Math.abs(value) >= 0.01 && Math.abs(value) < 100 ? value.toFixed(4) : value.toPrecision(4);
}
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (value < 1000) return `${Number(value.toPrecision(3))} ${unit}`;
    value /= 1000;
  }
  return `${Number(value.toPrecision(4))} TB`;
}
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.round(seconds / 60);
  const hours = Math.floor(minutes / 60);
  if (hours >= 48) return `${Math.floor(hours / 24)} d ${hours % 24} h`;
  return hours ? `${hours} h ${String(minutes % 60).padStart(2, "0")} min` : `${minutes} min`;
}
export const ago = time => (time ? `${duration(Math.max(0, Date.now() / 1000 - time))} ago` : "–");
export const moment = time => (time ? new Date(time * 1000).toLocaleString("sv-SE") : "–");

/** Tell in a corner of the window, for some seconds; errors stay longer. */
export function toast(text, tone = "plain") {
  const box = h(`div.toast.${tone}`, text);
  document.getElementById("toasts").append(box);
  setTimeout(() => box.remove(), tone === "bad" ? 12000 : 5000);
}
export function explain(error) {
  if (error.name === "AbortError") return;
  const where = error.field ? `${error.field}${error.value ? ` = ${error.value}` : ""}: ` : "";
  toast(
    `${where}${error.message}${error.remedy ? `. ${error.remedy[0].toUpperCase()}${error.remedy.slice(1)}` : ""}`,
    "bad",
  );
}

/** A button that does something that takes time; it is inactive meanwhile, and without the token. */
export function button(text, action, { kind = "", title = null, disabled = false } = {}) {
  const element = h(`button${kind && `.${kind}`}`, { type: "button", title, disabled: disabled || !canChange() }, text);
  element.addEventListener("click", async () => {
    element.disabled = true;
    try {
      await action();
    } catch (error) {
      explain(error);
    } finally {
      element.disabled = disabled || !canChange();
    }
  });
  return element;
}

/** Ask before something that cannot be undone; resolves to true or false. */
export function ask(title, content, verb) {
  return new Promise(resolve => {
    const dialog = h(
      "dialog",
      { "aria-labelledby": "ask-title" },
      h("h2", { id: "ask-title" }, title),
      h("div", content),
      h(
        "form.actions",
        { method: "dialog" },
        h("button", { value: "" }, "Cancel"),
        h("button.main", { value: "yes" }, verb),
      ),
    );
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "yes");
      dialog.remove();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** What a page shows if there is nothing yet: a title, what to do next, and something to do it with. */
export const empty = (title, text, ...actions) => h("section.empty", h("h2", title), h("p", text), actions);
export const badge = (text, tone) => h(`span.badge.${tone || "plain"}`, text);
export const card = (...children) => h("section.card", ...children);

/** A table with a caption for screen readers; columns are [heading, cell of a row, is a number]. */
export function table(caption, columns, rows, { onrow = null } = {}) {
  const head = h(
    "tr",
    columns.map(([name, , isNumber]) => h(isNumber ? "th.n" : "th", { scope: "col" }, name)),
  );
  const body = rows.map(row => {
    const line = h(
      "tr",
      columns.map(([, cell, isNumber]) => h(isNumber ? "td.n" : "td", cell(row))),
    );
    if (onrow) onrow(line, row);
    return line;
  });
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

export function progress(share, label) {
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

// Plots: plotly is loaded when the first one is drawn. /report.js, which reports share, tells how they look.
let plotly = null;
export function loadPlotly() {
  plotly ??= new Promise((resolve, reject) => {
    const script = h("script", { src: "/plotly.js" });
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("the plots could not be loaded"));
    document.head.append(script);
  });
  return plotly;
}
const drawn = new Map();

/** Draw a figure as reports do. */
export async function plot(element, figure, label) {
  await loadPlotly();
  drawn.set(element, [figure, label]);
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", label);
  await drawFigure(element, figure);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const [element, [figure, label]] of drawn)
    element.isConnected ? plot(element, figure, label) : drawn.delete(element);
});
