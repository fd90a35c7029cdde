// One clip: its whole frame with the crop, the frames that training reads, its caption, and why it is left out.

import { button, explain, toast } from "./dialogs.js";
import { Draft } from "./drafts.js";
import { fill, h } from "./elements.js";
import { canChange, get, post } from "./server.js";
import { bytes, duration, percent, plural } from "./units.js";

/** Show a clip of a grid in a dialog; arrow keys go to the clips beside it. */
export function showClip({ key, index, grid, pictures, signal, onChange, onClose }) {
  const content = h("div.clip");
  const dialog = h("dialog.clip-box", { "aria-label": "Clip" }, content);
  let at = index;
  let asked = 0;
  const move = async step => {
    const next = at + step;
    if (next < 0 || next >= grid.total || !leaves("Leave this clip without saving its caption?")) return;
    at = next;
    await load();
  };
  const leaves = question => {
    const box = content.querySelector("textarea");
    if (!box || box.readOnly || box.value === box.dataset.saved) return true;
    if (!confirm(question)) return false;
    box.value = box.dataset.saved;
    return box.dispatchEvent(new Event("input"));
  };
  const load = async () => {
    const now = ++asked;
    try {
      const line = await grid.item(at);
      const clip = await get(`/data/${key}/clips/${line.id}`, signal);
      if (now === asked) draw(clip);
    } catch (error) {
      explain(error);
    }
  };
  const changed = clip => {
    onChange(at, clip);
    draw(clip);
  };
  const draw = clip => {
    const focused = content.querySelector(":focus")?.dataset.name;
    fill(content, top(clip), h("div.clip-parts", pictureSide(key, clip, pictures), textSide(key, clip, changed)));
    if (focused) content.querySelector(`[data-name="${focused}"]`)?.focus();
  };
  const top = clip =>
    h(
      "div.clip-top",
      h("h2", clip.path),
      h("span.gap"),
      h("span.quiet", `${(at + 1).toLocaleString("en-US")} of ${grid.total.toLocaleString("en-US")}`),
      h(
        "button",
        {
          type: "button",
          "data-name": "before",
          "aria-label": "the clip before",
          disabled: at === 0,
          onclick: () => move(-1),
        },
        "‹",
      ),
      h(
        "button",
        {
          type: "button",
          "data-name": "after",
          "aria-label": "the next clip",
          disabled: at === grid.total - 1,
          onclick: () => move(1),
        },
        "›",
      ),
      h("button", { type: "button", "aria-label": "close", onclick: () => close() }, "×"),
    );
  const close = () => {
    if (leaves("Close without saving the caption?")) dialog.close();
  };
  dialog.addEventListener("keydown", event => {
    if (event.target.closest("textarea, input")) return;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      event.preventDefault();
      move(event.key === "ArrowLeft" ? -1 : 1);
    }
  });
  dialog.addEventListener("cancel", event => {
    event.preventDefault();
    close();
  });
  dialog.addEventListener("click", event => {
    if (event.target === dialog) close();
  });
  dialog.addEventListener("close", () => {
    dialog.remove();
    onClose(at);
  });
  signal.addEventListener("abort", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  load();
}

