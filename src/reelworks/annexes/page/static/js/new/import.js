// A recipe from another trainer's config, and what became of each of its keys and clips.

import { button } from "../dialogs.js";
import { badge, card, fill, h } from "../elements.js";
import { isOpen, scanLine, stopButton, watchJob } from "../jobs.js";
import { canChange, get, post } from "../server.js";
import { t } from "../texts.js";
import { plural } from "../units.js";

const ACCEPT = ".yaml,.yml,.toml,.json,.env,.sh,.bat,.ps1,.py,.txt";
const ASKS_FOR_MORE = /^(not|to|un)/; // of the words for what became of a key

export class ImportCard {
  constructor(footage, signal, onTrain) {
    Object.assign(this, { footage, signal, onTrain, files: [] });
    this.chosen = h(
      "p.quiet",
      t`ai-toolkit, diffusion-pipe, musubi-tuner, OneTrainer, sd-scripts, SimpleTuner, Open-Sora`,
    );
    this.input = h("input.hidden", { type: "file", multiple: true, accept: ACCEPT, "aria-label": t`Config files` });
    this.input.addEventListener("change", () => this.choose());
    this.go = button(t`Import`, () => this.run(), { kind: "main" });
    this.go.disabled = true;
    this.own = h("input", { type: "checkbox", checked: true });
    this.problem = h("p.error", { role: "alert" });
    this.result = h("div", { "aria-live": "polite" });
    const choose = button(t`Choose its config`, () => this.input.click(), { kind: "small" });
    this.element = h(
      "details.card.new-import",
      h("summary", t`Move a config of another trainer here`),
      h("p.quiet", t`Its config, and the dataset config or list of concepts that it names`),
      h("span.row", choose, this.input, this.go),
      this.chosen,
      h("label", this.own, " ", t`train on the footage chosen above`),
      this.problem,
      this.result,
    );
  }

  choose() {
    this.files = [...this.input.files];
    this.input.value = "";
    this.go.disabled = !canChange() || !this.files.length;
    this.chosen.textContent = this.files.map(file => file.name).join(", ");
  }

  async run(overwrite = false) {
    this.problem.textContent = "";
    const files = await Promise.all(this.files.map(async file => ({ name: file.name, text: await file.text() })));
    const name = this.files[0].name.replace(/\.[^.]*$/, "").replace(/[^\w.+-]+/g, "-") || "imported";
    const folder = this.own.checked ? this.footage.folder?.key || "" : "";
    try {
      this.follow(await post("/import", { files, folder, name, overwrite }));
    } catch (error) {
      this.problem.textContent = `${error.message}: ${error.remedy}`;
      if (error.code === "file-exists")
        this.problem.append(
          " ",
          button(t`Overwrite it`, () => this.run(true), { kind: "small" }),
        );
    }
  }

  follow(job) {
    const said = h("span", t`Reading the config`);
    fill(this.result, h("span.row", { role: "status" }, badge("", "busy"), said, stopButton(job.id, t`Cancel`)));
    watchJob(job.id, this.signal, found => {
      said.textContent = scanLine(found) || said.textContent;
      if (isOpen(found)) return;
      if (found.result && found.state === "done") return this.show(found);
      fill(this.result);
      this.problem.textContent = (found.error || t`it was stopped`).replace(/^error: /, "");
      this.problem.append(" ", h("a", { href: `#/jobs/${found.id}` }, t`what it printed`));
    });
  }

  async show({ result, subject }) {
    const about = await get(`/new/recipe/${subject}`, this.signal);
    const link = (page, text) => h("a.as-button", { href: `#/${page}/${about.key}` }, text);
    fill(
      this.result,
      card(
        h("div.row", h("h2", about.name), h("span.quiet", about.path)),
        h("p", t`Recognised as a config of ${result.trainer}`),
        fateLists(result.keys),
        result.clips ? clipLists(result.clips) : h("p.quiet", result.without_clips),
        h(
          "div.actions",
          link("plan", t`Plan`),
          link("new", t`All settings`),
          button(t`Train`, () => this.onTrain(about), { kind: "main" }),
        ),
      ),
    );
  }
}

function fateLists(keys) {
  const fates = [...new Set(keys.map(key => key.fate))].map(fate => [fate, keys.filter(key => key.fate === fate)]);
  return fates.map(([fate, found]) =>
    h(
      "details",
      { open: ASKS_FOR_MORE.test(fate) },
      h("summary", `${fate} (${found.length})`),
      h(
        "ul",
        found.map(({ key, remark }) => h("li", h("code", key), `: ${remark}`)),
      ),
    ),
  );
}

function clipLists(account) {
  const lists = (verb, byReason) =>
    Object.entries(byReason).map(([reason, names]) =>
      h("li", `${verb} ${names.length}: ${reason}: ${names.slice(0, 3).join(", ")}${names.length > 3 ? ", …" : ""}`),
    );
  const rest = Object.entries(account.rest).map(([bucket, number]) =>
    h("li", t`leaves out ${number} in each epoch: they fill no batch of ${bucket}`),
  );
  return h(
    "div",
    h("p", t`${account.trainer} trains ${account.former_trained} of ${plural(account.clips, "clip")} in an epoch`),
    h("ul", lists(t`leaves out`, account.left_out), rest),
    h("p", t`This recipe trains ${account.here_trained}`),
    h("ul", lists(t`leaves out`, account.here_left_out)),
  );
}
