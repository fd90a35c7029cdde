// Two runs or more: what differs in their recipes, their curves in one plot, previews side by side.

import { card, fill, h, media, table } from "../elements.js";
import { plot } from "../plots.js";
import { get } from "../server.js";
import { sentences, t, translated } from "../texts.js";
import { count } from "../units.js";

export const title = t`Compare`;

export async function render(main, [keys], signal) {
  const found = await get(`/compare?runs=${encodeURIComponent(keys)}`, signal);
  const columns = first => [
    [first, row => row.label],
    ...found.names.map((name, i) => [name, row => row.values[i], true]),
  ];
  const charts = h("section.figures", { "aria-label": t`Curves` });
  fill(
    main,
    h("div.page-head", h("h1", found.names.join(" · "))),
    card(table(t`Results`, columns(""), found.results)),
    h("h2", t`Recipes`),
    found.recipe.length
      ? card(table(t`Recipe keys that differ`, columns(t`Key`), found.recipe))
      : h("p.quiet", t`The recipes are equal.`),
    h("h2", t`Curves`),
    charts,
    found.previews.length ? [h("h2", t`Previews`), found.previews.map(row => previewCard(row, found.names))] : null,
  );
  for (const figure of found.figures) {
    const label = translated(figure.title);
    const canvas = h("div.plot");
    charts.append(h(`div.card.${figure.size}`, h("h3", label), h("p.quiet", sentences(figure.note)), canvas));
    await plot(canvas, figure.plot, label);
    if (signal.aborted) return;
  }
}

function previewCard({ prompt, files }, names) {
  const figures = files.map((file, i) =>
    h(
      "figure",
      file ? media(file.url, file.video, prompt) : h("div.gone", t`none`),
      h("figcaption", `${names[i]}${file ? t`, step ${count(file.step)}` : ""}`),
    ),
  );
  return card(h("h3", prompt), h("div.clips", figures));
}
