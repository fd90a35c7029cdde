// A recipe that was made: what it trains on, and what it takes.

import { button } from "../dialogs.js";
import { h, memoryBar } from "../elements.js";
import { t } from "../texts.js";
import { bytes, count, duration, plural } from "../units.js";

const MUCH_BYTES = 5e7;

export function resultCard(found, about, onTrain) {
  const settings = Object.entries(found.settings || {}).map(([name, value]) => `${name} = ${value}`);
  const downloads = about.downloads?.length
    ? t`Downloaded when training starts: ${about.downloads.join(", ")}`
    : t`Nothing has to be downloaded.`;
  const link = (page, text) => h("a.as-button", { href: `#/${page}/${about.key}` }, text);
  return h(
    "section.card.new-result",
    h("div.row", h("h2", about.name), h("span.quiet", about.path), h("span.gap")),
    factList(found),
    fitLine(found.fits),
    memoryBar(found.estimate.memory),
    settings.length ? h("p.quiet", t`Settings that save memory: ${settings.join(", ")}`) : null,
    h("p", downloads),
    found.remarks.length
      ? h(
          "ul.cures",
          found.remarks.map(text => h("li", text)),
        )
      : null,
    h(
      "div.actions",
      link("data", t`See the crops`),
      link("plan", t`Plan`),
      link("new", t`All settings`),
      button(t`Train`, onTrain, { kind: "main" }),
    ),
  );
}

function factList({ pictures, clips, uncaptioned, steps, seconds_per_step: stepSeconds, gpu, estimate }) {
  const fact = (name, value, note) => h("div.card", h("dt", name), h("dd", value), h("dd.note", note));
  const footage = [pictures && plural(pictures, "picture"), clips && plural(clips, "clip")].filter(Boolean).join(", ");
  const { total, host } = estimate.memory;
  return h(
    "dl.facts",
    fact(t`Footage`, footage, uncaptioned ? t`${count(uncaptioned)} without a caption` : t`all with captions`),
    fact(t`Memory`, bytes(total), host > MUCH_BYTES ? t`and ${bytes(host)} of CPU memory` : t`estimated`),
    fact(t`Steps`, count(steps), plural(estimate.trained_parameters, "trained parameter")),
    fact(t`Time`, t`about ${duration(Math.max(1, steps * stepSeconds))}`, t`estimated for one ${gpu}`),
  );
}

function fitLine(fits) {
  if (fits === null || fits === undefined)
    return h("p.hint", t`Give the GPU's memory under More to see whether it fits`);
  return fits ? h("p.ok", t`It fits into the GPU's memory`) : h("p.oops", t`It does not fit`);
}
