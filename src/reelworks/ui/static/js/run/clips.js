// The clips of a run: where each of them went, the buckets, and which are left out for which reason.

import { card, emptySection, fill, h, table } from "../elements.js";
import { count, percent } from "../units.js";

export async function renderClips(body, { run }) {
  const renew = async () => {
    const { accounting, balance, buckets, reasons } = run();
    if (!accounting.length) return fill(body, emptySection("No plan yet", "A run counts its clips when it starts."));
    fill(
      body,
      accountingCard(accounting, balance),
      card(h("h2", "Buckets"), bucketTable(buckets)),
      reasons.map(reasonCard),
    );
  };
  await renew();
  return renew;
}

function accountingCard(accounting, balance) {
  const parts = accounting.map(({ share, tone }) =>
    h("span", { style: { "--share": share, "--tone": `var(--${tone})` } }),
  );
  const legend = accounting.map(({ tone, total, label }) =>
    h("span", { style: { "--tone": `var(--${tone})` } }, h("b", count(total)), ` ${label}`),
  );
  return card(
    h("h2", "Every clip"),
    h("div.bar", { "aria-hidden": "true" }, parts),
    h("div.legend", legend),
    balance ? h("p.balance", balance) : null,
  );
}

const bucketTable = buckets =>
  table(
    "Buckets",
    [
      ["Bucket", bucket => bucket.name],
      ["Clips", bucket => count(bucket.clips), true],
      ["Share", bucket => percent(bucket.share_of_clips), true],
      ["Of the tokens", bucket => percent(bucket.share_of_tokens), true],
      ["Batch size", bucket => bucket.batch_size, true],
      ["Micro-batches", bucket => count(bucket.micro_batches), true],
    ],
    buckets,
  );

function reasonCard({ total, label, remedy, files }) {
  const lines = files
    .slice(0, 200)
    .map(file => h("li", file.path, file.detail ? h("span.quiet", ` – ${file.detail}`) : null));
  return card(h("h2", `${count(total)} ${label}`), h("p.quiet", remedy), h("ul.files", { tabindex: "0" }, lines));
}
