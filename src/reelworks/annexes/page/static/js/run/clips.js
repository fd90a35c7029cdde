// The clips of a run: where each of them went, the buckets, and which are left out for which reason.

import { card, emptySection, fill, h, table } from "../elements.js";
import { t, translated } from "../texts.js";
import { count, percent } from "../units.js";

export async function renderClips(body, { run }) {
  const renew = async () => {
    const { accounting, balance, buckets, reasons } = run();
    if (!accounting.length) return fill(body, emptySection(t`No plan yet`, t`A run counts its clips when it starts.`));
    fill(
      body,
      accountingCard(accounting, balance),
      card(h("h2", t`Buckets`), bucketTable(buckets)),
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
    h("span", { style: { "--tone": `var(--${tone})` } }, h("b", count(total)), ` ${translated(label)}`),
  );
  return card(
    h("h2", t`Every clip`),
    h("div.bar", { "aria-hidden": "true" }, parts),
    h("div.legend", legend),
    balance ? h("p.balance", balance) : null,
  );
}

const bucketTable = buckets => {
  const shares = buckets.some(bucket => bucket.sequence_degree > 1);
  return table(
    t`Buckets`,
    [
      [t`Bucket`, bucket => bucket.name],
      [t`Clips`, bucket => count(bucket.clips), true],
      [t`Share`, bucket => percent(bucket.share_of_clips), true],
      [t`Of the tokens`, bucket => percent(bucket.share_of_tokens), true],
      [t`Batch size`, bucket => bucket.batch_size, true],
      ...(shares ? [[t`GPUs`, bucket => bucket.sequence_degree, true]] : []),
      [t`Micro-batches`, bucket => count(bucket.micro_batches), true],
    ],
    buckets,
  );
};

function reasonCard({ total, label, remedy, files }) {
  const lines = files
    .slice(0, 200)
    .map(file => h("li", file.path, file.detail ? h("span.quiet", ` – ${file.detail}`) : null));
  return card(
    h("h2", `${count(total)} ${translated(label)}`),
    h("p.quiet", translated(remedy)),
    h("ul.files", { tabindex: "0" }, lines),
  );
}
