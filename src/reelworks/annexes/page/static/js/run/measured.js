// Checkpoints that were measured alike: steps downwards, prompts across, and the numbers of each step beside its clips.

import { card, emptySection, fill, h, media, table } from "../elements.js";
import { get } from "../server.js";
import { t } from "../texts.js";
import { count } from "../units.js";

const MOST_LETTERS = 80; // of a prompt above its clips

export async function renderMeasured(body, { key, signal }) {
  let former;
  const renew = async () => {
    const found = await get(`/runs/${key}/measured`, signal);
    const text = JSON.stringify(found);
    if (text !== former) fill(body, found ? grid(found) : none()); // otherwise its clips would begin anew
    former = text;
  };
  await renew();
  return renew;
}

const none = () =>
  emptySection(
    t`No checkpoints measured yet`,
    t`reelworks eval RUN --checkpoints all measures clips of the same prompts from each checkpoint.`,
  );

function grid({ names, prompts, rows, advice, about: [shape, seed] }) {
  const directions = Object.entries(names).map(([name, higher]) => `${name} ${higher ? "↑" : "↓"}`);
  const measured = ({ values }) =>
    values.map(([value, best], i) =>
      h(best ? "div.ok" : "div", directions[i], " ", h("b", value), best ? t` best` : ""),
    );
  const columns = [[t`Step`, row => count(row.step), true], [t`Measured`, measured], ...prompts.map(clipColumn)];
  return card(
    advice ? h("p.hint", advice) : null,
    h("p.quiet", t`${shape}, seed ${seed}; ↑ higher is better, ↓ lower is better`),
    h("div.grid", table(t`Checkpoints side by side`, columns, rows)),
  );
}

function clipColumn(prompt, i) {
  const cell = ({ step, clips, copied }) => {
    const url = clips[i]?.url;
    const label = `${t`step ${count(step)}`}: ${prompt}`;
    const shown = url ? media(url, clips[i].video, label) : h("div.gone", t`the file is gone`);
    return h("figure", shown, copied[i] ? h("figcaption.oops", t`looks copied from ${copied[i]}`) : null);
  };
  const letters = [...prompt];
  const name = letters.length > MOST_LETTERS ? `${letters.slice(0, MOST_LETTERS).join("")}…` : prompt;
  return [h("div.prompt", { title: prompt, dir: "auto" }, name), cell];
}
