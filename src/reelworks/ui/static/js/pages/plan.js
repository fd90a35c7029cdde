import { empty, fill } from "../core.js";
export const title = "Plan";
export async function render(main) { fill(main, empty("Not here yet", "")); }
