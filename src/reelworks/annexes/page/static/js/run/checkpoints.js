// What a run keeps, why, and what would go.

import { ask, button, toast } from "../dialogs.js";
import { badge, card, emptySection, fill, h, media, table } from "../elements.js";
import { get, post } from "../server.js";
import { t } from "../texts.js";
import { bytes, count, loss, moment, plural } from "../units.js";
import { Generator } from "./generate.js";

export async function renderCheckpoints(body, context) {
  const { key, signal } = context;
  const list = h("div");
  const making = h("div");
  const rest = h("div");
  const generator = new Generator(making, key, signal, () => renew());
  fill(body, list, making, rest);
  const renew = async () => {
    const [found, made] = await Promise.all([
      get(`/runs/${key}/checkpoints`, signal),
      get(`/runs/${key}/checkpoints/made`, signal),
    ]);
    const none = t`One is saved after checkpoints.every_steps steps, when the run is stopped, and at its end.`;
    fill(
      list,
      found.rows.length ? checkpointCard(found, context, generator, renew) : emptySection(t`No checkpoint yet`, none),
    );
    if (found.rows.length) fill(rest, exportedFiles(made), generatedFiles(made));
  };
  await renew();
  await generator.restore();
  return renew;
}

function checkpointCard(found, { key, run, signal }, generator, renew) {
  const act = async (path, tell) => {
    toast(tell(await post(`/runs/${key}/checkpoints/${path}`)));
    await renew();
  };
  const size = `${plural(found.rows.length, "checkpoint")}, ${bytes(found.total_bytes)}`;
  const buttons = row =>
    h(
      "span.row",
      pinButton(row, act),
      verifyButton(row, act),
      button(t`Export`, () => exportStep(key, row.step, run().recipe), { kind: "small" }),
      button(t`Generate`, () => generator.open(row.step), { kind: "small" }),
    );
  return card(
    h("p", t`${size}; ${bytes(found.free_bytes)} free on the disk`),
    found.forecast ? h("p.quiet", t`Until the end: ${found.forecast}`) : null,
    checkpointTable(found.rows, buttons),
    h(
      "div.actions",
      button(t`Delete what would go`, () => prune(key, signal, act), { kind: "danger" }),
    ),
  );
}

const checkpointTable = (rows, buttons) =>
  table(
    t`Checkpoints`,
    [
      [t`Step`, row => count(row.step), true],
      [t`Epoch`, row => row.epoch ?? "–", true],
      [t`Size`, row => bytes(row.bytes), true],
      [t`Saved`, row => moment(row.created)],
      [t`Metrics`, row => Object.entries(row.metrics || {}).map(([name, value]) => h("div", `${name} ${loss(value)}`))],
      [t`Kept because`, reasonCell],
      ["", buttons],
    ],
    [...rows].reverse(),
  );

function reasonCell({ state, reasons }) {
  if (state === "kept") return reasons.join("; ");
  const goes = state === "goes";
  return [
    badge(goes ? t`goes at the next save` : t`damaged`, goes ? "warn" : "bad"),
    h("div.quiet", reasons.join("; ")),
  ];
}

function pinButton({ step, pinned }, act) {
  const told = pinned ? t`step ${step} is no longer pinned` : t`step ${step} stays, whatever the policy says`;
  return button(pinned ? t`Unpin` : t`Pin`, () => act(`${step}/${pinned ? "unpin" : "pin"}`, () => told), {
    kind: "small",
  });
}

function verifyButton({ step }, act) {
  const tell = ({ good, reason }) => (good ? t`step ${step} is whole: all digests match` : t`step ${step}: ${reason}`);
  return button(t`Verify`, () => act(`${step}/verify`, tell), { kind: "small" });
}

async function prune(key, signal, act) {
  const { deleted, kept } = await get(`/runs/${key}/checkpoints/prune`, signal);
  if (!deleted.length) return toast(t`the policy keeps all of them`);
  const line = row => h("li", t`step ${count(row.step)}, ${bytes(row.bytes)}: ${row.reasons.join("; ")}`);
  const question = t`Delete ${deleted.length} of ${deleted.length + kept.length} checkpoints?`;
  if (await ask(question, h("ul", deleted.map(line)), t`Delete`))
    await act("prune", told => t`${told.deleted.length} deleted`);
}

function exportedFiles(made) {
  const weights = made.filter(file => !file.media);
  if (!weights.length) return null;
  const columns = [
    [t`File`, file => h("a", { href: file.url, download: "" }, file.name)],
    [t`Size`, file => bytes(file.bytes), true],
    [t`Written`, file => moment(file.time)],
  ];
  return [h("h2", t`Exported`), card(table(t`Exported files`, columns, weights))];
}

function generatedFiles(made) {
  const shown = made.filter(file => file.media);
  if (!shown.length) return null;
  const figure = file =>
    h("figure", media(file.url, file.media.startsWith("video/"), file.name), h("figcaption", file.name));
  return [h("h2", t`Generated`), h("div.clips", shown.map(figure))];
}

/** Ask how the weights of a step are to be written, and start the command. */
async function exportStep(key, step, recipe) {
  const select = (...names) =>
    h(
      "select",
      names.map(name => h("option", { value: name }, name)),
    );
  const isLora = /^\[lora\]/m.test(recipe);
  const format = isLora ? select("diffusers", "comfyui", "kohya") : null;
  const dtype = select("bfloat16", "float16", "float32");
  const ema = h("input", { type: "checkbox", checked: true });
  const field = (label, input) => input && h("label", h("span", label), input);
  const fields = h(
    "div.fields",
    field(t`Names of`, format),
    field(t`Numbers as`, dtype),
    field(t`Averaged weights`, ema),
  );
  if (!(await ask(t`Export step ${step}`, fields, t`Export`))) return;
  const wish = { dtype: dtype.value, ema: ema.checked, ...(format && { format: format.value }) };
  const job = await post(`/runs/${key}/checkpoints/${step}/export`, wish);
  location.hash = `#/jobs/${job.id}`;
}
