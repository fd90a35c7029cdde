// What was typed and not saved: kept while other pages are looked at, and when this one is loaded again.

import { fill, h } from "./elements.js";
import { get } from "./server.js";
import { t } from "./texts.js";
import { repeat } from "./timing.js";

const MARK = `reelworks-draft ${location.pathname} `; // of this tab only: another tab has its own

/** The draft of a form, until it is saved or discarded; `box` tells of it, and `discard` shows again what is saved. */
export class Draft {
  constructor(discard, place = location.hash) {
    Object.assign(this, { discard, name: MARK + place, box: h("div", { role: "status" }) });
  }

  get found() {
    return JSON.parse(sessionStorage.getItem(this.name));
  }

  keep(value) {
    sessionStorage.setItem(this.name, JSON.stringify(value));
  }

  drop() {
    sessionStorage.removeItem(this.name);
    fill(this.box);
  }

  tell(...text) {
    const onclick = () => {
      this.drop();
      this.discard();
    };
    const button = h("button.small", { type: "button", onclick }, t`Discard the changes`);
    fill(this.box, h("p.notice.row", h("span", text), button));
  }

  tellRestored() {
    this.tell(t`Changes that were not saved are here again.`);
  }

  tellOutdated() {
    const remedy = t`save these changes under another name, or discard them.`;
    this.tell(t`The file was changed elsewhere, and saving would undo that: `, remedy);
  }
}

addEventListener("beforeunload", event => {
  if (Object.keys(sessionStorage).some(name => name.startsWith(MARK))) event.preventDefault();
});

/** Call a function when another tab or an editor has saved a recipe: its file has another digest than `known` tells. */
export function watchRecipe(key, signal, known, onChange) {
  repeat(1500, signal, async () => {
    const found = await get(`/new/recipe/${key}`, signal);
    if (found.digest !== known()) await onChange(found);
  });
}
