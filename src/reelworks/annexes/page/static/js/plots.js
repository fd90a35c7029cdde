// Plots: plotly is loaded when the first one is drawn. report.js, which reports share, tells how they look.

import { h } from "./elements.js";
import { t } from "./texts.js";

let plotly = null;
export function loadPlotly() {
  plotly ??= new Promise((resolve, reject) => {
    const script = h("script", { src: "plotly.js" });
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error(t`the plots could not be loaded`));
    document.head.append(script);
  });
  return plotly;
}
const drawn = new Map();

/** Draw a figure as reports do. */
export async function plot(element, figure, label) {
  await loadPlotly();
  drawn.set(element, [figure, label]);
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", label);
  await drawFigure(element, figure);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const [element, [figure, label]] of drawn)
    element.isConnected ? plot(element, figure, label) : drawn.delete(element);
});
