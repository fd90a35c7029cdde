// The footage of a new recipe: a folder that is there, or files that are sent into a new one.

import { toast } from "../dialogs.js";
import { fill, h } from "../elements.js";
import { canChange, get } from "../server.js";
import { t } from "../texts.js";
import { plural } from "../units.js";
import { isFootage, Upload } from "./upload.js";

/** The only element of a list; null if there are none or more. */
export const onlyElement = list => (list.length === 1 ? list[0] : null);

export class Footage {
  constructor(folders, key, signal, onChange) {
    Object.assign(this, { folders, signal, onChange });
    this.folder = folders.find(one => one.key === key) || onlyElement(folders);
    this.list = h("div.new-folders", { role: "radiogroup", "aria-label": t`Folder of footage` });
    this.sending = h("div", { role: "status" });
    this.element = [this.dropPlace(), this.sending, this.list];
    this.draw();
  }

  dropPlace() {
    const accept = "image/*,video/*,.txt,.mkv,.heic";
    const files = this.fileInput({ id: "new-files", "aria-label": t`Files of footage`, accept });
    const folder = this.fileInput({ id: "new-folder", "aria-label": t`Folder of footage`, webkitdirectory: true });
    const choose = (text, input) =>
      h("button.small", { type: "button", disabled: !canChange(), onclick: () => input.click() }, text);
    const place = h(
      "div.new-drop",
      h("p", t`Drop a folder or files here`),
      h("p.quiet", t`Pictures, videos, and captions as text files of the same name`),
      h("span.row", choose(t`Choose a folder`, folder), choose(t`Choose files`, files), files, folder),
    );
    for (const kind of ["dragenter", "dragover"])
      place.addEventListener(kind, event => {
        event.preventDefault();
        place.classList.add("over");
      });
    for (const kind of ["dragleave", "drop"]) place.addEventListener(kind, () => place.classList.remove("over"));
    place.addEventListener("drop", async event => {
      event.preventDefault();
      const entries = [...event.dataTransfer.items].map(item => item.webkitGetAsEntry?.()).filter(Boolean);
      this.take((await Promise.all(entries.map(entry => listFiles(entry)))).flat());
    });
    return place;
  }

  fileInput(attributes) {
    const input = h("input.hidden", { type: "file", multiple: true, tabindex: -1, ...attributes });
    input.addEventListener("change", () => {
      this.take([...input.files].map(file => ({ file, path: file.webkitRelativePath || file.name })));
      input.value = "";
    });
    return input;
  }

  draw() {
    if (!this.folders.length) return fill(this.list, h("p.quiet", t`The page's folders hold no footage yet.`));
    fill(
      this.list,
      this.folders.map(folder =>
        h(
          "label.new-folder",
          h("input", {
            type: "radio",
            name: "folder",
            checked: this.folder?.key === folder.key,
            onchange: () => this.choose(folder),
          }),
          h("span", folder.path === "." ? t`this folder itself` : folder.path),
          h("span.quiet", contentText(folder)),
        ),
      ),
    );
  }

  choose(folder) {
    this.folder = folder;
    this.onChange();
  }

  /** Send files into a new folder, and choose it. */
  async take(found) {
    const wanted = found.filter(isFootage);
    if (!wanted.length) return toast(t`these are neither pictures nor videos nor captions`, "bad");
    const upload = new Upload(wanted, this.sending, this.signal);
    await upload.run();
    if (this.signal.aborted) return;
    this.folders = await get("/new/folders", this.signal);
    this.folder = this.folders.find(one => one.key === upload.folder) || this.folder;
    this.draw();
    this.onChange();
  }
}

function contentText({ pictures, videos, captions }) {
  const counts = [
    pictures && plural(pictures, "picture"),
    videos && plural(videos, "video"),
    captions ? plural(captions, "caption") : t`no captions`,
  ];
  return counts.filter(Boolean).join(", ");
}

/** All files below a dropped file or folder. */
async function listFiles(entry, prefix = "") {
  if (entry.isFile)
    return [{ file: await new Promise((resolve, reject) => entry.file(resolve, reject)), path: prefix + entry.name }];
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject)); // a hundred at a time
    if (!some.length) return found;
    for (const one of some) found.push(...(await listFiles(one, `${prefix}${entry.name}/`)));
  }
}
