// A recipe saved under another name.

import { ask, toast } from "../dialogs.js";
import { h } from "../elements.js";
import { post } from "../server.js";
import { t } from "../texts.js";

const NOTE = t`Beside this recipe, with a run folder of its own; it uses the same catalog.`;

/** Ask for a name and save what `wish` returns under it; returns the new recipe's key, or null if it was cancelled. */
export async function saveAs(path, formerName, wish) {
  const name = h("input", { type: "text", value: `${formerName}-2`, maxlength: 100, "aria-describedby": "save-note" });
  const content = h("div.fields", h("label", h("span", t`Name`), name), h("p.quiet", { id: "save-note" }, NOTE));
  if (!(await ask(t`Save as a new recipe`, content, t`Save`))) return null;
  const told = await postNamed(path, { ...wish(), name: name.value });
  if (!told) return null;
  toast(t`saved as ${told.path}`);
  return told.key;
}

async function postNamed(path, wish) {
  try {
    return await post(path, wish);
  } catch (error) {
    if (error.code !== "file-exists") throw error;
    const agreed = await ask(
      t`Overwrite ${error.value}?`,
      h("p", t`The recipe of this name is replaced.`),
      t`Overwrite`,
    );
    return agreed ? post(path, { ...wish, overwrite: true }) : null;
  }
}
