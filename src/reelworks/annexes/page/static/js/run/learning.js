// What the run has learnt of each clip: a wall of them, those to look at first, each of which can be left out.

import { noPicture } from "../clips/tiles.js";
import { button, explain, toast } from "../dialogs.js";
import { emptySection, fill, h } from "../elements.js";
import { get, post } from "../server.js";
import { t } from "../texts.js";
import { newest } from "../timing.js";
import { count, plural } from "../units.js";

const AT_ONCE = 60;
const SORTS = {
  worst: t`to look at first`,
  loss: t`highest loss`,
  trend: t`least fall of the loss`,
  gain: t`least gain by the caption`,
  path: t`name`,
};
const WORDS = {
  not_learnt: t`not learnt`,
  caption_without_effect: t`caption without effect`,
  memorised: t`memorised`,
  still_learning: t`still learning`,
  learnt: t`learnt`,
  too_early: t`too early`,
};
const HINTS = {
  not_learnt: t`Its loss is far above that of its peers: look at it.`,
  caption_without_effect: t`Its caption raises its loss, while those of others lower it: read it.`,
  memorised: t`Its loss is far below that of its peers, and fell far more: look for duplicates.`,
};
const UNUSUAL = {
  gain: share => t`unusual gain: ${share}`,
  high_loss: share => t`high loss: ${share}`,
  low_loss: share => t`low loss: ${share}`,
  by_heart: share => t`by heart: ${share}`,
};

export async function renderLearning(body, { key, signal }) {
  const chosen = { word: "", sort: "worst", shown: AT_ONCE };
  const next = newest(signal);
  const ask = (offset, limit, asked) => {
    const query = new URLSearchParams({ word: chosen.word, sort: chosen.sort, offset, limit });
    return get(`/runs/${key}/learning?${query}`, asked);
  };
  const draw = async () => {
    const wall = h("div.clips.wall");
    const rest = h("div");
    const fillUp = async () => {
      const asked = next();
      let part;
      do {
        part = await ask(wall.children.length, chosen.shown - wall.children.length, asked); // at most 1000 at once
        wall.append(...part.clips.map(clip => tile(clip, part, draw)));
      } while (part.clips.length && wall.children.length < Math.min(chosen.shown, part.total));
      const left = part.total - wall.children.length;
      fill(rest, left > 0 ? button(t`${count(left)} more`, more) : null);
      return part;
    };
    const more = () => {
      chosen.shown = wall.children.length + AT_ONCE;
      return fillUp();
    };
    const found = await fillUp();
    if (!Object.keys(found.counts).length)
      return fill(
        body,
        emptySection(
          t`No losses of clips yet`,
          t`Set train.clip_losses = "auto" in the recipe: each save then tells what was learnt of each clip.`,
        ),
      );
    fill(body, panel(found, chosen, draw), wall, rest);
  };
  await draw();
  return draw;
}

function panel({ counts, step }, chosen, draw) {
  const choose = (name, options) =>
    h(
      "select",
      {
        "aria-label": name === "word" ? t`word` : t`order`,
        onchange: event => {
          Object.assign(chosen, { [name]: event.target.value, shown: AT_ONCE });
          draw().catch(explain);
        },
      },
      options.map(([value, text]) => h("option", { value, selected: value === chosen[name] }, text)),
    );
  const words = Object.entries(counts).map(([word, clips]) => [word, `${WORDS[word]} (${count(clips)})`]);
  return h(
    "div.card.panel",
    choose("word", [["", t`all clips`], ...words]),
    choose("sort", Object.entries(SORTS)),
    h("span.quiet", t`step ${count(step)}`),
  );
}

function tile(clip, { data, can_leave_out: canLeaveOut }, draw) {
  const base = `/data/${data}/clips/${clip.id}`;
  const src = `api${base}/thumbnail.webp`;
  // As of a file that was deleted since, or lies where the page may not read.
  const onerror = async event => {
    const why = await fetch(src)
      .then(answer => answer.json())
      .catch(() => ({}));
    event.target.replaceWith(h("div.gone", noPicture(why)));
  };
  const picture =
    clip.id === null ? h("div.gone", noPicture({})) : h("img", { src, alt: clip.path, loading: "lazy", onerror });
  const gain = clip.gain === null ? null : t`caption ${`${(100 * clip.gain).toFixed(0)} %`}`;
  const numbers = [t`${clip.loss.toFixed(2)} × the usual loss`, gain, t`shown ${plural(clip.shown, "time")}`];
  const word = h("b", { title: HINTS[clip.word] || null }, WORDS[clip.word]);
  const name = h("div.name", { title: clip.path, dir: "auto" }, clip.path);
  const unusual = UNUSUAL[clip.unusual](`${(100 * clip.unusual_share).toFixed(0)} %`);
  const title = t`Its most unusual number, as a share of where a word is said`;
  const about = h("div.quiet", { title }, [unusual, ...numbers.filter(Boolean)].join(" · "));
  const act = canLeaveOut && clip.id !== null ? leaveOutButton(base, clip, draw) : null;
  return h("figure", picture, h("figcaption", name, word), about, act);
}

function leaveOutButton(base, clip, draw) {
  const verb = clip.is_left_out ? "take-back" : "leave-out";
  const act = async () => {
    await post(`${base}/${verb}`);
    toast(
      clip.is_left_out
        ? t`It is trained again, if nothing else leaves it out.`
        : t`A line in the recipe's exclude_file leaves it out; the file is not touched.`,
    );
    await draw();
  };
  return button(clip.is_left_out ? t`Take back` : t`Leave out`, act);
}
