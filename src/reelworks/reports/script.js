function draw() {
  const source = document.getElementById("figures");
  if (!source) return;
  for (const [name, figure] of Object.entries(JSON.parse(source.textContent)))
    drawFigure(document.getElementById(`plot-${name}`), figure);
}
draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

// Previews: a slider over the steps, oldest left; without this script all steps are shown.
const slider = document.getElementById("preview-step");
if (slider) {
  const groups = Array.from(document.querySelectorAll(".step-previews")).reverse();
  const all = document.getElementById("preview-all");
  const output = document.getElementById("preview-now");
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
