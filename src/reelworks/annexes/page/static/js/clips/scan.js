// The scan that the clips of a page come from: what it is doing, and what is shown before it has ended.

import { button } from "../dialogs.js";
import { badge, emptySection, fill, h, progressBar } from "../elements.js";
import { canChange, get, post } from "../server.js";
import { t } from "../texts.js";

/** A line that tells what a scan is doing, and stops it. */
export function scanStatus(update) {
  let job = null;
  const text = h("span.quiet");
  const kind = h("span");
  const more = h("a", t`what it prints`);
  const stop = button(
    t`Stop`,
    async () => {
      await post(`/jobs/${job.id}/stop`);
      await update();
    },
    { kind: "small" },
  );
  const show = async now => {
    job = now;
    if (!job) return;
    const failed = job.state === "failed";
    fill(kind, badge(failed ? t`the scan failed` : t`scan`, failed ? "bad" : "busy"));
    more.href = `#/jobs/${job.id}`;
    stop.hidden = failed;
    if (failed) {
      text.textContent = job.error;
      return;
    }
    const found = await get(`/jobs/${job.id}`).catch(() => null);
    if (found && found.state !== "failed")
      text.textContent = found.output.trim().split("\n").pop() || t`listing the files …`;
  };
  return { box: h("div.row.scanning", { role: "status" }, kind, text, more, stop), show };
}

/** What a page shows while there are no clips to be seen. */
export function pendingSection(about, update, status) {
  if (about.state === "none" || about.code === "no-catalog") return scanSection(about, update, status);
  if (about.state === "error") {
    const where = about.value ? h("p.quiet", `${about.field} = ${about.value}`) : null;
    const edit = about.kind === "recipe" ? h("a", { href: `#/new/${about.key}` }, t`Edit the recipe`) : null;
    return emptySection(about.problem, about.remedy || "", where, edit);
  }
  const share = h("div.reading", progressBar(about.reading?.share || 0, t`share that is read`));
  return h(
    "section.empty",
    { role: "status" },
    h("h2", t`Reading the clips`),
    h("p", about.reading ? about.reading.doing : ""),
    share,
  );
}

function scanSection(about, update, status) {
  const names = (about.datasets || []).map(one => one.path).join(", ");
  if (about.job && about.job.state !== "failed") {
    const note = t`Each file of ${names} is opened once; a scan that is stopped goes on later.`;
    return h("section.empty", h("h2", t`Scanning`), status, h("p.quiet", note));
  }
  const scan = button(
    t`Scan`,
    async () => {
      await post(`/data/${about.key}/scan`);
      await update();
    },
    { kind: "main" },
  );
  const command = canChange() ? null : h("p.quiet", t`reelworks scan does it on the command line`);
  const error = about.job ? h("p.error", about.job.error) : null;
  return emptySection(
    t`Not scanned yet`,
    t`A scan opens each file of ${names} once, and notes its size, frames and caption.`,
    error,
    scan,
    command,
  );
}
