"use strict";
// Figures: colours come from the style sheet, so both schemes share one definition.
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}
function draw() {
  const source = document.getElementById("figures");
  if (!source) return;
  const ink = colour("ink2"), grid = colour("line");
  const coloured = source.textContent.replace(/"@(\w+)"/g, (_, name) => JSON.stringify(colour(name)));
  const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, automargin: true, fixedrange: false };
  for (const [name, plot] of Object.entries(JSON.parse(coloured))) {
    const own = plot.layout;
    const layout = Object.assign({
      margin: { l: 50, r: 12, t: 8, b: 42 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink },
      hovermode: "x unified", hoverlabel: { bgcolor: colour("card"), bordercolor: grid, font: { color: colour("ink") } },
      legend: { orientation: "h", y: -0.24, yanchor: "top", x: 0 },
    }, own);
    for (const side of ["xaxis", "yaxis"]) {
      layout[side] = Object.assign({}, axis, side === "xaxis" ? { showgrid: false } : {}, own[side]);
      layout[side].title = Object.assign({ font: { size: 11, color: colour("muted") }, standoff: 8 }, own[side].title);
    }
    Plotly.react("plot-" + name, plot.data, layout, { displayModeBar: false, responsive: true });
  }
}
draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

// Previews: a slider over the steps, oldest left; without this script all steps are shown.
const slider = document.getElementById("preview-step");
if (slider) {
  const groups = Array.from(document.querySelectorAll(".step-previews")).reverse();
  const all = document.getElementById("preview-all"), output = document.getElementById("preview-now");
  const show = () => {
    groups.forEach((group, i) => {
      group.hidden = !all.checked && i !== Number(slider.value);
      group.querySelector("h3").hidden = !all.checked;
    });
    slider.disabled = all.checked;
    output.textContent = all.checked ? "all steps" : groups[Number(slider.value)].querySelector("h3").textContent;
  };
  document.getElementById("preview-panel").hidden = false;
  slider.max = groups.length - 1;
  slider.value = slider.max;
  slider.addEventListener("input", show);
  all.addEventListener("change", show);
  show();
}
