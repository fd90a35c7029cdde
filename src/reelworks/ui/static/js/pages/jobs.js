// A command that was started from the page, with what it prints.

import { button } from "../dialogs.js";
import { badge, fill, h } from "../elements.js";
import { get, post } from "../server.js";
import { every } from "../timing.js";
import { ago, moment } from "../units.js";

export const title = "Command";

/** What a command generated, shown as it is. */
export async function picture(job, signal) {
  const path = job.arguments[job.arguments.indexOf("--output") + 1];
  const files = await get(`/runs/${job.subject}/checkpoints/made`, signal);
  const file = files.find(one => path.endsWith(`/${one.name}`));
  if (!file) return null;
  return file.media.startsWith("video/")
    ? h("video", { src: file.url, controls: true, loop: true, autoplay: true, muted: true, "aria-label": job.title })
    : h("img", { src: file.url, alt: job.title });
}

export async function render(main, [id], signal) {
  const head = h("div");
  const made = h("div");
  const output = h("pre.log", { tabindex: "0", "aria-label": "what it has printed" });
  fill(main, head, made, output);
  let former = null;
  const update = async () => {
    const job = await get(`/jobs/${id}`, signal);
    const open = ["waiting", "running"].includes(job.state);
    if (job.state !== former)
      fill(
        head,
        h(
          "div.page-head",
          h("h1", `${job.kind} ${job.title}`),
          badge(job.state, { failed: "bad", running: "busy", done: "good" }[job.state]),
          h("span.gap"),
          open
            ? button("Stop", async () => {
                await post(`/jobs/${id}/stop`);
                await update();
              })
            : null,
        ),
        h("p.quiet", `reelworks ${job.arguments.join(" ")}`),
        h("p.quiet", job.ended ? `ended ${moment(job.ended)}` : `since ${ago(job.started || job.created)}`),
        job.error ? h("p.error", job.error) : null,
      );
    if (job.state !== former && job.state === "done" && job.kind === "generate") fill(made, await picture(job, signal));
    former = job.state;
    if (output.textContent !== job.output) {
      const atEnd = output.scrollTop + output.clientHeight > output.scrollHeight - 30;
      output.textContent = job.output;
      if (atEnd) output.scrollTop = output.scrollHeight;
    }
  };
  await update();
  every(1000, signal, update);
}
