// Pictures of clips, loaded when they come into sight and kept for a while.

import { t } from "../texts.js";

const KEPT_PICTURES = 400;
const AT_ONCE = 5;

/** Pictures by address: an object's address once loaded, or the reason why there is none. */
export class Pictures {
  constructor(signal) {
    this.signal = signal;
    this.known = new Map();
    this.waiting = [];
    this.active = 0;
    signal.addEventListener("abort", () => {
      for (const one of this.known.values()) if (one.url) URL.revokeObjectURL(one.url);
    });
  }
  /** Load a picture when its turn comes; `wanted` tells whether it still is. */
  load(address, wanted = () => true) {
    const kept = this.known.get(address);
    if (kept) {
      this.known.delete(address);
      this.known.set(address, kept);
      return Promise.resolve(kept);
    }
    return new Promise(resolve => {
      this.waiting.push({ address, wanted, resolve });
      this.next();
    });
  }
  next() {
    while (this.active < AT_ONCE && this.waiting.length) {
      const { address, wanted, resolve } = this.waiting.pop(); // what came into sight last is looked at now
      if (!wanted()) {
        resolve(null);
        continue;
      }
      this.active += 1;
      this.fetch(address)
        .then(resolve, () => resolve(null))
        .finally(() => {
          this.active -= 1;
          this.next();
        });
    }
  }
  async fetch(address) {
    if (this.known.has(address)) return this.known.get(address);
    const answer = await fetch(address, { signal: this.signal });
    const found = answer.ok
      ? { url: URL.createObjectURL(await answer.blob()) }
      : await answer.json().catch(() => ({ problem: t`no picture` }));
    this.known.set(address, found);
    while (this.known.size > KEPT_PICTURES) {
      const [oldest, one] = this.known.entries().next().value;
      if (one.url) URL.revokeObjectURL(one.url);
      this.known.delete(oldest);
    }
    return found;
  }
  forgetProblems() {
    for (const [address, one] of this.known) if (!one.url) this.known.delete(address);
  }
}
