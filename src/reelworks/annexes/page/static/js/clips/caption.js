// The caption of a clip, which may be written.

import { button, toast } from "../dialogs.js";
import { Draft } from "../drafts.js";
import { h } from "../elements.js";
import { canChange, post } from "../server.js";
import { t } from "../texts.js";

/** The caption's text field, whose text is a draft until it is saved; `changed` takes the clip with its new caption. */
export function captionBox(key, clip, changed) {
  const box = h("textarea", {
    rows: "4",
    value: clip.caption || "",
    readonly: !(clip.can_write_caption && canChange()),
    "aria-label": t`caption`,
    "data-name": "caption",
    spellcheck: "true",
  });
  box.dataset.saved = clip.caption || "";
  const undo = () => {
    box.value = box.dataset.saved;
    update();
  };
  const kept = new Draft(undo, `caption of ${key} ${clip.path}`); // its `id` is of this content only
  const former = kept.found;
  const save = button(t`Save`, () => saveCaption(key, clip, box, update, changed), { kind: "main" });
  const keys = h("span.quiet", h("kbd", "Ctrl"), " ", h("kbd", "Enter"));
  const actions = h("div.row", { hidden: true }, save, h("button", { type: "button", onclick: undo }, t`Undo`), keys);
  const update = () => {
    const isNew = box.value !== box.dataset.saved;
    actions.hidden = !isNew;
    isNew ? kept.keep(box.value) : kept.drop();
  };
  box.addEventListener("input", update);
  box.addEventListener("keydown", event => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !actions.hidden) save.click();
    if (event.key !== "Escape" || box.value === box.dataset.saved) return;
    event.stopPropagation();
    event.preventDefault();
    undo();
  });
  if (former !== null && !box.readOnly && former !== box.dataset.saved) {
    box.value = former;
    update();
    kept.tellRestored();
  }
  return h("div.caption", h("h3", t`Caption`), kept.box, box, notes(clip), actions);
}

async function saveCaption(key, clip, box, update, changed) {
  const typed = box.value;
  const text = typed.trim();
  const answer = await post(`/data/${key}/clips/${clip.id}/caption`, { text });
  box.dataset.saved = text;
  if (box.value === typed) box.value = text;
  update();
  changed({ ...(answer.clip || clip), caption: text });
  if (answer.problem)
    toast(t`The caption is written; the catalog follows with the next scan: ${answer.problem}`, "bad");
  else toast(answer.job ? t`Written. The catalog is being brought up to date.` : t`Written, and the catalog has it.`);
}

/** What is to be known of a caption: whether there is one, what the model is given, and where it comes from. */
function notes({ caption, can_write_caption: isWritable, shown_caption: given, caption_source: source }) {
  return [
    h("span.quiet", caption === null && !isWritable ? t`no caption` : ""),
    given !== null && given !== caption ? h("p.quiet", t`The model is given: “${given}”`) : null,
    h("p.quiet", isWritable ? t`In ${source}.` : t`It comes from ${source}.`),
  ];
}
