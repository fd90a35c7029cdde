// One clip: its whole frame with the crop, the frames that training reads, its caption, and why it is left out.

import { button, explain, toast } from "../dialogs.js";
import { fill, h } from "../elements.js";
import { get, post } from "../server.js";
import { t } from "../texts.js";
import { bytes, count, duration, percent, plural } from "../units.js";
import { captionBox } from "./caption.js";
import { pictureSide } from "./frames.js";

/** Show a clip of a grid in a dialog; arrow keys go to the clips beside it. */
export const showClip = options => new ClipDialog(options).open();

class ClipDialog {
  constructor({ key, index, grid, pictures, signal, onChange, onClose }) {
    Object.assign(this, { key, at: index, grid, pictures, signal, onChange, onClose, asked: 0 });
    this.content = h("div.clip");
    this.dialog = h("dialog.clip-box", { "aria-label": t`Clip` }, this.content);
  }

  open() {
    const { dialog, signal } = this;
    dialog.addEventListener("keydown", event => this.onKey(event));
    dialog.addEventListener("cancel", event => {
      event.preventDefault();
      this.close();
    });
    dialog.addEventListener("click", event => {
      if (event.target === dialog) this.close();
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      this.onClose(this.at);
    });
    signal.addEventListener("abort", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
    this.load();
  }

  close() {
    if (this.mayLeave(t`Close without saving the caption?`)) this.dialog.close();
  }

  async move(step) {
    const next = this.at + step;
    if (next < 0 || next >= this.grid.total || !this.mayLeave(t`Leave this clip without saving its caption?`)) return;
    this.at = next;
    await this.load();
  }

  /** Whether there is no caption to be saved, or the user agrees to lose it. */
  mayLeave(question) {
    const box = this.content.querySelector("textarea");
    if (!box || box.readOnly || box.value === box.dataset.saved) return true;
    if (!confirm(question)) return false;
    box.value = box.dataset.saved;
    return box.dispatchEvent(new Event("input"));
  }

  async load() {
    const now = ++this.asked;
    try {
      const line = await this.grid.item(this.at);
      const clip = await get(`/data/${this.key}/clips/${line.id}`, this.signal);
      if (now === this.asked) this.draw(clip);
    } catch (error) {
      explain(error);
    }
  }

  draw(clip) {
    const focused = this.content.querySelector(":focus")?.dataset.name;
    const { at } = this; // another clip may be shown when an answer about this one comes
    const changed = now => {
      this.onChange(at, now);
      if (at === this.at) this.draw(now);
    };
    const texts = h(
      "div.clip-texts",
      verdict(this.key, clip, changed),
      captionBox(this.key, clip, changed),
      factList(clip),
    );
    fill(this.content, this.top(clip), h("div.clip-parts", pictureSide(this.key, clip, this.pictures), texts));
    if (focused) this.content.querySelector(`[data-name="${focused}"]`)?.focus();
  }

  top(clip) {
    const { at, grid } = this;
    const arrow = (name, label, step, disabled, text) =>
      h(
        "button",
        { type: "button", "data-name": name, "aria-label": label, disabled, onclick: () => this.move(step) },
        text,
      );
    return h(
      "div.clip-top",
      h("h2", clip.path),
      h("span.gap"),
      h("span.quiet", t`${count(at + 1)} of ${count(grid.total)}`),
      arrow("before", t`the clip before`, -1, at === 0, "‹"),
      arrow("after", t`the next clip`, 1, at === grid.total - 1, "›"),
      h("button", { type: "button", "aria-label": t`close`, onclick: () => this.close() }, "×"),
    );
  }

  onKey(event) {
    if (event.target.closest("textarea, input")) return;
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    event.preventDefault();
    this.move(event.key === "ArrowLeft" ? -1 : 1);
  }
}

/** Whether a clip is trained, or why not, and the button that leaves it out. */
function verdict(key, clip, changed) {
  const act = clip.can_leave_out
    ? leaveOutButton(`/data/${key}/clips/${clip.id}`, clip.reason?.[0] === "in_exclude_file", changed)
    : null;
  act?.setAttribute("data-name", "leave-out");
  if (!clip.reason)
    return h(
      "div.verdict",
      h("p", h("b.ok", clip.bucket ? t`Trained` : t`Readable`), clip.bucket ? t` in ${clip.bucket}` : ""),
      act,
    );
  const [, label, remedy, choice] = clip.reason;
  const told =
    { planned: label[0].toUpperCase() + label.slice(1), chosen: t`Left out by you: ${label}` }[choice] ||
    t`Left out: ${label}`;
  return h(
    "div.verdict",
    h("div", h("p", h(choice ? "b" : "b.hint", told)), clip.why ? h("p", clip.why) : null, h("p.quiet", remedy)),
    act,
  );
}

function leaveOutButton(path, isListed, changed) {
  const change = (verb, note) => async () => {
    changed(await post(`${path}/${verb}`));
    toast(note);
  };
  return isListed
    ? button(t`Take back`, change("take-back", t`It is trained again, if nothing else leaves it out.`), {
        title: t`removes its line from the recipe's exclude_file`,
      })
    : button(
        t`Leave out`,
        change("leave-out", t`A line in the recipe's exclude_file leaves it out; the file is not touched.`),
        { title: t`adds a line to the recipe's exclude_file; the file is not touched` },
      );
}

function factList(clip) {
  const { facts } = clip;
  const isReadable = clip.source[0] > 0;
  const pairs = [
    [t`File`, clip.file],
    [t`Size`, isReadable && `${clip.source[0]} × ${clip.source[1]}`],
    [t`Length`, isReadable && clip.video && lengthText(clip)],
    [t`Cropped away`, clip.reading && percent(clip.lost)],
    [t`Coding`, codingText(facts)],
    [t`Sound`, facts.sound],
    [t`On disk`, bytes(clip.bytes)],
    [t`Dataset`, clip.dataset],
    [t`In its runs`, clip.coverage],
  ];
  return h(
    "dl.pairs",
    pairs.filter(([, value]) => value).map(([name, value]) => [h("dt", name), h("dd", value)]),
  );
}

function lengthText({ frames, seconds, fps, facts }) {
  const number = Number(fps.toPrecision(4));
  const rate = facts.variable_fps ? t`${number} per second, unevenly spaced` : t`${number} per second`;
  return t`${plural(frames, "frame")}, ${duration(seconds)} at ${rate}`;
}

function codingText(facts) {
  const ratio = facts.pixel_aspect_ratio;
  return [
    facts.codec,
    facts.pixel_format,
    facts.bit_depth > 8 && t`${facts.bit_depth} bits`,
    facts.hdr && `HDR (${facts.hdr})`,
    facts.interlaced && t`interlaced`,
    facts.has_alpha && t`transparent`,
    facts.rotation && t`turned by ${facts.rotation}°`,
    facts.mirrored && t`mirrored`,
    ratio && ratio !== 1 && t`pixels of ${ratio.toFixed(3)} : 1`,
  ]
    .filter(Boolean)
    .join(", ");
}
