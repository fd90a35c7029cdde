// Clips of recipes and catalogs: what training reads of each, what is left out and why, captions.

import { showClip } from "../clip_details.js";
import { Grid, PAGE, Pictures } from "../clip_grid.js";
import { button, explain } from "../dialogs.js";
import { drawDistributions } from "../distributions.js";
import { badge, card, empty, fill, h, progress, table } from "../elements.js";
import { canChange, get, post } from "../server.js";
import { every, throttled } from "../timing.js";
import { count, duration, percent, plural } from "../units.js";

export const title = "Data";
const FEW = 8; // values of a filter that are shown at once

export const render = (main, [key], signal) => (key ? renderClips(main, key, signal) : renderList(main, signal));

async function renderList(main, signal) {
  const list = h("div");
  fill(main, h("div.page-head", h("h1", "Data"), h("span.gap"), h("a", { href: "#/new" }, "New run")), list);
  let former = "";
  const update = async () => {
    const rows = await get("/data", signal);
    const now = JSON.stringify(rows);
    if (now === former || signal.aborted) return;
    former = now;
    fill(
      list,
      rows.length
        ? card(listTable(rows))
        : empty(
            "No data yet",
            "A folder of pictures or clips is all it takes; a recipe names it.",
            h("a", { href: "#/new" }, "Make a recipe"),
          ),
    );
  };
  await update();
  every(1500, signal, update);
}

const KINDS = { recipe: "recipe", run: "data of a run", catalog: "catalog" };
const listTable = rows =>
  table(
    "Data",
    [
      ["Data", row => [h("a", { href: `#/data/${row.key}` }, row.name), h("div.quiet", row.path)]],
      ["Kind", row => KINDS[row.kind]],
      ["Clips", row => count(row.clips), true],
      [
        "State",
        row =>
          row.state === "error" && row.code !== "no-catalog"
            ? h("span.error", row.problem)
            : row.reading
              ? [h("span.quiet", row.reading.doing), progress(row.reading.share, `${row.name}: ${row.reading.doing}`)]
              : row.state === "none" || row.state === "error"
                ? badge("not scanned yet")
                : row.state === "ready"
                  ? badge("read", "good")
                  : null,
      ],
    ],
    rows,
  );

async function renderClips(main, key, signal) {
  const head = h("div");
  const body = h("div");
  fill(main, head, body);
  let about = await get(`/data/${key}`, signal);
  let drawn = "";
  let drawnBody = "";
  let view = null;
  const draw = () => {
    document.title = `${about.name} · Data · Reelworks`;
    const now = JSON.stringify([
      about.state,
      about.job?.id,
      about.job?.state,
      about.reading?.doing,
      about.outside,
      about.name,
    ]);
    if (now !== drawn) fill(head, header(about, update, line.box));
    drawn = now;
    line.show(about.job);
    if (about.state === "ready") {
      drawnBody = "";
      if (!view) view = makeView(body, key, () => about, signal);
      else if (view.version !== about.version) view.renew();
    } else {
      view = null;
      const state = JSON.stringify([now, about.reading, about.problem]);
      if (state !== drawnBody) fill(body, ...waiting(about, update, line.box));
      drawnBody = state;
    }
  };
  const update = async () => {
    about = await get(`/data/${key}`, signal);
    if (!signal.aborted) draw();
  };
  const line = jobLine(update);
  draw();
  every(1500, signal, update);
}

function header(about, update, line) {
  const scans =
    about.kind === "recipe" && !about.job && about.state !== "none"
      ? button(
          "Scan again",
          async () => {
            await post(`/data/${about.key}/scan`);
            await update();
          },
          { title: "brings the catalog up to date; only changed files are opened" },
        )
      : null;
  const plan =
    about.kind === "recipe"
      ? [h("a", { href: `#/plan/${about.key}` }, "Plan"), h("a", { href: `#/new/${about.key}` }, "Edit")]
      : null;
  return [
    h(
      "div.page-head",
      h("h1", about.name),
      h("span.quiet", about.path),
      about.reading && about.state === "ready"
        ? h("span.quiet", { role: "status" }, `· ${about.reading.doing} …`)
        : null,
      h("span.gap"),
      plan,
      scans,
    ),
    about.job && about.state === "ready" ? line : null,
    about.outside?.length
      ? h(
          "p.notice",
          `${about.outside.join(", ")} ${about.outside.length > 1 ? "lie" : "lies"} outside of the folders of this page, so its clips are listed but not shown. `,
          about.outside.some(one => one.includes("://"))
            ? "Clips on other machines are drawn by: reelworks contact-sheet RECIPE"
            : h("span", "To show them: ", h("code", `reelworks ui . ${about.outside.join(" ")}`)),
        )
      : null,
  ];
}

