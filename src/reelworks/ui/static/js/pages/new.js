import { empty, fill } from "../core.js";
export const title = "New";
export async function render(main) { fill(main, empty("Not here yet", "")); }
