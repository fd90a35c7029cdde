// Two runs or more: what differs in their recipes, their curves in one plot, previews side by side.

import { card, fill, h, table } from "../elements.js";
import { plot } from "../plots.js";
import { get } from "../server.js";
import { count } from "../units.js";

export const title = "Compare";

export async function render(main, [keys], signal) {
  const found = await get(`/compare?runs=${encodeURIComponent(keys)}`, signal);
  const columns = first => [
    [first, row => row.label],
    ...found.names.map((name, i) => [name, row => row.values[i], true]),
  ];
  const charts = h("section.figures", { "aria-label": "Curves" });
  fill(
    main,
    h("div.page-head", h("h1", found.names.join(" · "))),
    card(table("Results", columns(""), found.results)),
    h("h2", "Recipes"),
    found.recipe.length
      ? card(table("Recipe keys that differ", columns("Key"), found.recipe))
      : h("p.quiet", "The recipes are equal."),
    h("h2", "Curves"),
    charts,
    found.previews.length
      ? [
          h("h2", "Previews"),
          found.previews.map(row =>
            card(
              h("h3", row.prompt),
              h(
                "div.clips",
                row.files.map((file, i) =>
                  h(
                    "figure",
                    file
                      ? file.video
                        ? h("video", {
                            src: file.url,
                            loop: true,
                            muted: true,
                            autoplay: true,
                            controls: true,
                            "aria-label": row.prompt,
                          })
                        : h("img", { src: file.url, alt: row.prompt })
                      : h("div.gone", "none"),
                    h("figcaption", `${found.names[i]}${file ? `, step ${count(file.step)}` : ""}`),
                  ),
                ),
              ),
            ),
          ),
        ]
      : [],
  );
  for (const figure of found.figures) {
    const canvas = h("div.plot");
    charts.append(h(`div.card.${figure.size}`, h("h3", figure.title), h("p.quiet", figure.note), canvas));
    await plot(canvas, figure.plot, figure.title);
    if (signal.aborted) return;
  }
}
