// What a plan trains, beside what it trained before the settings were moved.

import { button } from "../dialogs.js";
import { fill, h, table } from "../elements.js";
import { t, translated } from "../texts.js";
import { count, percent, plural } from "../units.js";

const MEASURES = ["clips", "tokens", "time", "gradient"];

export function drawFacts(place, plan, before) {
  const clips = plan.catalog.clips - untrainedClips(plan) - (plan.held_out || 0);
  const facts = [
    [
      t`Steps per epoch`,
      one => one.steps_per_epoch,
      count,
      t`${plural(plan.micro_batches_per_step, "micro-batch")} each`,
    ],
    [
      plan.planned > clips ? t`Showings of clips` : t`Clips trained`, // each at several resolutions
      one => one.planned,
      count,
      plan.repeated ? t`and ${count(plan.repeated)} repeats` : t`of ${plural(plan.catalog.clips, "clip")}`,
    ],
    [t`GPUs wait`, one => one.imbalance, percent, t`imbalance`, 0.1],
    [t`Padding`, one => one.padding, percent, t`copies of weight 0`, 0.1],
    [t`Not trained`, untrainedClips, count, plan.held_out ? t`and ${count(plan.held_out)} held out` : t`by any bucket`],
    [t`Batches not full`, one => one.incomplete, count, t`of ${count(plan.micro_batches)}`],
  ];
  fill(
    place,
    facts.map(([name, read, write, note, most]) => {
      const [now, then] = [read(plan), read(before)];
      const former = write(now) === write(then) ? null : h("span.former", t`was ${write(then)}`);
      return h(
        `div.card${most && now > most ? ".too-much" : ""}`,
        h("dt", name),
        h("dd", write(now), former),
        h("dd.note", note),
      );
    }),
  );
}

function untrainedClips(plan) {
  const reasons = Object.entries(plan.left_out).filter(([reason]) => reason !== "held_out");
  return reasons.reduce((sum, [, clips]) => sum + clips.clips, 0);
}

/** Show the shares of each entry, its aspect ratios together. */
export function drawShares(place, about, plan, before) {
  const [now, then] = [sharesByEntry(about, plan), sharesByEntry(about, before)];
  const meter = (row, measure, tone) => {
    const former = then.get(row.label)?.[measure] ?? 0;
    const title = percent(former) === percent(row[measure]) ? null : t`was ${percent(former)}`;
    const style = { "--share": `${100 * row[measure]}%`, "--tone": `var(--${tone})` };
    return h("div.meter", { style, title }, percent(row[measure]), h("i"));
  };
  fill(
    place,
    h("p.quiet", t`Every step weighs the same in the gradient; time is the cost of the micro-batches.`),
    table(
      t`Shares of the entries`,
      [
        [t`Bucket`, row => row.label],
        [t`Clips`, row => meter(row, "clips", "c1"), true],
        [t`Tokens`, row => meter(row, "tokens", "c1"), true],
        [t`Time`, row => meter(row, "time", "c8"), true],
        [t`Gradient`, row => meter(row, "gradient", "c2"), true],
      ],
      [...now.values()],
    ),
  );
}

function sharesByEntry(about, plan) {
  const labels = Object.fromEntries(about.buckets.map(bucket => [bucket.name, about.entries[bucket.entry].label]));
  const sums = new Map();
  for (const share of plan.shares) {
    const label = labels[share.name] || share.name;
    const sum = sums.get(label) || { label, clips: 0, tokens: 0, time: 0, gradient: 0 };
    for (const measure of MEASURES) sum[measure] += share[`share_of_${measure}`];
    sums.set(label, sum);
  }
  return sums;
}

/** Show how many clips are not trained and why; `ask` returns some of them by reason. */
export function drawUntrained(place, about, plan, before, ask) {
  const [now, then] = [plan.left_out, before.left_out];
  const reasons = [...new Set([...Object.keys(now), ...Object.keys(then)])];
  if (!reasons.length) return fill(place, h("p", t`All clips are trained.`));
  const rows = reasons.map(reason => ({
    reason,
    clips: now[reason]?.clips || 0,
    former: then[reason]?.clips || 0,
    nearest: now[reason]?.nearest || {},
    failed: now[reason]?.failed || {},
  }));
  const names = h("div");
  const show = button(t`Show some of them`, async () => fill(names, fileLists(about, await ask())), { kind: "small" });
  show.disabled = false; // reading needs no token
  fill(
    place,
    table(
      t`Clips that are not trained`,
      [
        [
          t`Reason`,
          row => [
            translated(about.reasons[row.reason]),
            mostFrequent(t`nearest: `, row.nearest),
            mostFrequent("", row.failed),
          ],
        ],
        [
          t`Clips`,
          row => [count(row.clips), row.clips !== row.former ? h("div.former", t`was ${count(row.former)}`) : null],
          true,
        ],
      ],
      rows,
    ),
    h("p.plan-names", show),
    names,
  );
}

function mostFrequent(label, numbers) {
  const first = Object.entries(numbers)
    .sort((a, b) => b[1] - a[1])
    .slice(0, 3);
  return first.length
    ? h("div.quiet", label, first.map(([what, clips]) => `${what} (${count(clips)})`).join(", "))
    : null;
}

function fileLists(about, found) {
  const line = file => h("li", h("code", file.path), file.detail ? h("span.quiet", ` ${file.detail}`) : null);
  return Object.entries(found).map(([reason, files]) =>
    h("details", h("summary", translated(about.reasons[reason])), h("ul.files", files.map(line))),
  );
}
