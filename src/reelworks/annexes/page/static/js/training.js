// Trainings that a page starts.

import { ask, toast } from "./dialogs.js";
import { h } from "./elements.js";
import { get, post } from "./server.js";
import { t } from "./texts.js";
import { repeat } from "./timing.js";

/** Queue a training or resume one; code that the recipe of `key` names is asked about once. */
export async function startTraining(path, key) {
  try {
    return await post(path);
  } catch (error) {
    if (error.code !== "code-not-trusted") throw error;
    const text = [
      h("p", t`The recipe runs code of this file, which can do whatever you can:`),
      h("p", h("code", error.value)),
    ];
    if (!(await ask(t`Run this code?`, text, t`Trust it and train`))) throw error;
    await post(`/recipes/${key}/trust`);
    return startTraining(path, key);
  }
}

/** Queue a training, and go to its run as soon as it has one. */
export async function train(key, run, signal) {
  const job = await startTraining(`/recipes/${key}/train`, key);
  toast(t`training is queued`);
  const control = new AbortController();
  signal.addEventListener("abort", () => control.abort());
  repeat(700, control.signal, async () => {
    const [runs, now] = await Promise.all([get("/runs", signal), get(`/jobs/${job.id}`, signal)]);
    if (control.signal.aborted) return;
    if (runs.some(one => one.key === run) && now.state === "running") {
      control.abort();
      location.hash = `#/run/${run}`;
    } else if (["failed", "stopped", "done"].includes(now.state)) {
      control.abort();
      location.hash = now.state === "done" ? `#/run/${run}` : `#/jobs/${job.id}`;
    } else if (now.state === "waiting") {
      control.abort();
      toast(t`it waits for the training before it`);
      location.hash = "#/runs";
    }
  });
}
