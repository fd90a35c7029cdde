// biome-ignore lint/suspicious/noRedundantUseStrict: it is a script, not a module
"use strict";
// What reports and the page share: how figures look, and how tables that are wider than their place are shown.

// Colours come from the style sheet, so both schemes share one definition.
const themeColour = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const resizing = new ResizeObserver(entries =>
  requestAnimationFrame(() => {
    for (const { target } of entries) if (target.isConnected && target.data) Plotly.Plots.resize(target);
  }),
);

/** Draw a figure (plotly's data and layout, with colours such as "@c1") into an element, or draw it again. */
// biome-ignore lint/correctness/noUnusedVariables: script.js and the page call it
function drawFigure(element, figure) {
  const { data, layout: own } = JSON.parse(
    JSON.stringify(figure).replace(/"@(\w+)"/g, (_, name) => JSON.stringify(themeColour(name))),
  );
  const grid = themeColour("line");
  const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, automargin: true, exponentformat: "e" };
  const layout = {
    margin: { l: 50, r: 12, t: 8, b: 42 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: themeColour("ink2") },
    hovermode: "x unified",
    hoverlabel: { bgcolor: themeColour("card"), bordercolor: grid, font: { color: themeColour("ink") } },
    legend: { orientation: "h", y: -0.24, yanchor: "top", x: 0 },
    uirevision: "kept",
    ...own,
  };
  for (const side of ["xaxis", "yaxis"]) {
    layout[side] = { ...axis, ...(side === "xaxis" ? { showgrid: false } : {}), ...own[side] };
    layout[side].title = { font: { size: 11, color: themeColour("muted") }, standoff: 8, ...own[side]?.title };
  }
  resizing.observe(element);
  return Plotly.react(element, data, layout, { displayModeBar: false });
}

/** Show a table in its scrolling box with a line for each cell, with the name of its column, where it would be cut. */
function stackIfCut(box) {
  if (!box.isConnected || box.clientWidth === box.stackedFor) return;
  box.stackedFor = box.clientWidth;
  box.classList.remove("stacked");
  if (box.scrollWidth <= box.clientWidth) return;
  const names = [...box.querySelectorAll("thead th")].map(head => head.textContent.trim());
  for (const row of box.querySelectorAll("tbody tr"))
    [...row.cells].forEach((cell, i) => {
      cell.dataset.label = names[i] || "";
    });
  box.classList.add("stacked");
}
const stacking = new ResizeObserver(entries =>
  requestAnimationFrame(() => {
    for (const { target } of entries) stackIfCut(target);
  }),
);
for (const box of document.querySelectorAll(".scroll")) stacking.observe(box);
