// A clip in the grid: its picture, which moves under the pointer, its name and what happens to it.

import { fill, h } from "../elements.js";
import { t } from "../texts.js";
import { duration, percent, plural } from "../units.js";

const HOVER = 120; // milliseconds

const sizeText = clip => `${clip.source[0]} × ${clip.source[1]}`;

export function tileContent(clip, sort) {
  const told = clip.reason
    ? h(clip.reason[3] ? "span.why.kept" : "span.why", { title: clip.reason[2] }, clip.reason[1])
    : h("span", clip.bucket || sizeText(clip));
  const [width, height] = clip.shape;
  const side = width / height > 1 / 0.72 ? { width: "100%" } : { height: "100%" };
  const frame = h("span.frame", { style: { "aspect-ratio": `${width || 3} / ${height || 2}`, ...side } });
  const length = clip.video && clip.seconds ? h("span.length", duration(clip.seconds)) : null;
  const name = clip.path.slice(clip.path.lastIndexOf("/") + 1);
  return [
    h("div.pic", frame, length),
    h("div.name", { title: clip.path }, name),
    h("div.about", told, h("span", measure(clip, sort))),
  ];
}

function measure(clip, sort) {
  if (!clip.bucket) return null;
  return { cropped: t`${percent(clip.lost)} cropped`, largest: sizeText(clip) }[sort];
}

export function tileLabel(clip) {
  const kind = clip.video ? t`video, ${plural(clip.frames, "frame")}` : t`picture`;
  const told = clip.reason ? t`left out: ${clip.reason[1]}` : clip.bucket;
  return [clip.path, kind, told, clip.caption].filter(Boolean).join(", ");
}

/** Say why there is no picture, as the answer to a request for one tells, and what helps. */
export function noPicture({ problem, value, remedy }) {
  return h("span.gone", { title: [value, remedy].filter(Boolean).join("\n") }, problem || t`no picture`);
}

/** Put the picture of a clip into its tile, or the reason why there is none. */
export async function showPicture(pictures, key, tile, clip, wanted) {
  const base = `api/data/${key}/clips/${clip.id}`;
  const frame = tile.querySelector(".frame");
  const found = await pictures.load(`${base}/thumbnail.webp`, wanted);
  if (!found || !frame.isConnected) {
    tile.asked = false;
    return;
  }
  if (!found.url) return fill(frame, noPicture(found));
  const still = h("img", { src: found.url, alt: "", draggable: "false" });
  fill(frame, still);
  if (clip.video) playUnderPointer(tile, frame, still, wanted => pictures.load(`${base}/loop.webp`, wanted));
}

function playUnderPointer(tile, frame, still, load) {
  let over = false;
  const play = async () => {
    over = true;
    await new Promise(resolve => setTimeout(resolve, HOVER)); // not for each tile that the pointer passes
    if (!over) return;
    const loop = await load(() => over);
    if (over && loop?.url) fill(frame, h("img", { src: loop.url, alt: "", draggable: "false" }));
  };
  const rest = () => {
    over = false;
    fill(frame, still);
  };
  for (const name of ["pointerenter", "focus"]) tile.addEventListener(name, play);
  for (const name of ["pointerleave", "blur"]) tile.addEventListener(name, rest);
}
