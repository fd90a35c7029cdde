// What a recipe would train: a map of its buckets with their settings in it, computed again while they are moved.

import { badge, card, emptySection, fill, h, table } from "../elements.js";
import { PlanPage } from "../plan/page.js";
import { get } from "../server.js";
import { drawOnChange } from "../timing.js";

export const title = "Plan";

export async function render(main, [key], signal) {
  if (key) return new PlanPage(main, key, signal).open();
  const newRecipe = () => h("a", { href: "#/new" }, "New recipe");
  await drawOnChange(
    2000,
    signal,
    () => get("/plan", signal),
    rows => {
      fill(
        main,
        rows.length
          ? [h("div.page-head", h("h1", "Plan"), h("span.gap"), newRecipe()), card(recipeTable(rows))]
          : emptySection(
              "No recipe yet",
              "A plan shows what a recipe would train: its buckets, steps and waste. Make a recipe first.",
              newRecipe(),
            ),
      );
    },
  );
}

const recipeTable = rows =>
  table(
    "Recipes",
    [
      ["Recipe", row => [h("a", { href: `#/plan/${row.key}` }, row.name), h("div.quiet", row.path)]],
      ["Model", row => row.model || "–"],
      ["Buckets", row => (row.problem ? h("span.error", row.problem) : entryList(row.entries))],
      [
        "",
        row =>
          row.problem
            ? h("a", { href: `#/new/${row.key}` }, "Edit")
            : badge(row.scanned ? "can be planned" : "not scanned yet", row.scanned ? "good" : "plain"),
      ],
    ],
    rows,
  );

function entryList(entries) {
  if (!entries.length) return "chosen from the footage";
  return entries.slice(0, 6).join(", ") + (entries.length > 6 ? ` and ${entries.length - 6} more` : "");
}
