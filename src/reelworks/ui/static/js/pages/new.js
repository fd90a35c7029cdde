// A first LoRA from footage, a model and a trigger word; and any recipe as form and text.

import { button, toast } from "../dialogs.js";
import { Draft } from "../drafts.js";
import { badge, card, fill, h, progress } from "../elements.js";
import { canChange, get, post, put } from "../server.js";
import { every } from "../timing.js";
import { train } from "../training.js";
import { bytes, count, duration, plural } from "../units.js";
import { renderForm } from "./recipe_form.js";

export const title = "New";

const PARTS = ["c1", "c2", "c3", "c5", "c6", "c7", "c8", "c4"];
const MEDIA =
  /\.(mp4|mov|mkv|webm|avi|m4v|mpg|mpeg|3g2|3gp|asf|f4v|flv|m2ts|mts|mxf|ogv|qt|ts|vob|wmv|png|jpe?g|webp|bmp|apng|avif|gif|heic|heif|hif|jfif|jpe|tiff?|txt)$/i;
const AT_ONCE = 3; // uploads
const TEXTS = ["trigger", "name", "vram", "weights"];

export async function render(main, [key], signal) {
  return key ? renderForm(main, key, signal) : new NewLora(main, signal).open();
}

class NewLora {
  constructor(main, signal) {
    Object.assign(this, { main, signal, folder: null, model: null, named: false });
    this.kept = new Draft(() => {
      this.named = false;
      return this.open();
    });
  }

  async open() {
    [this.models, this.folders] = await Promise.all([
      get("/new/models", this.signal),
      get("/new/folders", this.signal),
    ]);
    const former = this.kept.found;
    this.folder = this.folders.find(one => one.key === former?.folder) || only(this.folders);
    this.model = this.models.find(one => one.name === former?.model) || null;
    this.result = h("div", { "aria-live": "polite" });
    this.name = h("input", {
      type: "text",
      maxlength: 100,
      "data-field": "name",
      oninput: () => {
        this.named = true;
      },
    });
    this.trigger = h("input", {
      type: "text",
      maxlength: 200,
      placeholder: "ohwx cat",
      "data-field": "--trigger",
      "aria-describedby": "trigger-note",
    });
    this.vram = h("input", {
      type: "number",
      min: 1,
      max: 100000,
      step: "any",
      placeholder: "this machine's",
      "data-field": "--vram",
    });
    this.weights = h("input", {
      type: "text",
      maxlength: 1000,
      placeholder: "the published ones",
      "data-field": "--weights",
    });
    this.companions = h("div.new-companions");
    this.problems = h("p.error", { role: "alert" });
    this.go = button("Make the recipe", () => this.make(), { kind: "main" });
    const steps = h("div.new-steps");
    fill(
      this.main,
      h("div.page-head", h("h1", "New LoRA"), h("span.gap"), h("a", { href: "#/plan" }, "Recipes")),
      this.kept.box,
      fill(
        steps,
        card(h("h2", h("span.new-number", "1"), "Footage"), this.footage()),
        card(h("h2", h("span.new-number", "2"), "Model"), this.modelList(), this.companions),
        card(
          h("h2", h("span.new-number", "3"), "Trigger word"),
          h("label.new-field", h("span.hidden", "Trigger word"), this.trigger),
          h(
            "p.quiet",
            { id: "trigger-note" },
            "A rare word that calls what is learnt. It is put before every caption, and is the caption of files without one; leave it empty if the captions say it.",
          ),
          h(
            "details.new-more",
            h("summary", "More"),
            h(
              "div.fields",
              h("label", h("span", "Name of the recipe"), this.name),
              h("label", h("span", "GPU memory, GB"), this.vram),
              h("label", h("span", "Other weights"), this.weights),
            ),
          ),
        ),
      ),
      h("div.new-go", this.problems, this.go),
      this.result,
    );
    if (this.model) this.choose(this.model);
    if (former) this.restore(former);
    for (const kind of ["input", "change"]) steps.addEventListener(kind, () => this.keep());
    this.tell();
  }