function pictureSide(key, clip, pictures) {
  const base = `/api/data/${key}/clips/${clip.id}`;
  const { reading } = clip;
  const whole = h("div.whole", { style: { "aspect-ratio": `${clip.source[0] || 3} / ${clip.source[1] || 2}` } });
  const side = h("div.clip-pictures", whole);
  const put = async (box, address, alt, then = () => {}) => {
    const found = await pictures.load(address);
    if (!found) return;
    found.url
      ? box.prepend(h("img", { src: found.url, alt }))
      : box.replaceChildren(h("p.gone", found.problem, found.remedy ? h("span.quiet", ` ${found.remedy}`) : null));
    if (found.url) then();
  };
  put(
    whole,
    `${base}/whole.webp`,
    reading ? "the whole frame; what training reads is bright" : "the whole frame",
    () => {
      if (reading && clip.lost > 0.0005)
        whole.append(
          h("div.window", {
            style: Object.fromEntries(
              ["left", "top", "width", "height"].map(side => [side, `${100 * reading.window[side]}%`]),
            ),
          }),
        );
    },
  );
  if (reading) {
    const who = clip.reason?.[0] === "held_out" ? "Validation" : "Training";
    const strip = h("div.strip-of-frames");
    const loop = h("div.as-read", { style: { "aspect-ratio": `${clip.shape[0]} / ${clip.shape[1]}` } });
    const caption = h(
      "p.quiet",
      clip.video
        ? `${who} reads ${plural(reading.frames, "frame")}, ${reading.first} to ${reading.last} of ${reading.of}${reading.step !== 1 ? `, ${Number(reading.step.toPrecision(3))} apart` : ""}, at ${reading.size}${turned(reading)}.`
        : `${who} reads it at ${reading.size}${turned(reading)}.`,
    );
    side.append(caption, clip.video ? h("div.read-frames", loop, strip) : "");
    if (clip.video) {
      put(loop, `${base}/loop.webp`, "the frames as training reads them, as a loop");
      put(strip, `${base}/strip.webp`, "some of the frames that training reads");
    }
  }
  for (const one of clip.companions) {
    const box = h("div.companion", h("p.quiet", `${one.kind}: ${one.problem || one.path}`));
    side.append(box);
    if (!one.problem && reading)
      put(
        box.appendChild(h("div.strip-of-frames")),
        `${base}/strip.webp?companion=${encodeURIComponent(one.kind)}`,
        `${one.kind} as training reads it`,
      );
  }
  return side;
}
const turned = reading =>
  [reading.flip ? ", mirrored" : "", reading.degrees ? `, rotated by ${reading.degrees.toFixed(1)}°` : ""].join("");

function textSide(key, clip, changed) {
  return h("div.clip-texts", whyBox(key, clip, changed), captionBox(key, clip, changed), factList(clip));
}

function whyBox(key, clip, changed) {
  const at = `/data/${key}/clips/${clip.id}`;
  const isListed = clip.reason?.[0] === "in_exclude_file";
  const act = clip.can_leave_out
    ? isListed
      ? button(
          "Take back",
          async () => {
            changed(await post(`${at}/take-back`));
            toast("It is trained again, if nothing else leaves it out.");
          },
          { title: "removes its line from the recipe's exclude_file" },
        )
      : button(
          "Leave out",
          async () => {
            changed(await post(`${at}/leave-out`));
            toast("A line in the recipe's exclude_file leaves it out; the file is not touched.");
          },
          { title: "adds a line to the recipe's exclude_file; the file is not touched" },
        )
    : null;
  act?.setAttribute("data-name", "leave-out");
  if (!clip.reason)
    return h(
      "div.verdict",
      h("p", h("b.ok", clip.bucket ? "Trained" : "Readable"), clip.bucket ? ` in ${clip.bucket}` : ""),
      act,
    );
  const [, label, remedy, choice] = clip.reason;
  return h(
    "div.verdict",
    h(
      "div",
      h(
        "p",
        h(
          choice ? "b" : "b.hint",
          { planned: capital(label), chosen: `Left out by you: ${label}` }[choice] || `Left out: ${label}`,
        ),
      ),
      clip.why ? h("p", clip.why) : null,
      h("p.quiet", remedy),
    ),
    act,
  );
}

const capital = text => text[0].toUpperCase() + text.slice(1);