/** A line that tells what a scan is doing, and stops it. */
function jobLine(update) {
  let job = null;
  const text = h("span.quiet");
  const kind = h("span");
  const more = h("a", "what it prints");
  const stop = button(
    "Stop",
    async () => {
      await post(`/jobs/${job.id}/stop`);
      await update();
    },
    { kind: "small" },
  );
  return {
    box: h("div.row.scanning", { role: "status" }, kind, text, more, stop),
    show: async now => {
      job = now;
      if (!job) return;
      const failed = job.state === "failed";
      fill(kind, badge(failed ? "the scan failed" : "scan", failed ? "bad" : "busy"));
      more.href = `#/jobs/${job.id}`;
      stop.hidden = failed;
      if (failed) text.textContent = job.error;
      else {
        const found = await get(`/jobs/${job.id}`).catch(() => null);
        if (found && found.state !== "failed")
          text.textContent = found.output.trim().split("\n").pop() || "listing the files …";
      }
    },
  };
}

function* waiting(about, update, line) {
  const scan = button(
    "Scan",
    async () => {
      await post(`/data/${about.key}/scan`);
      await update();
    },
    { kind: "main" },
  );
  if (about.state === "none" || about.code === "no-catalog") {
    const names = (about.datasets || []).map(one => one.path).join(", ");
    if (about.job && about.job.state !== "failed")
      yield h(
        "section.empty",
        h("h2", "Scanning"),
        line,
        h("p.quiet", `Each file of ${names} is opened once; a scan that is stopped goes on later.`),
      );
    else
      yield empty(
        "Not scanned yet",
        `A scan opens each file of ${names} once, and notes its size, frames and caption.`,
        about.job ? h("p.error", about.job.error) : null,
        scan,
        canChange() ? null : h("p.quiet", "reelworks scan does it on the command line"),
      );
  } else if (about.state === "error")
    yield empty(
      about.problem,
      about.remedy || "",
      about.value ? h("p.quiet", `${about.field} = ${about.value}`) : null,
      about.kind === "recipe" ? h("a", { href: `#/new/${about.key}` }, "Edit the recipe") : null,
    );
  else
    yield h(
      "section.empty",
      { role: "status" },
      h("h2", "Reading the clips"),
      h("p", about.reading ? about.reading.doing : ""),
      h("div.reading", progress(about.reading?.share || 0, "share that is read")),
    );
}

