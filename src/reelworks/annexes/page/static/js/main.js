// Which page is shown: the part of the address after "#".

import { explain } from "./dialogs.js";
import { fill, h } from "./elements.js";
import { listenToKeys } from "./keyboard.js";
import { get, takeToken } from "./server.js";
import { language, t, translated } from "./texts.js";

const PAGES = ["runs", "run", "compare", "jobs", "data", "plan", "new"];
const OF_ONE = ["run", "jobs"];
const OF_RUNS = ["run", "compare", "jobs"];
let leaving = new AbortController();

/** The page that the address names, and what of it. */
function readAddress() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decode);
  const isKnown = PAGES.includes(name) && (rest.length || !OF_ONE.includes(name));
  return [isKnown ? name : "runs", rest];
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a % of an address typed by hand
  }
}

async function show() {
  if (location.hash === "#main") return;
  const [name, rest] = readAddress();
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const main = document.getElementById("main");
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close(); // it asks about the page that is left
  markPage(OF_RUNS.includes(name) ? "runs" : name);
  fill(main, h("p.quiet.loading", t`loading …`));
  try {
    const page = await importPage(name, signal);
    if (signal.aborted) return;
    document.title = `${page.title} · Reelworks`;
    await page.render(main, rest, signal);
    if (!signal.aborted) main.focus({ preventScroll: true });
  } catch (error) {
    if (signal.aborted || error.name === "AbortError") return;
    fill(main, errorSection(error));
    if (!error.status) explain(error);
  }
}

async function importPage(name, signal) {
  try {
    return await import(`./pages/${name}.js`);
  } catch (error) {
    await get("/about", signal); // tells if the server is gone, which is why most modules cannot be loaded
    throw error;
  }
}

/** Show what stands around all pages, in index.html, in the browser's language. */
function translateFrame() {
  document.documentElement.lang = language;
  for (const element of document.querySelectorAll(".skip, nav a, #read-only"))
    element.textContent = translated(element.textContent);
  const bar = document.querySelector("nav");
  bar.setAttribute("aria-label", translated(bar.getAttribute("aria-label")));
}

function markPage(name) {
  for (const link of document.querySelectorAll("[data-page]"))
    link.dataset.page === name ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
}

function errorSection({ message, field, value, remedy }) {
  const where = field ? h("p", h("code", [field, value].filter(Boolean).join(" = "))) : null;
  return h("section.empty", h("h1", message), where, h("p", remedy || ""), h("a", { href: "#/runs" }, t`all runs`));
}

translateFrame();
takeToken();
addEventListener("hashchange", () => {
  takeToken();
  show();
});
listenToKeys();
show();
