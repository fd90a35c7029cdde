// Numbers as people read them.

import { language, t, translated } from "./texts.js";

const number = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
export const count = value => (value === null || value === undefined ? "–" : number.format(value));
export function plural(value, noun) {
  if (language !== "en") return translated(`{0} ${noun}`, count(value));
  return `${count(value)} ${value === 1 ? noun : `${noun.replace(/(ch)$/, "$1e").replace(/([^aeiou])y$/, "$1ie")}s`}`;
}
export const percent = share => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(1)} %`);
export function loss(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return Math.abs(value) >= 0.01 && Math.abs(value) < 100 ? value.toFixed(4) : value.toPrecision(4);
}
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (value < 1000) return `${Number(value.toPrecision(3))} ${unit}`;
    value /= 1000;
  }
  return `${Number(value.toPrecision(4))} TB`;
}
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.round(seconds / 60);
  const hours = Math.floor(minutes / 60);
  if (hours >= 48) return `${Math.floor(hours / 24)} d ${hours % 24} h`;
  return hours ? `${hours} h ${String(minutes % 60).padStart(2, "0")} min` : `${minutes} min`;
}
export const elapsed = time => duration(Math.max(0, Date.now() / 1000 - time));
export const ago = time => (time ? t`${elapsed(time)} ago` : "–");
export const moment = time => (time ? new Date(time * 1000).toLocaleString("sv-SE") : "–");
