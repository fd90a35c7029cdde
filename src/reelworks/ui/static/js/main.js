// Which page is shown: the part of the address after "#".

import { explain } from "./dialogs.js";
import { fill, h } from "./elements.js";
import { get, takeToken } from "./server.js";

const PAGES = { runs: "runs", run: "run", compare: "compare", jobs: "jobs", data: "data", plan: "plan", new: "new" };
const OF_ONE = ["run", "jobs"];
let leaving = new AbortController();

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  } // a % of an address typed by hand
}

async function show() {
  if (location.hash === "#main") return;
  let [name = "runs", ...rest] = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decoded);
  if (OF_ONE.includes(name) && !rest.length) name = "runs"; // which lists them
  leaving.abort();
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close(); // they ask about the page that is left
  leaving = new AbortController();
  const { signal } = leaving;
  const main = document.getElementById("main");
  for (const link of document.querySelectorAll("[data-page]")) {
    const isHere = link.dataset.page === (["run", "compare", "jobs"].includes(name) ? "runs" : name || "runs");
    isHere ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  fill(main, h("p.quiet.loading", "loading …"));
  try {
    const page = await import(`./pages/${PAGES[name] || "runs"}.js`).catch(async error => {
      await get("/about", signal); // tells if the server is gone, which is why most modules cannot be loaded
      throw error;
    });
    if (signal.aborted) return;
    document.title = `${page.title} · Reelworks`;
    await page.render(main, rest, signal);
    if (!signal.aborted) main.focus({ preventScroll: true });
  } catch (error) {
    if (signal.aborted || error.name === "AbortError") return;
    const back = h("a", { href: "#/runs" }, "all runs");
    const where = error.field ? h("p", h("code", [error.field, error.value].filter(Boolean).join(" = "))) : null;
    fill(main, h("section.empty", h("h1", error.message), where, h("p", error.remedy || ""), back));
    if (!error.status) explain(error);
  }
}

takeToken();
addEventListener("hashchange", () => {
  takeToken();
  show();
});
// Keys: g and a letter go to a page, "/" to the search, "?" tells them.
let went = 0;
addEventListener("keydown", event => {
  if (event.target.closest("input, textarea, select, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "g") went = Date.now();
  else if (Date.now() - went < 1000 && { r: 1, d: 1, p: 1, n: 1 }[event.key])
    location.hash = { r: "#/runs", d: "#/data", p: "#/plan", n: "#/new" }[event.key];
  else if (event.key === "/") {
    const search = document.querySelector("[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  } else if (event.key === "?") help();
});

function help() {
  const keys = [
    ["g r", "runs"],
    ["g d", "data"],
    ["g p", "plan"],
    ["g n", "new"],
    ["/", "search"],
    ["← →", "the step before or after, in previews"],
    ["← → ↑ ↓", "another clip"],
    ["Enter", "open the clip"],
  ];
  const dialog = h(
    "dialog",
    { "aria-label": "Keys" },
    h("h2", "Keys"),
    h(
      "dl.pairs",
      keys.map(([key, what]) => [h("dt", h("kbd", key)), h("dd", what)]),
    ),
    h("form.actions", { method: "dialog" }, h("button.main", "Close")),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
show();