function captionBox(key, clip, changed) {
  const box = h("textarea", {
    rows: "4",
    value: clip.caption || "",
    readonly: !(clip.can_write_caption && canChange()),
    "aria-label": "caption",
    "data-name": "caption",
    spellcheck: "true",
  });
  box.dataset.saved = clip.caption || "";
  const kept = new Draft(() => {
    box.value = box.dataset.saved;
    update();
  }, `caption of ${key} ${clip.id}`);
  const former = kept.found;
  const state = h("span.quiet", clip.caption === null && !clip.can_write_caption ? "no caption" : "");
  const save = button(
    "Save",
    async () => {
      const text = box.value.trim();
      const answer = await post(`/data/${key}/clips/${clip.id}/caption`, { text });
      box.dataset.saved = box.value = text;
      kept.drop();
      changed({ ...(answer.clip || clip), caption: text });
      if (answer.problem)
        toast(`The caption is written; the catalog follows with the next scan: ${answer.problem}`, "bad");
      else toast(answer.job ? "Written. The catalog is being brought up to date." : "Written, and the catalog has it.");
    },
    { kind: "main" },
  );
  const undo = h(
    "button",
    {
      type: "button",
      onclick: () => {
        box.value = box.dataset.saved;
        update();
      },
    },
    "Undo",
  );
  const update = () => {
    const isNew = box.value !== box.dataset.saved;
    actions.hidden = !isNew;
    isNew ? kept.keep(box.value) : kept.drop();
  };
  const actions = h("div.row", { hidden: true }, save, undo, h("span.quiet", h("kbd", "Ctrl"), " ", h("kbd", "Enter")));
  box.addEventListener("input", update);
  box.addEventListener("keydown", event => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !actions.hidden) save.click();
    if (event.key === "Escape" && box.value !== box.dataset.saved) {
      event.stopPropagation();
      event.preventDefault();
      box.value = box.dataset.saved;
      update();
    }
  });
  if (former !== null && !box.readOnly && former !== box.dataset.saved) {
    box.value = former;
    update();
    kept.restored();
  }
  const shown =
    clip.shown_caption !== null && clip.shown_caption !== clip.caption
      ? h("p.quiet", `The model is given: “${clip.shown_caption}”`)
      : null;
  return h(
    "div.caption",
    h("h3", "Caption"),
    kept.box,
    box,
    state,
    shown,
    h("p.quiet", `${clip.can_write_caption ? "In " : "It comes from "}${clip.caption_source}.`),
    actions,
  );
}

function factList(clip) {
  const { facts } = clip;
  const pairs = [["File", clip.file]];
  const isReadable = clip.source[0] > 0;
  if (isReadable) pairs.push(["Size", `${clip.source[0]} × ${clip.source[1]}`]);
  if (clip.video && isReadable)
    pairs.push([
      "Length",
      `${plural(clip.frames, "frame")}, ${duration(clip.seconds)} at ${Number(clip.fps.toPrecision(4))} per second${facts.variable_fps ? ", unevenly spaced" : ""}`,
    ]);
  if (clip.reading) pairs.push(["Cropped away", percent(clip.lost)]);
  pairs.push([
    "Coding",
    [
      facts.codec,
      facts.pixel_format,
      facts.bit_depth > 8 ? `${facts.bit_depth} bits` : "",
      facts.hdr ? `HDR (${facts.hdr})` : "",
      facts.interlaced ? "interlaced" : "",
      facts.has_alpha ? "transparent" : "",
      facts.rotation ? `turned by ${facts.rotation}°` : "",
      facts.mirrored ? "mirrored" : "",
      facts.pixel_aspect_ratio && facts.pixel_aspect_ratio !== 1
        ? `pixels of ${facts.pixel_aspect_ratio.toFixed(3)} : 1`
        : "",
    ]
      .filter(Boolean)
      .join(", "),
  ]);
  if (facts.sound) pairs.push(["Sound", facts.sound]);
  pairs.push(["On disk", bytes(clip.bytes)], ["Dataset", clip.dataset]);
  if (clip.coverage) pairs.push(["In its runs", clip.coverage]);
  return h(
    "dl.pairs",
    pairs.filter(([, value]) => value).map(([name, value]) => [h("dt", name), h("dd", value)]),
  );
}
