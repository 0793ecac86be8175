// Two or more jobs side by side: where their specs differ, their curves in one chart, their figures in one table.

import { at, get } from "../lib/api.js";
import { overlaid } from "../lib/curves.js";
import { h, show } from "../lib/dom.js";
import { flat, number } from "../lib/format.js";
import { stateOf } from "./jobs.js";

export const TITLE = "Compare";
const MOST = 8; // as many as there are colours

export async function mount(place, { query, signal }) {
  const ids = [...new Set((query.get("ids") ?? "").split(",").filter(Boolean))].slice(0, MOST);
  if (ids.length < 2) {
    show(place, h("div.empty", {}, h("h1", {}, "Nothing to compare yet"),
      h("p", {}, "Pick two or more jobs in the list, then choose Compare."), h("p", {}, h("a.button.primary", { href: "#/jobs" }, "To the jobs"))));
    return;
  }
  const runs = await Promise.all(ids.map(async (id) => {
    const [job, data] = await Promise.all([get(`/v1/jobs/${at(id)}`, signal), get(`/v1/jobs/${at(id)}/metrics`, signal)]);
    return { job, data, label: job.name || job.id };
  }));
  const seen = new Map(); // two jobs of the same name are told apart by their ids
  for (const run of runs) seen.set(run.label, (seen.get(run.label) ?? 0) + 1);
  for (const run of runs) if (seen.get(run.label) > 1) run.label = `${run.label} …${run.job.id.slice(-5)}`;
  const different = rows(runs.map(({ job }) => job.spec)).filter(([name, values]) =>
    name !== "run.name" && new Set(values.map((value) => JSON.stringify(value))).size > 1);
  const figures = rows(runs.map(({ job }) => ({ ...job.result?.eval, protocol: undefined, train_seconds: job.result?.train_seconds })))
    .filter(([, values]) => values.some((value) => typeof value === "number") && new Set(values).size > 1);
  const heads = (title) => h("thead", {}, h("tr", {}, h("th", { scope: "col" }, title),
    runs.map(({ job, label }, index) => h("th", { scope: "col" }, h(`span.s${index}`, { "aria-hidden": "true" }, "■ "), h("a", { href: `#/job/${at(job.id)}` }, label)))));
  const curves = overlaid(runs).filter(Boolean);
  show(place,
    h("h1", {}, `${runs.length} jobs compared`),
    h("h2", {}, "Spec, where they differ"),
    wide("Differing fields", h("table", {}, heads("Field"), h("tbody", {},
      h("tr", {}, h("th", { scope: "row" }, "state"), runs.map(({ job }) => h("td", {}, stateOf(job)))),
      different.map(([name, values]) => h("tr", {}, h("th", { scope: "row" }, name), values.map((value) => h("td.mono", {}, said(value)))))))),
    different.length ? null : h("p.quiet", {}, "All fields are equal."),
    h("h2", {}, "Curves"), curves.length ? h("div.charts", {}, curves) : h("p.quiet", {}, "None of them has trained an epoch yet."),
    h("h2", {}, "Figures, where they differ"),
    figures.length ? wide("Figures", h("table", {}, heads("Figure"), h("tbody", {},
      figures.map(([name, values]) => h("tr", {}, h("th", { scope: "row" }, name), values.map((value) => h("td.mono", {}, number(value)))))))) : h("p.quiet", {}, "There are none that differ; figures come when a job has succeeded."));
}

const wide = (label, table) => h("div.scroll", { tabindex: 0, role: "region", "aria-label": label }, table);
const said = (value) => (value === undefined ? "–" : JSON.stringify(value));

// [[path, [value of the first, …]]] over all documents.
function rows(documents) {
  const maps = documents.map((document) => new Map(flat(document)));
  return [...new Set(maps.flatMap((map) => [...map.keys()]))].map((name) => [name, maps.map((map) => map.get(name))]);
}
