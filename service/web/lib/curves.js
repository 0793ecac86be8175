// Which figures of an epoch belong into one chart.

import { chart, line } from "./chart.js";

export const GROUPS = [
  ["Loss", ["loss"]],
  ["Mutual information: learned metric and plain InfoNCE", ["i_nml", "i_nce"]],
  ["Quality while training", ["val_accuracy", "link_auc"]],
  ["Weights of negatives: false, true", ["weight_fn", "weight_tn"]],
  ["How well weights tell false negatives", ["weight_auc"]],
  ["Parts of the loss", ["kl", "reg"]],
];
const TITLES = {
  loss: "Loss", i_nml: "I_NML", i_nce: "I_NCE", val_accuracy: "Validation accuracy", link_auc: "Link AUC", kl: "KL", reg: "Regulariser",
  weight_fn: "Weight of false negatives", weight_tn: "Weight of true negatives", weight_auc: "AUC of weights for false negatives",
};
const LABELS = {
  i_nml: "I_NML", i_nce: "I_NCE", val_accuracy: "validation accuracy", link_auc: "link AUC", kl: "KL", reg: "regulariser",
  weight_fn: "false negatives", weight_tn: "true negatives", weight_auc: "AUC",
};

export function charts({ epochs, series }) {
  return GROUPS.map(([title, names]) => chart(title,
    names.filter((name) => series[name]).map((name) => line(LABELS[name] ?? name, epochs, series[name]))));
}

// Of several jobs, one chart for each figure.
export function overlaid(runs) {
  return GROUPS.flatMap(([, names]) => names).map((name) => chart(TITLES[name],
    runs.filter(({ data }) => data.series[name]).map(({ label, data }) => line(label, data.epochs, data.series[name]))));
}

// What an event changes in the curves; a resumed run trains the epochs after its `rewind` again.
export function add(data, event) {
  const kept = event.type === "rewind" ? event.data.epoch : event.type === "epoch" ? event.data.epoch - 1 : null;
  if (typeof kept !== "number") return;
  const count = data.epochs.filter((epoch) => epoch <= kept).length;
  data.epochs.length = count;
  for (const values of Object.values(data.series)) values.length = count;
  if (event.type !== "epoch") return;
  data.epochs.push(event.data.epoch);
  for (const [name, value] of Object.entries(event.data.metrics ?? {})) {
    if (typeof value === "number") (data.series[name] ??= Array(count).fill(null)).push(value);
  }
  for (const values of Object.values(data.series)) if (values.length === count) values.push(null);
}
