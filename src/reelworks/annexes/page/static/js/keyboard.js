// Keys: g and a letter go to a page, "/" to the search, "?" tells them.

import { h } from "./elements.js";
import { t } from "./texts.js";

const ADDRESSES = { r: "#/runs", d: "#/data", p: "#/plan", n: "#/new" };
const KEYS = [
  ["g r", t`runs`],
  ["g d", t`data`],
  ["g p", t`plan`],
  ["g n", t`new`],
  ["/", t`search`],
  ["← →", t`the step before or after, in previews`],
  ["← → ↑ ↓", t`another clip`],
  ["Enter", t`open the clip`],
];
const PAUSE = 1000; // milliseconds, at most, between g and the letter

export function listenToKeys() {
  let pressed = -Infinity; // when g was
  addEventListener("keydown", event => {
    if (event.target.closest("input, textarea, select, dialog") || event.ctrlKey || event.metaKey || event.altKey)
      return;
    const address = ADDRESSES[event.key];
    if (event.key === "g") pressed = Date.now();
    else if (address && Date.now() - pressed < PAUSE) location.hash = address;
    else if (event.key === "/") focusSearch(event);
    else if (event.key === "?") showKeys();
  });
}

function focusSearch(event) {
  const search = document.querySelector("[type=search]");
  if (!search) return;
  event.preventDefault();
  search.focus();
}

function showKeys() {
  const pairs = KEYS.map(([key, text]) => [h("dt", h("kbd", key)), h("dd", text)]);
  const close = h("form.actions", { method: "dialog" }, h("button.main", t`Close`));
  const dialog = h("dialog", { "aria-label": t`Keys` }, h("h2", t`Keys`), h("dl.pairs", pairs), close);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
