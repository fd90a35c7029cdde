// The whole frame of a clip with its crop, the frames that training reads, and those of its companions.

import { fill, h } from "../elements.js";
import { t } from "../texts.js";
import { plural } from "../units.js";

export function pictureSide(key, clip, pictures) {
  const base = `api/data/${key}/clips/${clip.id}`;
  const { reading } = clip;
  const put = (box, address, alt) => putPicture(pictures, box, address, alt);
  const whole = h("div.whole", { style: { "aspect-ratio": `${clip.source[0] || 3} / ${clip.source[1] || 2}` } });
  put(
    whole,
    `${base}/whole.webp`,
    reading ? t`the whole frame; what training reads is bright` : t`the whole frame`,
  ).then(isThere => {
    if (isThere && reading && clip.lost > 0.0005) whole.append(cropWindow(reading.window));
  });
  return h(
    "div.clip-pictures",
    whole,
    reading ? framesAsRead(base, clip, put) : null,
    clip.companions.map(one => companion(base, one, reading, put)),
  );
}

/** Put a picture into a box, or the reason why there is none; tells whether there is one. */
async function putPicture(pictures, box, address, alt) {
  const found = await pictures.load(address);
  if (!found) return false;
  if (found.url) box.prepend(h("img", { src: found.url, alt }));
  else fill(box, h("p.gone", found.problem, found.remedy ? h("span.quiet", ` ${found.remedy}`) : null));
  return Boolean(found.url);
}

function cropWindow(part) {
  const sides = ["left", "top", "width", "height"].map(side => [side, `${100 * part[side]}%`]);
  return h("div.window", { style: Object.fromEntries(sides) });
}

function framesAsRead(base, clip, put) {
  const { reading } = clip;
  const who = clip.reason?.[0] === "held_out" ? t`Validation` : t`Training`;
  const rotation = reading.degrees ? t`, rotated by ${reading.degrees.toFixed(1)}°` : "";
  const turned = `${reading.flip ? t`, mirrored` : ""}${rotation}`;
  if (!clip.video) return h("p.quiet", t`${who} reads it at ${reading.size}${turned}.`);
  const strip = h("div.strip-of-frames");
  const loop = h("div.as-read", { style: { "aspect-ratio": `${clip.shape[0]} / ${clip.shape[1]}` } });
  put(loop, `${base}/loop.webp`, t`the frames as training reads them, as a loop`);
  put(strip, `${base}/strip.webp`, t`some of the frames that training reads`);
  const apart = reading.step === 1 ? "" : t`, ${Number(reading.step.toPrecision(3))} apart`;
  const frames = t`${plural(reading.frames, "frame")}, ${reading.first} to ${reading.last} of ${reading.of}${apart}`;
  return [h("p.quiet", t`${who} reads ${frames}, at ${reading.size}${turned}.`), h("div.read-frames", loop, strip)];
}

function companion(base, { kind, problem, path, heard }, reading, put) {
  const box = h("div.companion", h("p.quiet", `${kind}: ${problem || path}`));
  if (problem || heard || !reading) return box;
  const strip = h("div.strip-of-frames");
  put(strip, `${base}/strip.webp?companion=${encodeURIComponent(kind)}`, t`${kind} as training reads it`);
  box.append(strip);
  return box;
}
