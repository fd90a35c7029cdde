// Commands that the server runs.

import { button } from "./dialogs.js";
import { get, post } from "./server.js";
import { every } from "./timing.js";

export const isOpen = job => ["waiting", "running"].includes(job.state);

/** The last line of a scan's progress in what a command has printed. */
export const scanLine = job =>
  job.output
    .split("\n")
    .filter(line => line.startsWith("scanning: "))
    .pop();

export const stopButton = (id, text = "Stop") => button(text, () => post(`/jobs/${id}/stop`), { kind: "small" });

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
  every(700, control.signal, look);
}
