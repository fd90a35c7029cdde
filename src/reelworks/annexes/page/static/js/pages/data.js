// Clips of recipes and catalogs: what training reads of each, what is left out and why, captions.

import { pendingSection, scanStatus } from "../clips/scan.js";
import { ClipView } from "../clips/view.js";
import { button } from "../dialogs.js";
import { badge, card, emptySection, fill, h, progressBar, table } from "../elements.js";
import { get, post } from "../server.js";
import { t } from "../texts.js";
import { drawOnChange, repeat } from "../timing.js";
import { count } from "../units.js";

export const title = t`Data`;

export const render = (main, [key], signal) => (key ? renderClips(main, key, signal) : renderList(main, signal));

async function renderList(main, signal) {
  const list = h("div");
  fill(main, h("div.page-head", h("h1", t`Data`), h("span.gap"), h("a", { href: "#/new" }, t`New run`)), list);
  const text = t`A folder of pictures or clips is all it takes; a recipe names it.`;
  await drawOnChange(
    1500,
    signal,
    () => get("/data", signal),
    rows => {
      fill(
        list,
        rows.length
          ? card(listTable(rows))
          : emptySection(t`No data yet`, text, h("a", { href: "#/new" }, t`Make a recipe`)),
      );
    },
  );
}

const KINDS = { recipe: t`recipe`, run: t`data of a run`, catalog: t`catalog` };
const listTable = rows =>
  table(
    t`Data`,
    [
      [t`Data`, row => [h("a", { href: `#/data/${row.key}` }, row.name), h("div.quiet", row.path)]],
      [t`Kind`, row => KINDS[row.kind]],
      [t`Clips`, row => count(row.clips), true],
      [t`State`, stateCell],
    ],
    rows,
  );

function stateCell({ name, state, code, problem, reading }) {
  if (state === "error" && code !== "no-catalog") return h("span.error", problem);
  if (reading) return [h("span.quiet", reading.doing), progressBar(reading.share, `${name}: ${reading.doing}`)];
  if (state === "none" || state === "error") return badge(t`not scanned yet`);
  return state === "ready" ? badge(t`read`, "good") : null;
}

async function renderClips(main, key, signal) {
  const head = h("div");
  const body = h("div");
  fill(main, head, body);
  let about = await get(`/data/${key}`, signal);
  let drawnHead = "";
  let drawnBody = "";
  let view = null;
  const draw = () => {
    document.title = `${about.name} · ${title} · Reelworks`;
    const { state, job, reading, outside, name } = about;
    const now = JSON.stringify([state, job?.id, job?.state, reading?.doing, outside, name]);
    if (now !== drawnHead) fill(head, header(about, update, status.box));
    drawnHead = now;
    status.show(job);
    if (state === "ready") {
      drawnBody = "";
      if (!view) view = new ClipView(body, key, () => about, signal);
      else if (view.version !== about.version) view.renew();
      return;
    }
    view = null;
    const pending = JSON.stringify([now, reading, about.problem]);
    if (pending !== drawnBody) fill(body, pendingSection(about, update, status.box));
    drawnBody = pending;
  };
  const update = async () => {
    about = await get(`/data/${key}`, signal);
    if (!signal.aborted) draw();
  };
  const status = scanStatus(update);
  draw();
  repeat(1500, signal, update);
}

function header(about, update, status) {
  const isRecipe = about.kind === "recipe";
  const scans = about.job && about.job.state !== "failed";
  const scan = async () => {
    await post(`/data/${about.key}/scan`);
    await update();
  };
  const hint = t`brings the catalog up to date; only changed files are opened`;
  const doing =
    about.reading && about.state === "ready" ? h("span.quiet", { role: "status" }, `· ${about.reading.doing} …`) : null;
  return [
    h(
      "div.page-head",
      h("h1", about.name),
      h("span.quiet", about.path),
      doing,
      h("span.gap"),
      isRecipe
        ? [h("a", { href: `#/plan/${about.key}` }, t`Plan`), h("a", { href: `#/new/${about.key}` }, t`Edit`)]
        : null,
      isRecipe && !scans && about.state !== "none" ? button(t`Scan again`, scan, { title: hint }) : null,
    ),
    about.job && about.state === "ready" ? status : null,
    about.outside?.length ? outsideNotice(about.outside) : null,
  ];
}

function outsideNotice(outside) {
  const names = outside.join(", ");
  const isRemote = outside.some(one => one.includes("://"));
  return h(
    "p.notice",
    outside.length > 1
      ? t`${names} lie outside of the folders of this page, so their clips are listed but not shown. `
      : t`${names} lies outside of the folders of this page, so its clips are listed but not shown. `,
    isRemote
      ? t`Clips on other machines are drawn by: reelworks contact-sheet RECIPE`
      : h("span", t`To show them: `, h("code", `reelworks ui . ${outside.join(" ")}`)),
  );
}
