// What a run keeps, why, and what would go.

import { ask, badge, bytes, button, card, count, empty, explain, fill, get, h, loss, moment, plural, post, table, toast } from "../core.js";

export async function renderCheckpoints(body, key, run, signal) {
  const renew = async () => {
    const [found, made] = await Promise.all([get(`/runs/${key}/checkpoints`, signal), get(`/runs/${key}/checkpoints/made`, signal)]);
    if (!found.rows.length) return fill(body, empty("No checkpoint yet", "One is saved after checkpoints.every_steps steps, when the run is stopped, and at its end."));
    const act = (path, text) => async () => { const told = await post(`/runs/${key}/checkpoints/${path}`); toast(text ? text(told) : "done"); await renew(); };
    fill(body, card(
      h("p", {}, `${plural(found.rows.length, "checkpoint")}, ${bytes(found.total_bytes)}; ${bytes(found.free_bytes)} free on the disk`), found.forecast ? h("p.quiet", {}, `Until the end: ${found.forecast}`) : null,
      table("Checkpoints", [
        ["Step", row => count(row.step), true], ["Epoch", row => row.epoch ?? "–", true], ["Size", row => bytes(row.bytes), true], ["Saved", row => moment(row.created)],
        ["Metrics", row => Object.entries(row.metrics || {}).map(([name, value]) => h("div", {}, `${name} ${loss(value)}`))],
        ["Kept because", row => row.state === "kept" ? row.reasons.join("; ") : [badge(row.state === "goes" ? "goes at the next save" : "damaged", row.state === "goes" ? "warn" : "bad"), h("div.quiet", {}, row.reasons.join("; "))]],
        ["", row => h("span.row", {},
          button(row.pinned ? "Unpin" : "Pin", act(`${row.step}/${row.pinned ? "unpin" : "pin"}`, () => row.pinned ? `step ${row.step} is no longer pinned` : `step ${row.step} stays, whatever the policy says`), { kind: "small" }),
          button("Verify", act(`${row.step}/verify`, told => told.good ? `step ${row.step} is whole: all digests match` : `step ${row.step}: ${told.reason}`), { kind: "small" }),
          button("Export", () => exportIt(key, row.step, run().recipe), { kind: "small" }),
          button("Generate", () => generate(key, row.step), { kind: "small" }))],
      ], [...found.rows].reverse()),
      h("div.actions", {}, button("Delete what would go", async () => {
        const plan = await get(`/runs/${key}/checkpoints/prune`, signal);
        if (!plan.deleted.length) return toast("the policy keeps all of them");
        const list = h("ul", {}, plan.deleted.map(row => h("li", {}, `step ${count(row.step)}, ${bytes(row.bytes)}: ${row.reasons.join("; ")}`)));
        if (await ask(`Delete ${plan.deleted.length} of ${plan.deleted.length + plan.kept.length} checkpoints?`, list, "Delete")) await act("prune", told => `${told.deleted.length} deleted`)();
      }, { kind: "danger" }))), ...files(made));
  };
  await renew();
  return renew;
}

function* files(made) {
  const [weights, shown] = [made.filter(file => !file.media), made.filter(file => file.media)];
  if (weights.length) {
    yield h("h2", {}, "Exported");
    yield card(table("Exported files", [["File", file => h("a", { href: file.url, download: "" }, file.name)], ["Size", file => bytes(file.bytes), true], ["Written", file => moment(file.time)]], weights));
  }
  if (shown.length) {
    yield h("h2", {}, "Generated");
    yield h("div.clips", {}, shown.map(file => h("figure", {}, file.media.startsWith("video/")
      ? h("video", { src: file.url, loop: true, muted: true, autoplay: true, controls: true, "aria-label": file.name }) : h("img", { src: file.url, alt: file.name, loading: "lazy" }), h("figcaption", {}, file.name))));
  }
}

async function form(title, fields, verb) {
  const inputs = Object.fromEntries(fields.map(([name, label, input]) => [name, input]));
  const content = h("div.fields", {}, fields.map(([, label, input]) => h("label", {}, h("span", {}, label), input)));
  if (!(await ask(title, content, verb))) return null;
  return Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.type === "checkbox" ? input.checked : input.value]));
}

async function exportIt(key, step, recipe) {
  const isLora = /^\[lora\]/m.test(recipe);
  const options = (...names) => names.map(name => h("option", { value: name }, name));
  const fields = [["dtype", "Numbers as", h("select", {}, options("bfloat16", "float16", "float32"))], ["ema", "Averaged weights", h("input", { type: "checkbox", checked: true })]];
  if (isLora) fields.unshift(["format", "Names of", h("select", {}, options("diffusers", "comfyui", "kohya"))]);
  const chosen = await form(`Export step ${step}`, fields, "Export");
  if (!chosen) return;
  const job = await post(`/runs/${key}/checkpoints/${step}/export`, chosen);
  location.hash = `#/jobs/${job.id}`;
}

async function generate(key, step) {
  const chosen = await form(`Generate from step ${step}`, [["prompt", "Prompt", h("textarea", { rows: 3, cols: 40 })], ["seed", "Seed", h("input", { type: "number", value: 0, min: 0 })]], "Generate");
  if (!chosen) return;
  if (!chosen.prompt.trim()) return explain(Object.assign(new Error("the prompt is empty"), { remedy: "say what to generate" }));
  const job = await post(`/runs/${key}/checkpoints/${step}/generate`, { prompt: chosen.prompt, seed: Number(chosen.seed) });
  location.hash = `#/jobs/${job.id}`;
}
