// Calls that are repeated, and calls that are held back.

/** Call a function again and again, one call at a time, until the page is left; hidden pages rest. */
export function repeat(milliseconds, signal, call) {
  let timer;
  const again = async () => {
    if (!document.hidden)
      await call().catch(error => {
        if (error.name !== "AbortError") console.warn(error);
      });
    if (!signal.aborted) timer = setTimeout(again, milliseconds);
  };
  timer = setTimeout(again, milliseconds);
  signal.addEventListener("abort", () => clearTimeout(timer));
}

/** Return a function that calls another at most once in so many milliseconds, the last time included. */
export function throttle(milliseconds, call) {
  let last = -Infinity;
  let timer = null;
  return (...values) => {
    clearTimeout(timer);
    const wait = Math.max(0, last + milliseconds - performance.now());
    timer = setTimeout(() => {
      last = performance.now();
      call(...values);
    }, wait);
  };
}

/** Return a function that ends the former request, so that no late answer replaces a newer one, and makes a signal. */
export function newest(signal) {
  let last = new AbortController();
  return () => {
    last.abort();
    last = new AbortController();
    return AbortSignal.any([signal, last.signal]);
  };
}

/** Draw what `load` returns, now and each time that what is essential of it has changed. */
export async function drawOnChange(milliseconds, signal, load, draw, essential = found => found) {
  let former = "";
  const update = async () => {
    const found = await load();
    const now = JSON.stringify(essential(found));
    if (now === former || signal.aborted) return;
    former = now;
    draw(found, update);
  };
  await update();
  repeat(milliseconds, signal, update);
}
