// Published embeddings, and the map of one version: a node, where it lies, and what is near it.

import { at, get, post } from "../lib/api.js";
import { h, show } from "../lib/dom.js";
import { bytes, moment, number, percent, whole } from "../lib/format.js";
import { COLOURS, scatter } from "../lib/map.js";
import { principal } from "../lib/pca.js";
import { describe, sample } from "../lib/table.js";

export const TITLE = "Explore";
const MOST_POINTS = 4000;
const NEIGHBOURS = 10;
const MOST_LABELLED = 1000; // of a class: what one search answers at most

export async function mount(place, { rest: [ref], query, signal }) {
  if (!ref) return listed(place, signal);
  const info = await describe(ref, signal);
  const version = at(info.version);
  document.title = `${info.name || info.version} · NML-GCL`;
  const about = h("p.quiet", { role: "status" }, "Loading the map …");
  const canvas = h("canvas", { role: "img", "aria-label": "Map of the embeddings; to reach a node without a pointer, search it by its id" });
  const legend = h("ul.legend");
  const panel = h("div", { "aria-live": "polite" }, h("p.quiet", {}, "Click the map, or search a node by its id, to see what is near it."));
  const search = h("input", { type: "search", id: "node", autocomplete: "off", required: true });
  const zoomBy = (factor) => () => map?.zoom(factor);
  let map = null;
  show(place,
    h("div.bar", {}, h("h1", {}, info.name || info.version), h("span.grow"), h("a.button", { href: `#/job/${version}` }, "Its job")),
    h("p", {}, `${info.dataset} · ${whole(info.rows)} × ${whole(info.dim)} · version `, h("span.mono", {}, info.version),
      info.aliases.length ? ` · ${info.aliases.join(", ")}` : ""),
    info.state === "ready" ? null : h("p.notice.bad", {}, `This version is ${info.state}. ${info.failure ?? ""}`),
    h("div.map", {},
      h("div", {}, canvas, h("div.bar", {}, h("button", { type: "button", onclick: zoomBy(1.5), "aria-label": "Enlarge" }, "+"),
        h("button", { type: "button", onclick: zoomBy(1 / 1.5), "aria-label": "Make smaller" }, "−"),
        h("button", { type: "button", onclick: () => map?.reset() }, "Whole map"), about), legend),
      h("div", {}, h("form.bar", { role: "search", onsubmit: (event) => { event.preventDefault(); pick(search.value.trim()); } },
        h("label", { for: "node" }, "Node id"), search, h("button", {}, "Show")), panel)));
  if (info.state !== "ready") return;

  const { ids, vectors, rows } = await sample(info.version, info.dim, MOST_POINTS, signal);
  const { project, share } = principal(vectors, info.dim);
  const points = ids.map((id, row) => {
    const [x, y] = project(vectors.subarray(row * info.dim, (row + 1) * info.dim));
    return { id, x, y, colour: null };
  });
  const byId = new Map(points.map((point) => [point.id, point]));
  let latest = null, shown = null;

  async function pick(id, remember = true) {
    latest = id;
    try {
      const found = await post(`/v1/embeddings/${version}/neighbors`, { ids: [id], k: NEIGHBOURS, include_vectors: true }, { signal });
      if (latest !== id) return; // another one was picked meanwhile
      if (found.unknown.length) {
        shown = null;
        show(panel, h("p.notice", {}, `No node of this version has the id ${id}.`));
        map.select(null, []);
        return;
      }
      const node = await get(`/v1/embeddings/${version}/nodes/${at(id)}`, signal);
      if (latest !== id) return;
      const [result] = found.results;
      const placed = (name, vector) => {
        const [x, y] = project(vector);
        return byId.get(String(name)) ?? { id: String(name), x, y, colour: null };
      };
      map.select(placed(node.id, node.vector), result.ids.map((name, index) => placed(name, result.vectors[index])));
      search.value = String(node.id);
      shown = () => show(panel, chosen(node, result, found, byId, pick));
      shown();
      if (remember) history.pushState(null, "", `#/explore/${at(ref)}?node=${encodeURIComponent(node.id)}`);
    } catch (error) {
      if (!signal.aborted) show(panel, h("p.notice.bad", { role: "alert" }, error.message));
    }
  }

  map = scatter(canvas, points, pick, signal);
  const told = rows > ids.length ? `A random sample of ${whole(ids.length)} of ${whole(rows)} nodes` : `All ${whole(rows)} nodes`;
  about.textContent = `${told}; first two principal components, ${percent(share)} of the variance.`;
  map.repaint();
  if (query.get("node")) await pick(query.get("node"), false);
  await colour(points, byId, vectors, info, signal).catch(() => null).then((classes) => { if (classes) show(legend, classes); });
  shown?.(); // now with the neighbours' labels
  map.repaint();
}

