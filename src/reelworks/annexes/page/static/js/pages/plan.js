// What a recipe would train: a map of its buckets with their settings in it, computed again while they are moved.

import { badge, card, emptySection, fill, h, table } from "../elements.js";
import { PlanPage } from "../plan/page.js";
import { get } from "../server.js";
import { t } from "../texts.js";
import { drawOnChange } from "../timing.js";

export const title = t`Plan`;

export async function render(main, [key], signal) {
  if (key) return new PlanPage(main, key, signal).open();
  const newRecipe = () => h("a", { href: "#/new" }, t`New recipe`);
  await drawOnChange(
    2000,
    signal,
    () => get("/plan", signal),
    rows => {
      fill(
        main,
        rows.length
          ? [h("div.page-head", h("h1", t`Plan`), h("span.gap"), newRecipe()), card(recipeTable(rows))]
          : emptySection(
              t`No recipe yet`,
              t`A plan shows what a recipe would train: its buckets, steps and waste. Make a recipe first.`,
              newRecipe(),
            ),
      );
    },
  );
}

const recipeTable = rows =>
  table(
    t`Recipes`,
    [
      [t`Recipe`, row => [h("a", { href: `#/plan/${row.key}` }, row.name), h("div.quiet", row.path)]],
      [t`Model`, row => row.model || "–"],
      [t`Buckets`, row => (row.problem ? h("span.error", row.problem) : entryList(row.entries))],
      [
        "",
        row =>
          row.problem
            ? h("a", { href: `#/new/${row.key}` }, t`Edit`)
            : badge(row.scanned ? t`can be planned` : t`not scanned yet`, row.scanned ? "good" : "plain"),
      ],
    ],
    rows,
  );

function entryList(entries) {
  if (!entries.length) return t`chosen from the footage`;
  return entries.slice(0, 6).join(", ") + (entries.length > 6 ? t` and ${entries.length - 6} more` : "");
}
