// The scan of a recipe's footage, before which there is no plan.

import { button } from "../dialogs.js";
import { badge, emptySection, fill, h } from "../elements.js";
import { isOpen, scanLine, stopButton, watchJob } from "../jobs.js";
import { get, post } from "../server.js";
import { t } from "../texts.js";
import { elapsed } from "../units.js";

/** Offer a scan, or show the one that runs. */
export async function offerScan(main, { key, name }, signal, onDone) {
  const progress = h("p.quiet", { role: "status" });
  const follow = job => {
    start.hidden = true;
    followCommand(job, progress, signal, onDone, () => {
      start.hidden = false;
    });
  };
  const start = button(t`Scan the footage`, async () => follow(await post(`/plan/${key}/scan`)), { kind: "main" });
  const text = t`Sizes, lengths and captions of the clips are read once; later scans open only files that changed.`;
  fill(main, emptySection(t`${name} has no catalog yet`, text, start, progress));
  const jobs = await get("/jobs", signal);
  const running = jobs.find(job => job.kind === "scan" && job.subject === key && isOpen(job));
  if (running) follow(running);
}

/** Tell how far a job is until it ends. */
export function followCommand(job, place, signal, onDone, onFail = () => {}) {
  const said = h("span");
  fill(place, h("span.row.watch", badge("", "busy"), said, stopButton(job.id)));
  watchJob(job.id, signal, found => {
    said.textContent = scanLine(found) || t`${found.kind} runs since ${elapsed(found.started || found.created)}`;
    if (isOpen(found)) return;
    if (found.state === "done" || found.result) return onDone(found);
    onFail();
    const printed = h("a", { href: `#/jobs/${job.id}` }, t`what it printed`);
    fill(place, h("span.error", found.error || t`${found.kind} was stopped`), " ", printed);
  });
}
