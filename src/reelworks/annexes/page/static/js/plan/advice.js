// Other settings that waste less, each with what it gives.

import { fill, h } from "../elements.js";
import { t } from "../texts.js";
import { count, percent, plural } from "../units.js";
import { wayText } from "./settings.js";

export function drawAdvice(place, { proposals, fewer_ranks: fewer }, page) {
  if (!proposals) return fill(place);
  const items = proposals.map(one => cure(changes(one, page.now), one, () => apply(one, page)));
  if (fewer) items.push(cure(plural(fewer.world, "GPU"), fewer, () => page.set({ ...page.now, world: fewer.world })));
  if (!items.length) items.push(h("li", t`Neither merging nor other batch sizes nor fewer GPUs improve it.`));
  fill(
    place,
    h(
      "section.card.plan-advice",
      h("h2", t`Less waste`),
      h("p.quiet", t`Each was planned on the same clips.`),
      h("ul.cures", items),
    ),
  );
}

function cure(text, { steps, imbalance, padding, suffices }, onclick) {
  const gives = t`${count(steps)} steps, GPUs wait ${percent(imbalance)}, padding ${percent(padding)}`;
  const note = suffices === false ? t`; better, but not enough` : "";
  return h("li", h("button.small", { type: "button", onclick }, text), h("span.quiet", gives, note));
}

function changes(proposal, now) {
  const sizes = proposal.batch_sizes.map(size => t`${size.entry}: batch ${size.from} → ${size.to}`);
  const isOther = proposal.incomplete_batch !== now.incomplete_batch;
  return [...(isOther ? [wayText(proposal.incomplete_batch)] : []), ...sizes].join(", ");
}

function apply(proposal, page) {
  const next = structuredClone(page.now);
  next.incomplete_batch = proposal.incomplete_batch;
  for (const { entry, to } of proposal.batch_sizes) {
    const found = page.about.entries.find(one => one.label === entry);
    if (found && found.place !== null) next.batch_sizes[found.place] = to;
  }
  page.set(next);
}
