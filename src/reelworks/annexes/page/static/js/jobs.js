// Commands that the server runs.

import { button } from "./dialogs.js";
import { media } from "./elements.js";
import { get, post } from "./server.js";
import { t } from "./texts.js";
import { repeat } from "./timing.js";

export const isOpen = job => ["waiting", "running"].includes(job.state);

/** The last line of a scan's progress in what a command has printed. */
export const scanLine = job =>
  job.output
    .split("\n")
    .filter(line => line.startsWith("scanning: "))
    .pop();

export const stopButton = (id, text = t`Stop`) => button(text, () => post(`/jobs/${id}/stop`), { kind: "small" });

/** Call a function with a job, now and again until the job has ended or the page is left. */
export function watchJob(id, signal, onNews) {
  const control = new AbortController();
  signal.addEventListener("abort", () => control.abort());
  const look = async () => {
    const job = await get(`/jobs/${id}`, signal);
    if (control.signal.aborted) return;
    if (!isOpen(job)) control.abort();
    await onNews(job);
  };
  look();
  repeat(700, control.signal, look);
}

/** What a command generated, shown as it is; null if it is not there. */
export async function generatedMedia(job, signal) {
  const path = job.arguments[job.arguments.indexOf("--output") + 1];
  const files = await get(`/runs/${job.subject}/checkpoints/made`, signal);
  const file = files.find(one => path.endsWith(`/${one.name}`));
  return file ? media(file.url, file.media.startsWith("video/"), job.title) : null;
}