  keep() {
    const texts = Object.fromEntries(TEXTS.map(name => [name, this[name].value]));
    const companions = Object.fromEntries(
      Object.entries(this.needed || {}).map(([kind, select]) => [kind, select.value]),
    );
    this.kept.keep({ folder: this.folder?.key, model: this.model?.name, named: this.named, texts, companions });
  }

  restore({ named, texts, companions }) {
    for (const [kind, value] of Object.entries(companions)) if (this.needed?.[kind]) this.needed[kind].value = value;
    for (const name of TEXTS) this[name].value = texts[name];
    this.named = named;
    this.kept.restored();
  }

  tell() {
    this.go.disabled = !canChange() || !this.folder || !this.model;
    this.go.title =
      this.folder && this.model
        ? ""
        : `choose ${[this.folder ? "" : "footage", this.model ? "" : "a model"].filter(Boolean).join(" and ")} first`;
    if (!this.named && this.folder && this.model)
      this.name.value = `${
        this.folder.path
          .split("/")
          .pop()
          .replace(/[^\w.+-]+/g, "-")
          .replace(/^[^a-z0-9]+/i, "") || "lora"
      }-${this.model.name}`;
  }

  // Footage: a folder that is there, or files from elsewhere.
  footage() {
    this.list = h("div.new-folders", { role: "radiogroup", "aria-label": "Folder of footage" });
    const files = h("input.hidden", {
      type: "file",
      multiple: true,
      id: "new-files",
      tabindex: -1,
      "aria-label": "Files of footage",
      accept: "image/*,video/*,.txt,.mkv,.heic",
    });
    const folder = h("input.hidden", {
      type: "file",
      webkitdirectory: true,
      multiple: true,
      id: "new-folder",
      tabindex: -1,
      "aria-label": "Folder of footage",
    });
    for (const input of [files, folder])
      input.addEventListener("change", () => {
        this.take([...input.files].map(file => ({ file, path: file.webkitRelativePath || file.name })));
        input.value = "";
      });
    const drop = h(
      "div.new-drop",
      h("p", "Drop a folder or files here"),
      h("p.quiet", "Pictures, videos, and captions as text files of the same name"),
      h(
        "span.row",
        h("button.small", { type: "button", disabled: !canChange(), onclick: () => folder.click() }, "Choose a folder"),
        h("button.small", { type: "button", disabled: !canChange(), onclick: () => files.click() }, "Choose files"),
        files,
        folder,
      ),
    );
    for (const kind of ["dragenter", "dragover"])
      drop.addEventListener(kind, event => {
        event.preventDefault();
        drop.classList.add("over");
      });
    for (const kind of ["dragleave", "drop"]) drop.addEventListener(kind, () => drop.classList.remove("over"));
    drop.addEventListener("drop", async event => {
      event.preventDefault();
      const entries = [...event.dataTransfer.items].map(item => item.webkitGetAsEntry?.()).filter(Boolean);
      this.take((await Promise.all(entries.map(entry => walk(entry, "")))).flat());
    });
    this.sending = h("div", { role: "status" });
    this.drawFolders();
    return [drop, this.sending, this.list];
  }

  drawFolders() {
    if (!this.folders.length) return fill(this.list, h("p.quiet", "The page's folders hold no footage yet."));
    fill(
      this.list,
      this.folders.map(folder =>
        h(
          "label.new-folder",
          h("input", {
            type: "radio",
            name: "folder",
            checked: this.folder?.key === folder.key,
            onchange: () => {
              this.folder = folder;
              this.tell();
            },
          }),
          h("span", folder.path === "." ? "this folder itself" : folder.path),
          h(
            "span.quiet",
            [
              folder.pictures && plural(folder.pictures, "picture"),
              folder.videos && plural(folder.videos, "video"),
              folder.captions ? plural(folder.captions, "caption") : "no captions",
            ]
              .filter(Boolean)
              .join(", "),
          ),
        ),
      ),
    );
  }