/** The filters and the grid, and what keeps them together. */
function makeView(body, key, about, signal) {
  const chosen = {};
  const opened = new Set();
  const pictures = new Pictures(signal);
  let sort = "name";
  let text = "";
  let part = "clips";
  let counts = null;
  let asked = 0;
  const filters = h("aside.filters", { "aria-label": "Filters" });
  const told = h("p.told", { role: "status" });
  const search = h("input", {
    type: "search",
    placeholder: "path or caption",
    "aria-label": "search in paths and captions",
    spellcheck: "false",
  });
  const order = h(
    "select",
    { "aria-label": "order" },
    Object.entries(about().sorts).map(([name, label]) => h("option", { value: name }, label)),
  );
  const parts = h("div.parts", { role: "group", "aria-label": "view" });
  const shown = h("div");
  const bars = h("div.bars");
  const details = h(
    "details.filters-box",
    { open: matchMedia("(min-width: 821px)").matches },
    h("summary", "Filters"),
    filters,
  );
  const address = (more = {}) => {
    const query = new URLSearchParams();
    for (const [name, values] of Object.entries(chosen)) for (const value of values) query.append(name, value);
    if (text) query.set("q", text);
    query.set("sort", sort);
    for (const [name, value] of Object.entries(more)) query.set(name, value);
    return `?${query}`;
  };
  const grid = new Grid(
    {
      page: async (offset, limit) => (await get(`/data/${key}/clips${address({ offset, limit })}`, signal)).clips,
      tile: clip => tileOf(clip, sort),
      label: clip => labelOf(clip),
      show: (tile, clip, wanted) => showPicture(pictures, key, tile, clip, wanted),
      open: index => openClip(index),
    },
    signal,
  );
  const view = { version: about().version, renew: null };
  const load = async ({ stay = false } = {}) => {
    const now = ++asked;
    shown.classList.add("busy");
    try {
      const found = await get(`/data/${key}/clips${address({ offset: 0, limit: PAGE })}`, signal);
      if (now !== asked || signal.aborted) return;
      [counts, view.version] = [found.counts, found.version];
      grid.reset(found.total, found.clips, { stay });
      tell(found.total);
      drawFilters();
      fill(shown, found.total ? grid.host : nothing());
      if (found.total) grid.measure();
      if (part === "bars") await drawDistributions(bars, await get(`/data/${key}/distributions${address()}`, signal));
    } catch (error) {
      if (!signal.aborted) explain(error);
    } finally {
      if (now === asked) shown.classList.remove("busy");
    }
  };
  const nothing = () =>
    about().clips
      ? empty(
          "No clip is chosen",
          "No clip meets all filters.",
          h("button", { type: "button", onclick: clear }, "Clear the filters"),
        )
      : empty("No clips", "The catalog is empty: put pictures or clips into the folder, and scan again.");
  const isFiltered = () => text || Object.values(chosen).some(values => values.length);
  const clear = () => {
    for (const name of Object.keys(chosen)) delete chosen[name];
    text = search.value = "";
    load();
  };
  const tell = total =>
    fill(
      told,
      h("b", isFiltered() ? `${count(total)} of ${plural(about().clips, "clip")}` : plural(total, "clip")),
      isFiltered() ? h("button.small", { type: "button", onclick: clear }, "Clear") : null,
    );
  const drawFilters = () => {
    const at = document.activeElement?.dataset?.filter;
    fill(
      filters,
      about().facets.map(facet =>
        filterBox(facet, counts?.[facet.name] || facet.counts, chosen, opened, () => load(), drawFilters),
      ),
    );
    if (at) filters.querySelector(`[data-filter="${CSS.escape(at)}"]`)?.focus();
  };
  const drawParts = () =>
    fill(
      parts,
      [
        ["clips", "Clips"],
        ["bars", "Distributions"],
      ].map(([name, label]) =>
        h("button", { type: "button", "aria-pressed": String(part === name), onclick: () => choosePart(name) }, label),
      ),
    );
  const choosePart = async name => {
    part = name;
    drawParts();
    fill(content, name === "clips" ? shown : bars);
    order.hidden = name !== "clips";
    if (name === "clips") grid.measure();
    else {
      if (!bars.children.length) fill(bars, h("p.quiet.loading", "loading …"));
      try {
        await drawDistributions(bars, await get(`/data/${key}/distributions${address()}`, signal));
      } catch (error) {
        explain(error);
      }
    }
  };
  const openClip = index =>
    showClip({
      key,
      index,
      grid,
      pictures,
      signal,
      total: () => grid.total,
      onChange: async (at, clip) => {
        grid.changed(at, clip);
        view.stale = true;
      },
      onClose: at => {
        grid.focus(at);
        if (view.stale) {
          view.stale = false;
          load({ stay: true });
        }
      },
    });
  const typed = throttled(180, () => {
    if (text !== search.value.trim()) {
      text = search.value.trim();
      load();
    }
  });
  search.addEventListener("input", typed);
  search.addEventListener("keydown", event => {
    if (event.key === "Escape" && !search.value) search.blur();
  });
  order.addEventListener("change", () => {
    sort = order.value;
    load();
  });
  view.renew = () => {
    view.version = about().version;
    pictures.forgetProblems();
    if (!document.querySelector("dialog[open]")) load({ stay: true });
  };
  const content = h("div", shown);
  drawParts();
  fill(
    body,
    h(
      "div.data",
      details,
      h("section", { "aria-label": "Clips" }, h("div.toolbar", search, order, parts, told), content),
    ),
  );
  load();
  return view;
}