function chosen(node, result, found, byId, pick) {
  const labelOf = (id) => byId.get(String(id))?.label;
  return [
    h("h2", {}, `Node ${node.id}`),
    node.label === null || node.label === undefined ? null : h("p", {}, "Label ", h("b", {}, node.label)),
    h("h3", {}, `Nearest ${result.ids.length} by ${found.metric} (${found.backend} search)`),
    h("ol.near", {}, result.ids.map((id, index) => h("li", {},
      h("button", { type: "button", onclick: () => pick(String(id)) }, String(id)),
      labelOf(id) === undefined ? null : h("span.quiet", {}, labelOf(id)),
      h("span", {}, result.scores[index].toFixed(4))))),
    h("details", {}, h("summary", {}, `Vector, ${whole(node.vector.length)} numbers`), h("pre", { tabindex: 0 }, node.vector.map(number).join("  "))),
  ];
}

// Colours by label: of each class the rows nearest the middle of the map, which are all of them unless it is a large class.
async function colour(points, byId, vectors, info, signal) {
  const { classes, dim } = info;
  if (!classes || classes.length < 2 || classes.length > COLOURS) return null;
  const middle = new Array(dim).fill(0);
  for (let index = 0; index < vectors.length; index += 1) middle[index % dim] += vectors[index] / points.length;
  for (const [number_, label] of classes.entries()) {
    const found = await post(`/v1/embeddings/${at(info.version)}/neighbors`,
      { vectors: [middle], k: MOST_LABELLED, filter: { labels: [label] } }, { signal });
    for (const id of found.results[0].ids) {
      const point = byId.get(String(id));
      if (point) Object.assign(point, { colour: number_, label });
    }
  }
  const unknown = points.filter((point) => point.colour === null).length;
  return [...classes.map((label, index) => h(`li.m${index}`, {}, h("span", {}, label))),
    unknown ? h("li", {}, h("span", {}, `${whole(unknown)} without a label, or far from the middle`)) : null];
}

async function listed(place, signal) {
  const { items } = await get("/v1/embeddings?limit=100", signal);
  if (!items.length) {
    show(place, h("h1", {}, "Explore"), h("div.empty", {}, h("h2", {}, "No embeddings yet"),
      h("p", {}, "When a training job succeeds, its embeddings are published, and their map is here."),
      h("p", {}, h("a.button.primary", { href: "#/new" }, "Submit a job"))));
    return;
  }
  show(place, h("h1", {}, "Explore"), h("p.quiet", {}, "Published embeddings, newest first. Choose one to see its map."),
    h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Embeddings" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Version", "Data set", "State", "Names"].map((title) => h("th", { scope: "col" }, title)),
        ["Nodes", "Dimension", "Size"].map((title) => h("th.number", { scope: "col" }, title)), h("th", { scope: "col" }, "Published"))),
      h("tbody", {}, items.map((item) => h("tr", {},
        h("td", {}, h("a", { href: `#/explore/${at(item.version)}` }, item.name || item.version)),
        h("td", {}, item.dataset), h("td", {}, item.state), h("td", {}, item.aliases.join(", ") || "–"),
        h("td.number", {}, whole(item.rows)), h("td.number", {}, whole(item.dim)), h("td.number", {}, bytes(item.bytes)),
        h("td", {}, moment(item.published))))))));
}