  /** Send files into a new folder, some at a time. */
  async take(found) {
    const wanted = found.filter(one => MEDIA.test(one.path) && !one.path.split("/").some(part => part.startsWith(".")));
    if (!wanted.length) return toast("these are neither pictures nor videos nor captions", "bad");
    const top = wanted[0].path.split("/")[0];
    const whole = wanted.every(one => one.path.includes("/") && one.path.split("/")[0] === top);
    const name = clean(
      whole ? top : `footage-${new Date().toISOString().slice(0, 16).replace("T", "-").replace(":", "")}`,
    );
    const total = wanted.reduce((sum, one) => sum + one.file.size, 0);
    const control = new AbortController();
    const failed = [];
    let sent = 0;
    let files = 0;
    let folder = null;
    this.signal.addEventListener("abort", () => control.abort());
    const bar = h("div");
    const said = h("span");
    const stop = h("button.small", { type: "button", onclick: () => control.abort() }, "Cancel");
    const draw = () => {
      fill(bar, progress(total ? sent / total : 1, "share of the files sent"));
      said.textContent = `${count(files)} of ${plural(wanted.length, "file")}, ${bytes(sent)} of ${bytes(total)}`;
    };
    fill(this.sending, bar, h("span.row.new-sending", said, stop));
    draw();
    const queue = [...wanted];
    const worker = async () => {
      while (queue.length && !control.signal.aborted) {
        const { file, path } = queue.shift();
        const inside = whole ? path.split("/").slice(1) : [path.split("/").pop()];
        try {
          folder = (
            await put(
              `/new/footage/${encodeURIComponent(name)}/${inside.map(encodeURIComponent).join("/")}`,
              file,
              control.signal,
            )
          ).folder;
        } catch (error) {
          if (error.name === "AbortError") return;
          failed.push([path, error]);
          if (["upload-too-large", "refused"].includes(error.code) || error.status === 0) return control.abort();
        }
        files += 1;
        sent += file.size;
        draw();
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, worker));
    if (this.signal.aborted) return;
    fill(
      this.sending,
      failed.length || control.signal.aborted
        ? h(
            "details",
            { open: true },
            h(
              "summary.oops",
              control.signal.aborted && !failed.length
                ? `cancelled after ${plural(files, "file")}`
                : `${plural(failed.length, "file")} could not be taken`,
            ),
            h(
              "ul.files",
              failed
                .slice(0, 50)
                .map(([path, error]) =>
                  h("li", h("code", path), h("span.quiet", ` ${error.message}; ${error.remedy || ""}`)),
                ),
            ),
          )
        : null,
    );
    this.folders = await get("/new/folders", this.signal);
    this.folder = this.folders.find(one => one.key === folder) || this.folder;
    this.drawFolders();
    this.tell();
  }

