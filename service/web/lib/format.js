// Numbers, times and durations as people read them.

const WHOLE = new Intl.NumberFormat("en");
const AGO = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

export const whole = (value) => (value === null || value === undefined ? "–" : WHOLE.format(value));

export function number(value) {
  if (typeof value !== "number") return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return WHOLE.format(value);
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

export const percent = (share, digits = 0) => (typeof share === "number" ? `${(100 * share).toFixed(digits)} %` : "–");

export function duration(seconds) {
  if (typeof seconds !== "number") return "–";
  const at = AGO.findIndex(([size]) => seconds >= size);
  if (at < 0) return "0 s";
  const [size, unit] = AGO[at];
  const first = `${Math.floor(seconds / size)} ${unit}`;
  const rest = AGO[at + 1] ? Math.floor((seconds % size) / AGO[at + 1][0]) : 0;
  return rest ? `${first} ${rest} ${AGO[at + 1][1]}` : first;
}

export const moment = (iso) => (iso ? new Date(iso).toLocaleString("sv-SE").slice(0, 16) : "–");
export const bytes = (count) => (count === null || count === undefined ? "–" : count < 1e6 ? `${Math.ceil(count / 1e3)} kB`
  : count < 1e9 ? `${(count / 1e6).toFixed(1)} MB` : `${(count / 1e9).toFixed(1)} GB`);

export const tookSeconds = (job) =>
  job.started ? (new Date(job.ended || Date.now()) - new Date(job.started)) / 1000 : null;

// The figure by which jobs are told apart at a glance, as [what, value in text]; what a job has depends on its data.
export function headline(job) {
  const test = job.result?.eval?.probe?.test;
  if (typeof test === "number") return ["test accuracy", percent(test, 2)];
  const { metrics } = job;
  if (typeof metrics.val_accuracy === "number") return ["validation accuracy", percent(metrics.val_accuracy, 2)];
  for (const [name, what] of [["link_auc", "link AUC"], ["i_nml", "I_NML"], ["loss", "loss"]]) {
    if (typeof metrics[name] === "number") return [what, number(metrics[name])];
  }
  return ["", "–"];
}

// {a: {b: 1}} → [["a.b", 1]]; lists are values.
export function flat(value, prefix = "") {
  return Object.entries(value ?? {}).flatMap(([name, item]) => {
    const path = prefix ? `${prefix}.${name}` : name;
    return item !== null && typeof item === "object" && !Array.isArray(item) ? flat(item, path) : [[path, item]];
  });
}
