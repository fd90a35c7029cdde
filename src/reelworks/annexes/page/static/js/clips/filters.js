// A filter: the values of a facet with their numbers of clips, as buttons.

import { h } from "../elements.js";
import { t, translated } from "../texts.js";
import { count } from "../units.js";

const FEW = 8; // values of a filter that are shown at once

/** The buttons of a facet, which change what `view` has chosen; null if there is nothing to choose. */
export function filterBox(facet, counts, view) {
  const { chosen, opened } = view;
  const picked = chosen[facet.name] || [];
  const total = counts.reduce((sum, one) => sum + one, 0);
  const there = facet.values
    .map((value, i) => ({ ...value, count: counts[i], all: facet.counts[i] }))
    .filter(value => value.all || picked.includes(value.id));
  if (there.length < 2 && !picked.length) return null;
  const isLong = there.length > FEW + 2;
  const values = isLong && !opened.has(facet.name) ? shorten(there, picked) : there;
  const toggle = id => {
    chosen[facet.name] = picked.includes(id) ? picked.filter(one => one !== id) : [...picked, id];
    view.load();
  };
  const fixed = facet.name === "reason" ? translated : text => text; // others have names of the footage
  const item = ({ id, label, hint, count: clips }) =>
    h(
      "button.value",
      {
        type: "button",
        "aria-pressed": String(picked.includes(id)),
        title: hint ? fixed(hint) : null,
        "data-filter": `${facet.name}:${id}`,
        onclick: () => toggle(id),
        style: { "--share": total ? clips / total : 0 },
      },
      h("span", fixed(label)),
      h("b", count(clips)),
    );
  return h(
    "fieldset.filter",
    h("legend", translated(facet.label)),
    values.map(item),
    isLong ? moreButton(facet.name, there.length - values.length, view) : null,
  );
}

function moreButton(name, hidden, view) {
  const isOpened = view.opened.has(name);
  const onclick = () => {
    isOpened ? view.opened.delete(name) : view.opened.add(name);
    view.drawFilters();
  };
  return h(
    "button.more",
    { type: "button", "data-filter": `${name}:more`, onclick },
    isOpened ? t`show fewer` : t`${hidden} more`,
  );
}

function shorten(values, picked) {
  const largest = new Set(
    [...values]
      .sort((a, b) => b.all - a.all)
      .slice(0, FEW)
      .map(value => value.id),
  );
  return values.filter(value => largest.has(value.id) || picked.includes(value.id));
}