  // Models by family.
  modelList() {
    const search = h("input", { type: "search", placeholder: "wan, flux, qwen …", "aria-label": "Search models" });
    const list = h("div.new-models", { role: "radiogroup", "aria-label": "Model", tabindex: "-1" });
    const draw = () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const found = this.models.filter(model =>
        words.every(word =>
          [
            model.name,
            model.family,
            model.weights || "",
            ...model.also,
            model.lines ? "video clips" : "pictures images",
          ]
            .join(" ")
            .toLowerCase()
            .includes(word),
        ),
      );
      const groups = new Map();
      for (const model of found) {
        const group = model.published ? model.family : "tiny, with fresh weights, for experiments";
        groups.set(group, [...(groups.get(group) || []), model]);
      }
      const order = [...groups].sort((a, b) => Number(a[0].startsWith("tiny")) - Number(b[0].startsWith("tiny")));
      fill(
        list,
        order.length
          ? order.map(([family, models]) =>
              h(
                "fieldset",
                h("legend", family),
                models.map(model => this.modelRow(model)),
              ),
            )
          : h("p.quiet", "No model of this name can be trained here."),
      );
    };
    search.addEventListener("input", draw);
    draw();
    return [search, list];
  }

  modelRow(model) {
    const facts = [
      model.lines
        ? `clips up to ${model.lines}p × ${model.num_frames}${model.fps ? ` at ${model.fps} fps` : ""}`
        : `pictures up to ${model.side} px`,
      model.sound && "with sound",
      model.needs.length && `needs ${model.needs.join(" and ")}`,
      model.distilled && "distilled",
    ].filter(Boolean);
    return h(
      "label.new-model",
      h("input", {
        type: "radio",
        name: "model",
        value: model.name,
        checked: this.model === model,
        onchange: () => this.choose(model),
      }),
      h("span", model.name),
      h("span.quiet", facts.join(" · ")),
    );
  }

  choose(model) {
    this.model = model;
    const left = only(this.folders.filter(folder => folder !== this.folder)); // what is not the footage
    this.needed = Object.fromEntries(
      model.needs.map(kind => [
        kind,
        h(
          "select",
          { "data-field": `--${kind}` },
          h("option", { value: "" }, "choose a folder"),
          this.folders.map(folder => h("option", { value: folder.key, selected: folder === left }, folder.path)),
        ),
      ]),
    );
    fill(
      this.companions,
      Object.entries(this.needed).map(([kind, select]) =>
        h("label.new-field", h("span", `Folder of the ${kind}s, with the names of the footage`), select),
      ),
    );
    this.tell();
  }

  // The recipe, and what it will take.
  async make(overwrite = false) {
    this.fault(null);
    const wish = {
      folder: this.folder.key,
      model: this.model.name,
      trigger: this.trigger.value.trim(),
      weights: this.weights.value.trim(),
      name: this.name.value,
      overwrite,
      vram_gb: this.vram.value ? this.vram.valueAsNumber : null,
      companions: Object.fromEntries(
        Object.entries(this.needed || {})
          .filter(([, select]) => select.value)
          .map(([kind, select]) => [kind, select.value]),
      ),
    };
    let job;
    try {
      job = await post("/new/lora", wish);
    } catch (error) {
      this.fault(error);
      if (error.code === "file-exists")
        fill(
          this.result,
          h(
            "p.new-again",
            `${error.value} exists already. `,
            button("Overwrite it", () => this.make(true), { kind: "small" }),
            " ",
            h("span.quiet", "or give the recipe another name under More"),
          ),
        );
      return;
    }
    this.follow(job);
  }

  fault(error) {
    for (const input of this.main.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
    this.problems.textContent = error ? `${error.message}${error.remedy ? `: ${error.remedy}` : ""}` : "";
    if (!error) return;
    const field = { vram_gb: "--vram", trigger: "--trigger", weights: "--weights" }[error.field] || error.field || "";
    const input = this.main.querySelector(`[data-field="${CSS.escape(field)}"]`);
    input?.setAttribute("aria-invalid", "true");
    if (input?.closest("details")) input.closest("details").open = true;
  }

  follow(job) {
    const said = h("span");
    const control = new AbortController();
    this.signal.addEventListener("abort", () => control.abort());
    fill(
      this.result,
      card(
        h(
          "span.row",
          { role: "status" },
          badge("", "busy"),
          said,
          button("Cancel", () => post(`/jobs/${job.id}/stop`), { kind: "small" }),
        ),
      ),
    );
    const began = Date.now();
    const look = async () => {
      const found = await get(`/jobs/${job.id}`, this.signal);
      said.textContent =
        found.output
          .split("\n")
          .filter(line => line.startsWith("scanning: "))
          .pop() ||
        `Reading the footage, and computing the memory that ${this.model.name} takes, without its weights: ${duration((Date.now() - began) / 1000)}`;
      if (["waiting", "running"].includes(found.state)) return;
      control.abort();
      if (found.result && found.state === "done") return this.show(found);
      const text = found.error || "it was stopped";
      const [first, ...rest] = text.replace(/^error: /, "").split("\n");
      const field = /(--\w+)/.exec(first)?.[1];
      fill(this.result);
      this.fault({ message: first, remedy: rest.join(" ").replace(/^\s*remedy: /, ""), field });
      this.problems.append(" ", h("a", { href: `#/jobs/${job.id}` }, "what it printed"));
    };
    look();
    every(700, control.signal, look);
  }

  async show(job) {
    this.kept.drop();
    const found = job.result;
    const key = job.subject;
    const about = await get(`/new/recipe/${key}`, this.signal);
    const { total, host, ...memory } = found.estimate.memory;
    const parts = Object.entries(memory)
      .filter(([, size]) => size > total / 1000)
      .sort((a, b) => b[1] - a[1]);
    const fits = {
      true: ["It fits into the GPU's memory", "ok"],
      false: ["It does not fit", "oops"],
      null: ["Give the GPU's memory under More to see whether it fits", "hint"],
    }[String(found.fits)];
    const settings = Object.entries(found.settings || {});
    fill(
      this.result,
      h(
        "section.card.new-result",
        h("div.row", h("h2", about.name), h("span.quiet", about.path), h("span.gap")),
        h(
          "dl.facts",
          fact(
            "Footage",
            [found.pictures && plural(found.pictures, "picture"), found.clips && plural(found.clips, "clip")]
              .filter(Boolean)
              .join(", "),
            found.uncaptioned ? `${count(found.uncaptioned)} without a caption` : "all with captions",
          ),
          fact("Memory", bytes(total), host > 5e7 ? `and ${bytes(host)} of CPU memory` : "estimated"),
          fact("Steps", count(found.steps), `${plural(found.estimate.trained_parameters, "trained parameter")}`),
          fact(
            "Time",
            `about ${duration(Math.max(1, found.steps * found.seconds_per_step))}`,
            `estimated for a GPU of ${found.tflops} TFLOP/s`,
          ),
        ),
        h("p", { class: fits[1] }, fits[0]),
        h(
          "div.bar",
          { role: "img", "aria-label": parts.map(([name, size]) => `${name} ${bytes(size)}`).join(", ") },
          parts.map(([, size], i) =>
            h("span", { style: { "--share": size / total, "--tone": `var(--${PARTS[i % PARTS.length]})` } }),
          ),
        ),
        h(
          "div.legend",
          parts.map(([name, size], i) =>
            h("span", { style: { "--tone": `var(--${PARTS[i % PARTS.length]})` } }, `${name} `, h("b", bytes(size))),
          ),
        ),
        settings.length
          ? h(
              "p.quiet",
              `Settings that save memory: ${settings.map(([name, value]) => `${name} = ${value}`).join(", ")}`,
            )
          : null,
        h(
          "p",
          about.downloads?.length
            ? `Downloaded when training starts: ${about.downloads.join(", ")}`
            : "Nothing has to be downloaded.",
        ),
        found.remarks.length
          ? h(
              "ul.cures",
              found.remarks.map(text => h("li", text)),
            )
          : null,
        h(
          "div.actions",
          h("a.as-button", { href: `#/data/${key}` }, "See the crops"),
          h("a.as-button", { href: `#/plan/${key}` }, "Plan"),
          h("a.as-button", { href: `#/new/${key}` }, "All settings"),
          button("Train", () => train(key, about.run, this.signal), { kind: "main" }),
        ),
      ),
    );
    this.result.scrollIntoView({
      behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth",
      block: "nearest",
    });
  }
}

const only = list => (list.length === 1 ? list[0] : null);
const fact = (name, value, note) => h("div.card", h("dt", name), h("dd", value), h("dd.note", note));
const clean = name =>
  name
    .replace(/[^\p{L}\p{N} .+_-]+/gu, "-")
    .replace(/^[^\p{L}\p{N}]+/u, "")
    .replace(/[ .]+$/, "")
    .slice(0, 80) || "footage";

/** All files below a dropped folder. */
async function walk(entry, prefix) {
  if (entry.isFile)
    return [{ file: await new Promise((resolve, reject) => entry.file(resolve, reject)), path: prefix + entry.name }];
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    // a reader gives a hundred at a time
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) break;
    for (const one of some) found.push(...(await walk(one, `${prefix}${entry.name}/`)));
  }
  return found;
}
