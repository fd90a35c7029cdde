// Memory and time of a plan, from a job that loads the model.

import { button } from "../dialogs.js";
import { fill, h, memoryBar, table } from "../elements.js";
import { post } from "../server.js";
import { t } from "../texts.js";
import { bytes, count, duration, plural } from "../units.js";
import { followCommand } from "./scan.js";

export class MemoryCheck {
  constructor(page) {
    this.page = page;
    this.element = h("div");
    this.offer();
  }

  offer(...result) {
    const text = [
      t`Loads the model and runs the largest bucket of each resolution once, `,
      t`forward and backward, on this machine.`,
    ];
    fill(
      this.element,
      h("p.quiet", text),
      h(
        "p.plan-names",
        button(t`Check memory and time`, () => this.run()),
      ),
      result,
    );
  }

  async run() {
    const place = h("div");
    const controls = structuredClone(this.page.now);
    fill(this.element, place);
    try {
      const job = await post(`/plan/${this.page.key}/check`, { controls });
      followCommand(job, place, this.page.signal, found => this.draw(found, controls));
    } catch (error) {
      this.offer();
      throw error;
    }
  }

  draw(job, controls) {
    const found = job.result;
    if (!found)
      return this.offer(
        h("p.error", job.error || t`it printed no result`),
        h("a", { href: `#/jobs/${job.id}` }, t`what it printed`),
      );
    const { total, host } = found.memory;
    const where = found.device === "cpu" ? t`${bytes(total)} of memory` : t`${bytes(total)} on each GPU`;
    this.offer(
      h("h3.plan-memory", where, host ? h("span.quiet", t` and ${bytes(host)} of CPU memory`) : null),
      memoryBar(found.memory),
      passTable(found),
      this.epochTime(found, controls),
      found.violations.map(one => h("p.error", `${one.module}: ${one.problem}. ${one.remedy || ""}`)),
      found.warnings.map(text => h("p.hint", text)),
    );
  }

  /** How long an epoch would take, if the time of all buckets is known and the settings are those of the check. */
  epochTime(found, controls) {
    const { about, plan, now } = this.page;
    const entryOf = name => about.entries[about.buckets.find(bucket => bucket.name === name)?.entry];
    const seconds = {}; // of a token, by resolution
    for (const one of found.rehearsed) {
      const bucket = about.buckets.find(each => each.name === one.bucket);
      if (!bucket) continue;
      const tokens = (one.batch_size * bucket.tokens) / bucket.sequence_degree; // of the pass
      seconds[entryOf(one.bucket).resolution] = one.seconds / tokens;
    }
    const rates = plan.buckets.map(bucket => seconds[entryOf(bucket.name)?.resolution]);
    if (!found.rehearsed.length || rates.includes(undefined) || JSON.stringify(controls) !== JSON.stringify(now))
      return null;
    const busy = plan.buckets.reduce((sum, bucket, i) => sum + bucket.clips * bucket.tokens_per_clip * rates[i], 0);
    const time = duration(busy / now.world / Math.max(0.01, 1 - plan.imbalance));
    const on = found.device === "cpu" ? plural(now.world, "such processor") : plural(now.world, "such GPU");
    return h(
      "p",
      t`An epoch would take about ${time} on ${on}, in proportion to tokens; reading and encoding come on top.`,
    );
  }
}

const passTable = ({ device, rehearsed }) =>
  table(
    t`Passes`,
    [
      [t`Pass, forward and backward`, one => one.bucket],
      [t`Batch size`, one => count(one.batch_size), true],
      [t`Activations`, one => bytes(one.activations_bytes), true],
      [t`Time on ${device}`, one => duration(one.seconds), true],
    ],
    rehearsed,
  );
