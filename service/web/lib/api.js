// The public API, with the key that the person gave. The key stays in the tab's session storage, never in an address.

const KEY = "nml-key";

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (text) => sessionStorage.setItem(KEY, text),
  forget: () => sessionStorage.removeItem(KEY),
};

// What the API refuses: a problem document (RFC 9457).
export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `The service answered with status ${status}.`);
    this.status = status;
    this.errors = Array.isArray(problem.errors) ? problem.errors : [];
    this.wait = 2;
  }
}

export async function request(path, { method = "GET", body, headers = {}, signal } = {}) {
  const sent = { ...headers };
  if (key.get()) sent.Authorization = `Bearer ${key.get()}`;
  if (body !== undefined) sent["Content-Type"] = "application/json";
  const answer = await fetch(path, {
    method, signal, headers: sent, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-cache",
  });
  if (answer.ok) return answer;
  let problem = {};
  try {
    problem = await answer.json();
  } catch { // a proxy's own page
  }
  const refused = new Refused(answer.status, problem);
  refused.wait = Number(answer.headers.get("Retry-After")) || 2;
  if (answer.status === 401) dispatchEvent(new CustomEvent("nml-key-needed", { detail: refused.message }));
  throw refused;
}

// Whole numbers beyond 2^53 stay what they are, as text, where the browser tells it: they are ids.
const exact = (_, value, context) =>
  typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "") ? context.source : value;
const json = async (answer) => JSON.parse(await answer.text(), exact);

export const get = async (path, signal) => json(await request(path, { signal }));
export const text = async (path, signal) => (await request(path, { signal })).text();
export const bytes = async (path, signal, more = {}) => (await request(path, { signal, ...more })).arrayBuffer();
export const post = async (path, body, { headers, signal } = {}) =>
  json(await request(path, { method: "POST", body, headers, signal }));

// Hex: crypto.randomUUID is only there on secure addresses.
export const idempotencyKey = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (value) => value.toString(16).padStart(2, "0")).join("");

export const at = (...parts) => parts.map(encodeURIComponent).join("/");

export function pause(seconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal?.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}

// Call `work` at once and every so many seconds, while the page is visible, until it returns true or the page is left.
// A service that does not answer is asked again; `onTrouble` hears of it, and with null that it is over.
export async function poll(work, { seconds, signal, onTrouble = () => {} }) {
  while (!signal.aborted) {
    let wait = seconds;
    try {
      if (!document.hidden && (await work())) return;
      onTrouble(null);
    } catch (error) {
      if (signal.aborted || error.status === 401 || error.status === 404) return;
      onTrouble(error);
      wait = Math.max(seconds, error.wait || 2);
    }
    await pause(wait, signal);
  }
}