function filterBox(facet, counts, chosen, opened, load, redraw) {
  const picked = chosen[facet.name] || [];
  const total = counts.reduce((sum, one) => sum + one, 0);
  const there = facet.values
    .map((value, i) => ({ ...value, count: counts[i], all: facet.counts[i] }))
    .filter(value => value.all || picked.includes(value.id));
  if (there.length < 2 && !picked.length) return null;
  const isLong = there.length > FEW + 2;
  const values = isLong && !opened.has(facet.name) ? shortened(there, picked) : there;
  const toggle = id => {
    chosen[facet.name] = picked.includes(id) ? picked.filter(one => one !== id) : [...picked, id];
    load();
  };
  return h(
    "fieldset.filter",
    h("legend", facet.label),
    values.map(value =>
      h(
        "button.value",
        {
          type: "button",
          "aria-pressed": String(picked.includes(value.id)),
          title: value.hint || null,
          "data-filter": `${facet.name}:${value.id}`,
          onclick: () => toggle(value.id),
          style: { "--share": total ? value.count / total : 0 },
        },
        h("span", value.label),
        h("b", count(value.count)),
      ),
    ),
    isLong
      ? h(
          "button.more",
          {
            type: "button",
            "data-filter": `${facet.name}:more`,
            onclick: () => {
              opened.has(facet.name) ? opened.delete(facet.name) : opened.add(facet.name);
              redraw();
            },
          },
          opened.has(facet.name) ? "show fewer" : `${there.length - values.length} more`,
        )
      : null,
  );
}
const shortened = (values, picked) => {
  const largest = new Set(
    [...values]
      .sort((a, b) => b.all - a.all)
      .slice(0, FEW)
      .map(value => value.id),
  );
  return values.filter(value => largest.has(value.id) || picked.includes(value.id));
};

const nameOf = path => path.slice(path.lastIndexOf("/") + 1);
const measureOf = (clip, sort) =>
  sort === "cropped" && clip.bucket
    ? `${percent(clip.lost)} cropped`
    : sort === "largest" && clip.bucket
      ? `${clip.source[0]} × ${clip.source[1]}`
      : null;
function tileOf(clip, sort) {
  const told = clip.reason
    ? h(clip.reason[3] ? "span.why.kept" : "span.why", { title: clip.reason[2] }, clip.reason[1])
    : h("span", clip.bucket || `${clip.source[0]} × ${clip.source[1]}`);
  return [
    h(
      "div.pic",
      h("span.frame", {
        style: {
          "aspect-ratio": `${clip.shape[0] || 3} / ${clip.shape[1] || 2}`,
          ...(clip.shape[0] / clip.shape[1] > 1 / 0.72 ? { width: "100%" } : { height: "100%" }),
        },
      }),
      clip.video && clip.seconds ? h("span.length", duration(clip.seconds)) : null,
    ),
    h("div.name", { title: clip.path }, nameOf(clip.path)),
    h("div.about", told, h("span", measureOf(clip, sort))),
  ];
}
const labelOf = clip =>
  [
    clip.path,
    clip.video ? `video, ${plural(clip.frames, "frame")}` : "picture",
    clip.reason ? `left out: ${clip.reason[1]}` : clip.bucket,
    clip.caption,
  ]
    .filter(Boolean)
    .join(", ");

async function showPicture(pictures, key, tile, clip, wanted) {
  const base = `/api/data/${key}/clips/${clip.id}`;
  const frame = tile.querySelector(".frame");
  const found = await pictures.load(`${base}/thumbnail.webp`, wanted);
  if (!found || !frame.isConnected) {
    tile.asked = false;
    return;
  }
  if (!found.url) return fill(frame, h("span.gone", { title: found.value || "" }, found.problem || "no picture"));
  const still = h("img", { src: found.url, alt: "", draggable: "false" });
  fill(frame, still);
  if (!clip.video) return;
  let over = false;
  const play = async () => {
    over = true;
    await new Promise(resolve => setTimeout(resolve, 120)); // not for each tile that the pointer passes
    if (!over) return;
    const loop = await pictures.load(`${base}/loop.webp`, () => over);
    if (over && loop?.url) fill(frame, h("img", { src: loop.url, alt: "", draggable: "false" }));
  };
  const rest = () => {
    over = false;
    fill(frame, still);
  };
  for (const name of ["pointerenter", "focus"]) tile.addEventListener(name, play);
  for (const name of ["pointerleave", "blur"]) tile.addEventListener(name, rest);
}
