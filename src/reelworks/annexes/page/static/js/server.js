// Requests to the server of the page.

import { t } from "./texts.js";

// The token comes in the address that the terminal prints, after "#", which browsers send to nobody.
const KEY = `reelworks-token ${location.pathname}`; // a proxy may have several pages below its paths
// The one before, until the server has taken the new one: the address may be of a page that has ended.
const FORMER = `reelworks-former-token ${location.pathname}`;
export function takeToken() {
  const found = /^#token=([\w.~-]+)$/.exec(location.hash);
  if (found) {
    if (canChange() && localStorage.getItem(KEY) !== found[1]) localStorage.setItem(FORMER, localStorage.getItem(KEY));
    localStorage.setItem(KEY, found[1]);
    history.replaceState(null, "", "#/runs");
  }
  document.getElementById("read-only").hidden = canChange();
}
export const canChange = () => Boolean(localStorage.getItem(KEY));

/** An error that the server explains: problem, field, value and remedy. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.problem || t`the server did not answer`);
    Object.assign(this, { status }, body);
  }
}

async function request(method, path, body, signal) {
  const headers = method === "GET" ? {} : { "X-Reelworks-Token": localStorage.getItem(KEY) || "" };
  const isFile = body instanceof Blob;
  if (body !== undefined && !isFile) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(`api${path}`, {
      method,
      headers,
      signal,
      body: body === undefined || isFile ? body : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { problem: t`the page's server does not answer`, remedy: t`start it again: reelworks ui` });
  }
  const value = (answer.headers.get("content-type") || "").includes("json") ? await answer.json() : null;
  if (!answer.ok) {
    if (answer.status === 401) {
      const former = localStorage.getItem(FORMER);
      localStorage.removeItem(FORMER);
      if (former) {
        localStorage.setItem(KEY, former);
        return request(method, path, body, signal);
      }
      localStorage.removeItem(KEY);
      document.getElementById("read-only").hidden = false;
    }
    const detail = value?.detail ? { problem: JSON.stringify(value.detail) } : {};
    throw new Problem(answer.status, value ? { ...detail, ...value } : {});
  }
  if (method !== "GET") localStorage.removeItem(FORMER);
  return value;
}
export const get = (path, signal) => request("GET", path, undefined, signal);
export const post = (path, body = {}, signal) => request("POST", path, body, signal);
export const put = (path, body, signal) => request("PUT", path, body, signal);

/** Call a function with each message of the server until the page is left, and another where none will come. */
export function follow(path, signal, onNews, onEnd) {
  const source = new EventSource(`api${path}`);
  source.onmessage = event => onNews(JSON.parse(event.data));
  source.onerror = () => source.readyState === EventSource.CLOSED && onEnd();
  signal.addEventListener("abort", () => source.close());
}
