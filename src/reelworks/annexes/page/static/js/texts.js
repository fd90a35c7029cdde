// Fixed texts in the browser's language: English as they stand in the scripts, or Chinese from one table, zh.json.

export const language = /^zh\b/i.test(navigator.language) ? "zh-CN" : "en";
const table = new Map(language === "en" ? [] : Object.entries(await loadTable()));

async function loadTable() {
  const answer = await fetch("static/zh.json").catch(() => null);
  return answer?.ok ? answer.json() : {}; // without the server, English tells that it is gone
}

/** A text of the table, whose "{0}", "{1}" are values. */
export const translated = (text, ...values) => (table.get(text) ?? text).replace(/\{(\d)\}/g, (_, i) => values[i]);

/** Sentences, each of which may be in the table. */
export const sentences = text => text.replace(/\S.*?\.(?= |$)/g, one => translated(one));

/** A fixed text: t`Train`, or with values t`${count} of ${all} clips`, which the table has as "{0} of {1} clips". */
export function t([first, ...rest], ...values) {
  return translated(first + rest.map((part, i) => `{${i}}${part}`).join(""), ...values);
}
