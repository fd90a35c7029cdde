// What the page tells and asks: notes in a corner, buttons that report what went wrong, questions.

import { h } from "./elements.js";
import { canChange } from "./server.js";
import { t } from "./texts.js";

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

/** A button that does something that takes time; it does nothing meanwhile, and is disabled without the token. */
export function button(text, action, { kind = "", title = null, disabled = false } = {}) {
  const element = h(`button${kind && `.${kind}`}`, { type: "button", title, disabled: disabled || !canChange() }, text);
  element.addEventListener("click", async () => {
    if (element.ariaBusy) return; // not `disabled`, which belongs to whoever made the button
    element.ariaBusy = "true";
    try {
      await action();
    } catch (error) {
      explain(error);
    } finally {
      element.ariaBusy = null;
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
        h("button", { value: "" }, t`Cancel`),
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
