// A command that was started from the page, with what it prints.

import { button } from "../dialogs.js";
import { badge, fill, h } from "../elements.js";
import { generatedMedia, isOpen } from "../jobs.js";
import { get, post } from "../server.js";
import { t, translated } from "../texts.js";
import { repeat } from "../timing.js";
import { ago, moment } from "../units.js";

export const title = t`Command`;

export async function render(main, [id], signal) {
  const head = h("div");
  const made = h("div");
  const output = h("pre.log", { tabindex: "0", "aria-label": t`what it has printed` });
  fill(main, head, made, output);
  let former = null;
  const update = async () => {
    const job = await get(`/jobs/${id}`, signal);
    if (job.state !== former) fill(head, header(job, update));
    if (job.state !== former && job.state === "done" && job.kind === "generate")
      fill(made, await generatedMedia(job, signal));
    former = job.state;
    if (output.textContent === job.output) return;
    const atEnd = output.scrollTop + output.clientHeight > output.scrollHeight - 30;
    output.textContent = job.output;
    if (atEnd) output.scrollTop = output.scrollHeight;
  };
  await update();
  repeat(1000, signal, update);
}

function header(job, update) {
  const stop = async () => {
    await post(`/jobs/${job.id}/stop`);
    await update();
  };
  const tone = { failed: "bad", running: "busy", done: "good" }[job.state];
  return [
    h(
      "div.page-head",
      h("h1", `${job.kind} ${job.title}`),
      badge(translated(job.state), tone),
      h("span.gap"),
      isOpen(job) ? button(t`Stop`, stop) : null,
    ),
    h("p.quiet", `reelworks ${job.arguments.join(" ")}`),
    h("p.quiet", job.ended ? t`ended ${moment(job.ended)}` : t`since ${ago(job.started || job.created)}`),
    job.error ? h("p.error", job.error) : null,
  ];
}
