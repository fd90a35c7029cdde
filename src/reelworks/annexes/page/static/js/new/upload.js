// Files of footage on their way into a new folder, some at a time.

import { fill, h, progressBar } from "../elements.js";
import { put } from "../server.js";
import { t } from "../texts.js";
import { bytes, count, plural } from "../units.js";

const AT_ONCE = 3;
const VIDEOS = "mp4|mov|mkv|webm|avi|m4v|mpg|mpeg|3g2|3gp|asf|f4v|flv|m2ts|mts|mxf|ogv|qt|ts|vob|wmv";
const PICTURES = "png|jpe?g|webp|bmp|apng|avif|gif|heic|heif|hif|jfif|jpe|tiff?";
const FOOTAGE = new RegExp(`\\.(${VIDEOS}|${PICTURES}|txt)$`, "i");
const FATAL = ["upload-too-large", "refused"]; // for every other file too

export const isFootage = ({ path }) => FOOTAGE.test(path) && !path.split("/").some(part => part.startsWith("."));

export class Upload {
  /** @param found {file, path} of each, with the path below what was dropped or chosen */
  constructor(found, place, signal) {
    const top = found[0].path.split("/")[0];
    this.isFolder = found.every(({ path }) => path.includes("/") && path.split("/")[0] === top);
    this.name = folderName(
      this.isFolder ? top : `footage-${new Date().toISOString().slice(0, 16).replace("T", "-").replace(":", "")}`,
    );
    Object.assign(this, {
      queue: [...found],
      number: found.length,
      place,
      failed: [],
      sent: 0,
      files: 0,
      folder: null,
    });
    this.total = found.reduce((sum, { file }) => sum + file.size, 0);
    this.control = new AbortController();
    signal.addEventListener("abort", () => this.control.abort());
  }

  /** Send the files; afterwards `folder` is the key of the folder that has them. */
  async run() {
    this.bar = h("div");
    this.said = h("span");
    const cancel = h("button.small", { type: "button", onclick: () => this.control.abort() }, t`Cancel`);
    fill(this.place, this.bar, h("span.row.new-sending", this.said, cancel));
    this.draw();
    await Promise.all(Array.from({ length: AT_ONCE }, () => this.work()));
    fill(this.place, this.failed.length || this.control.signal.aborted ? this.failures() : null);
  }

  async work() {
    while (this.queue.length && !this.control.signal.aborted) {
      const { file, path } = this.queue.shift();
      try {
        this.folder = (await put(this.address(path), file, this.control.signal)).folder;
      } catch (error) {
        if (error.name === "AbortError") return;
        this.failed.push([path, error]);
        if (FATAL.includes(error.code) || error.status === 0) return this.control.abort();
      }
      this.files += 1;
      this.sent += file.size;
      this.draw();
    }
  }

  address(path) {
    const inside = this.isFolder ? path.split("/").slice(1) : path.split("/").slice(-1);
    return `/new/footage/${[this.name, ...inside].map(encodeURIComponent).join("/")}`;
  }

  draw() {
    fill(this.bar, progressBar(this.total ? this.sent / this.total : 1, t`share of the files sent`));
    const files = t`${count(this.files)} of ${plural(this.number, "file")}`;
    this.said.textContent = t`${files}, ${bytes(this.sent)} of ${bytes(this.total)}`;
  }

  failures() {
    const { failed, files } = this;
    const told = failed.length
      ? t`${plural(failed.length, "file")} could not be taken`
      : t`cancelled after ${plural(files, "file")}`;
    const line = ([path, error]) =>
      h("li", h("code", path), h("span.quiet", ` ${error.message}; ${error.remedy || ""}`));
    return h("details", { open: true }, h("summary.oops", told), h("ul.files", failed.slice(0, 50).map(line)));
  }
}

/** A name that the server takes for a folder. */
function folderName(name) {
  const allowed = name.replace(/[^\p{L}\p{N} .+_-]+/gu, "-").replace(/^[^\p{L}\p{N}]+/u, "");
  return allowed.replace(/[ .]+$/, "").slice(0, 80) || "footage";
}
