// A new job: a form made from the schema that the API serves. Only what somebody fills in is sent; the preset has the rest.

import { at, get, idempotencyKey, post } from "../lib/api.js";
import { asCurl, asPython } from "../lib/commands.js";
import { copyable, h, show } from "../lib/dom.js";
import * as schemas from "../lib/schema.js";

export const TITLE = "New job";
const FIRST = new Map([["optimiser.epochs", "Epochs"], ["optimiser.lr", "Learning rate"], ["encoder.hidden", "Hidden width"],
  ["encoder.dim", "Dimension"], ["sampling.negatives", "Negatives"], ["run.seed", "Seed"]]);
const SECTIONS = new Map([["augment", "Augmentation"], ["encoder", "Encoder"], ["optimiser", "Optimiser"], ["sampling", "Sampling"],
  ["evaluation", "Evaluation"], ["run", "Run"], ["data", "Data"]]);
const ELSEWHERE = new Set(["data.name", "data.imported", "data.files", "run.name"]); // have fields of their own, or none here
const OWN_PRESET = "";

export async function mount(place, { query, signal }) {
  const from = query.get("from");
  const [document_, sets, source] = await Promise.all([
    get("/openapi.json", signal), get("/v1/datasets?limit=500", signal), from ? get(`/v1/jobs/${at(from)}`, signal) : null,
  ]);
  const spec = source?.spec ? structuredClone(source.spec) : { data: { name: "digits" } };
  if (source) schemas.put(spec, ["run", "name"], undefined); // the name has a field of its own
  const properties = document_.components.schemas.TrainSpec.properties;
  const places = new Map(); // dotted path → {input, error}

  const fieldOf = ({ path, kind, choices, hint }, label = path.at(-1)) => {
    const name = path.join(".");
    const value = schemas.written(kind, schemas.take(spec, path));
    const empty = !source ? "as the preset has it" : value === "" ? "not set" : "its default";
    const input = choices
      ? h("select", {}, h("option", { value: "" }, empty), choices.map((choice) => h("option", { value: String(choice) }, String(choice))))
      : h("input", { placeholder: empty, autocomplete: "off", inputmode: ["integer", "number"].includes(kind) ? "decimal" : null });
    input.value = choices && kind === "json" ? String(schemas.take(spec, path) ?? "") : value;
    const set = () => {
      schemas.put(spec, path, input.value === "" ? undefined : schemas.parsed(kind, input.value));
      clear(name);
      preview();
    };
    input.addEventListener("change", set);
    return labelled(name, label, input, hint);
  };
  const labelled = (name, label, input, hint) => {
    const id = `field-${name}`;
    const error = h("small.error", { id: `${id}-error` });
    input.id = id;
    input.setAttribute("aria-describedby", `${id}-error ${id}-hint`);
    places.set(name, { input, error });
    return h("div.field", {}, h("label", { for: id }, label), input, error, h("small", { id: `${id}-hint` }, hint.replaceAll("`", "")));
  };
  const clear = (name) => {
    const found = places.get(name);
    found?.error.replaceChildren();
    found?.input.removeAttribute("aria-invalid");
  };

  const jobName = h("input", { maxlength: 200, autocomplete: "off", value: source?.name ?? "" });
  const ready = sets.items.filter((set) => set.state === "ready");
  const dataset = h("select", {}, ready.map((set) => h("option", { value: set.ref }, optionOf(set))));
  dataset.value = spec.data.imported ?? spec.data.name;
  const setData = () => {
    const chosen = ready.find((set) => set.ref === dataset.value);
    const isOwn = ["uploaded", "imported"].includes(chosen?.kind);
    schemas.put(spec, ["data", "name"], isOwn ? "imported" : chosen?.name);
    schemas.put(spec, ["data", "imported"], isOwn ? chosen.ref : undefined);
    preview();
  };
  dataset.addEventListener("change", setData);
  const names = schemas.methods(document_);
  const method = h("select", {}, names.map((name) => h("option", { value: name }, name)));
  method.value = spec.method?.name ?? "nml";
  const own = h("div.fields");
  const drawMethod = () => {
    for (const name of [...places.keys()].filter((known) => known.startsWith("method."))) places.delete(name);
    show(own, schemas.fields(schemas.methodSchema(document_, method.value), document_, ["method"])
      .map((field) => fieldOf(field, field.path.slice(1).join("."))));
  };
  const preset = h("select", {}, h("option", { value: OWN_PRESET }, "the method's own"),
    h("option", { value: "nml-official" }, "nml-official: as the published code"), h("option", { value: "null" }, "none: the schema's defaults"));
  preset.addEventListener("change", () => {
    schemas.put(spec, ["preset"], preset.value === "null" ? null : preset.value || undefined);
    if (preset.value === "nml-official" && method.value !== "nml") { method.value = "nml"; setMethod(); }
    clear("preset");
    preview();
  });
  const setMethod = () => {
    spec.method = { name: method.value };
    if (source) spec.preset = null; // what the cloned job's preset said was for its own method
    else if (preset.value === "nml-official" && method.value !== "nml") { preset.value = OWN_PRESET; delete spec.preset; }
    drawMethod();
    preview();
  };
  method.addEventListener("change", setMethod);

  const summary = h("div", { role: "alert", tabindex: -1 });
  const submit = h("button.primary", {}, "Submit job");
  const commands = h("div");
  const preview = () => show(commands, copyable("Spec", JSON.stringify(spec, null, 2)), copyable("curl", asCurl(spec, jobName.value)),
    copyable("Python", asPython(spec, jobName.value)));
  jobName.addEventListener("change", preview);

  let promise = idempotencyKey(), promised = null; // a second click on the same form makes no second job
  const send = async (event) => {
    event.preventDefault();
    for (const name of places.keys()) clear(name);
    show(summary);
    const wanted = JSON.stringify([spec, jobName.value]);
    if (promised !== null && promised !== wanted) promise = idempotencyKey();
    promised = wanted;
    submit.disabled = true;
    try {
      const job = await post(`/v1/jobs${jobName.value ? `?name=${encodeURIComponent(jobName.value)}` : ""}`, spec,
        { signal, headers: { "Idempotency-Key": promise } });
      location.hash = `#/job/${at(job.id)}`;
    } catch (error) {
      if (!signal.aborted && error.status !== 401) refused(error);
    } finally {
      submit.disabled = false;
    }
  };
  const refused = (error) => {
    const unplaced = [];
    let first = null;
    for (const { field, message } of error.errors) {
      const found = places.get(field) ?? places.get(ALIASES[field]);
      if (!found) { unplaced.push(`${field}: ${message}`); continue; }
      found.error.textContent = message;
      found.input.setAttribute("aria-invalid", "true");
      const hidden = found.input.closest("details");
      if (hidden) hidden.open = true;
      first ??= found.input;
    }
    const text = unplaced.length ? unplaced.join("\n") : first ? "Change the fields that are marked." : error.message;
    show(summary, h("p.notice.bad", {}, h("b", {}, "The job was not accepted. "), text));
    (first ?? summary).focus();
  };

  const all = allFields(document_, properties);
  drawMethod();
  preview();
  show(place, h("form", { onsubmit: send, novalidate: true },
    h("h1", {}, source ? "New job from another" : "New job"),
    source ? h("p", {}, "Every field is as in ", h("a", { href: `#/job/${at(source.id)}` }, source.name || source.id), ".")
      : h("p.quiet", {}, "A field left empty is as the preset has it for this method and data set."),
    summary,
    h("div.fields", {},
      labelled("name", "Name", jobName, "for people; may be left empty"),
      labelled("data.name", "Data set", dataset, "your own graphs: nml datasets push"),
      labelled("method.name", "Method", method, properties.method.description),
      source ? null : labelled("preset", "Preset", preset, "what fills the fields that are left empty"),
      [...FIRST].map(([path, label]) => fieldOf(all.find((field) => field.path.join(".") === path), label))),
    h("details", {}, h("summary", {}, "Settings of the method"), own),
    [...SECTIONS].map(([name, title]) => h("details", {}, h("summary", {}, title),
      h("div.fields", {}, all.filter((field) => field.path[0] === name && !FIRST.has(field.path.join(".")))
        .map((field) => fieldOf(field, field.path.slice(1).join(".")))))),
    h("p", {}, submit)),
  h("details", {}, h("summary", {}, "The same by curl or Python"), commands));
}

const ALIASES = { "data.imported": "data.name", data: "data.name", method: "method.name", body: "name" };

const allFields = (document_, properties) => [...SECTIONS.keys()].flatMap((name) =>
  schemas.fields(schemas.resolve(properties[name], document_), document_, [name])
    .filter((field) => !ELSEWHERE.has(field.path.join(".")) && field.path[1] !== "files"));

function optionOf(set) {
  const size = set.nodes === null ? "" : ` · ${set.nodes.toLocaleString("en")} nodes`;
  return `${set.ref}${size}${set.offline ? "" : " · downloaded when first used"}`;
}
