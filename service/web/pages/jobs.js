// The list of jobs, newest first. It asks again every two seconds and changes only the rows that differ.

import { at, get, poll } from "../lib/api.js";
import { h, show } from "../lib/dom.js";
import { duration, headline, moment, percent } from "../lib/format.js";

export const TITLE = "Jobs";
const STATES = ["queued", "running", "cancelling", "succeeded", "failed", "cancelled"];
const COLUMNS = ["", "Name", "State", "Data set", "Method", "Done", "Figure", "Created"];
const SECONDS = 2;
const PAGE = 50;

export const OVER = new Set(["succeeded", "failed", "cancelled"]);

const details = new Map(); // id → {method, result, isOver}: what is not in the list; asked for again when the job is over

export async function mount(place, { query, signal }) {
  const chosen = new Set();
  let limit = PAGE;
  let items = [];
  const rows = new Map(); // id → {text, row}: a row that says the same stays as it is
  const body = h("tbody");
  const table = h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Jobs" }, h("table.jobs", {},
    h("thead", {}, h("tr", {}, COLUMNS.map((title) => h(title === "Done" ? "th.number" : "th", { scope: "col" },
      title || "Pick")))), body));
  const text = h("input", { type: "search", id: "text", placeholder: "Name, id or data set", value: query.get("text") || "" });
  const state = h("select", { id: "state" }, h("option", { value: "" }, "Any state"),
    STATES.map((name) => h("option", { value: name }, name)));
  state.value = STATES.includes(query.get("state")) ? query.get("state") : "";
  const compare = h("button", { type: "button", disabled: true, onclick: () => {
    location.hash = `#/compare?ids=${[...chosen].map(encodeURIComponent).join(",")}`;
  } }, "Compare");
  const more = h("button", { type: "button", hidden: true }, "Show more");
  const nothing = h("div");
  const trouble = h("p.notice", { role: "status", hidden: true });

  const draw = () => {
    const wanted = text.value.trim().toLowerCase();
    const shown = items.filter((job) => [job.name, job.id, job.dataset].some((part) => part?.toLowerCase().includes(wanted)));
    const made = shown.map((job) => {
      const known = details.get(job.id);
      const now = JSON.stringify([job, known, chosen.has(job.id)]);
      const before = rows.get(job.id);
      if (before?.now === now) return before.row;
      const row = rowOf(job, known, chosen, picked);
      rows.set(job.id, { now, row });
      return row;
    });
    if (made.length !== body.children.length || made.some((row, index) => row !== body.children[index])) body.replaceChildren(...made);
    table.hidden = shown.length === 0;
    show(nothing, shown.length ? null : empty(Boolean(wanted || state.value), items.length, !more.hidden));
  };
  const picked = () => {
    compare.disabled = chosen.size < 2;
    compare.textContent = chosen.size ? `Compare ${chosen.size}` : "Compare";
    draw();
  };
  const ask = async () => {
    const filter = state.value ? `&state=${state.value}` : "";
    const page = await get(`/v1/jobs?limit=${limit}${filter}`, signal);
    items = page.items;
    more.hidden = page.next === null || limit >= 500;
    draw();
    await learn(items, signal);
    draw();
  };
  const remember = () => {
    const now = new URLSearchParams();
    if (text.value) now.set("text", text.value);
    if (state.value) now.set("state", state.value);
    history.replaceState(null, "", `#/jobs${now.size ? `?${now}` : ""}`);
  };
  text.addEventListener("input", () => { remember(); draw(); });
  const again = () => ask().catch((error) => { trouble.hidden = signal.aborted; trouble.textContent = error.message; });
  state.addEventListener("change", () => { remember(); again(); });
  more.addEventListener("click", () => { limit = Math.min(500, 4 * limit); again(); });

  show(place,
    h("div.bar", {}, h("h1", {}, "Jobs"), h("span.grow"), compare, h("a.button.primary", { href: "#/new" }, "New job")),
    h("div.bar", { role: "search" }, h("label", { for: "text" }, "Find "), text, h("label", { for: "state" }, "State "), state),
    trouble, table, nothing, more);
  table.hidden = true;
  await poll(ask, { seconds: SECONDS, signal, onTrouble: (error) => {
    trouble.hidden = error === null;
    trouble.textContent = error ? `${error.message} Trying again.` : "";
  } });
}

// What the list does not say, of jobs of which it is not known yet, a few at a time.
async function learn(items, signal) {
  const unknown = items.filter((job) => details.get(job.id)?.isOver !== OVER.has(job.state));
  for (let first = 0; first < unknown.length && !signal.aborted; first += 6) {
    await Promise.all(unknown.slice(first, first + 6).map(async (summary) => {
      const job = await get(`/v1/jobs/${at(summary.id)}`, signal).catch((error) => {
        if (error.status === 404) return null; // deleted meanwhile
        throw error;
      });
      if (job) details.set(job.id, { method: job.spec?.method?.name ?? "–", result: job.result, isOver: OVER.has(job.state) });
    }));
  }
}

function rowOf(job, known, chosen, picked) {
  const name = job.name || job.id;
  const pick = h("input", { type: "checkbox", checked: chosen.has(job.id), "aria-label": `Compare ${name}`, onchange: () => {
    if (pick.checked) chosen.add(job.id); else chosen.delete(job.id);
    picked();
  } });
  const [what, value] = headline({ ...job, result: known?.result });
  return h("tr", {},
    h("td", {}, pick),
    h("td", {}, h("a", { href: `#/job/${at(job.id)}` }, name)),
    h("td", {}, stateOf(job)),
    h("td", {}, job.dataset),
    h("td", {}, known?.method ?? "…"),
    h("td.number", {}, done(job)),
    h("td", {}, value, " ", h("small", {}, what)),
    h("td", {}, moment(job.created)));
}

export const stateOf = (job) => h(`span.state.${job.state}`, {}, job.state);

function done(job) {
  const { share, eta_seconds: left } = job.progress;
  if (job.state === "running" && typeof left === "number") return [percent(share), " ", h("small", {}, `${duration(left)} left`)];
  return job.state === "queued" ? "–" : percent(share);
}

const empty = (filtered, loaded, hasMore) => filtered
  ? h("div.empty", {}, h("p", {}, hasMore ? `None of the newest ${loaded} jobs matches. Show more, or change the filter.`
    : "No job matches. Change the filter to see others."))
  : h("div.empty", {}, h("h2", {}, "No jobs yet"),
    h("p", {}, "A job trains embeddings for a graph. The data set digits comes with the service, and is done in a minute or two."),
    h("p", {}, h("a.button.primary", { href: "#/new" }, "Submit the first job")));
