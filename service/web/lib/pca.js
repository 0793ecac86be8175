// The first two principal components of some rows, by power iteration: X'Xv without ever storing X'X.

import { generator } from "./table.js";

const STEPS = 60;

// {project: (vector) → [x, y], share: of the variance that the two explain}.
export function principal(vectors, dim) {
  const count = vectors.length / dim;
  const mean = new Float64Array(dim);
  for (let at = 0; at < vectors.length; at += 1) mean[at % dim] += vectors[at] / count;
  const centred = Float32Array.from(vectors, (value, at) => value - mean[at % dim]);
  const total = centred.reduce((sum, value) => sum + value * value, 0);
  const axes = [], found = [];
  const random = generator(7);
  for (let component = 0; component < Math.min(2, dim); component += 1) {
    let axis = unit(Float64Array.from({ length: dim }, () => random() - 0.5), axes);
    let size = 0;
    for (let step = 0; step < STEPS; step += 1) {
      const next = times(centred, dim, axis);
      const length = norm(next);
      if (length === 0) break; // all rows are alike
      const before = size;
      size = length;
      axis = unit(next, axes);
      if (Math.abs(size - before) < 1e-9 * size) break;
    }
    axes.push(axis);
    found.push(size);
  }
  const project = (vector) => [0, 1].map((component) => {
    const axis = axes[component];
    return axis ? axis.reduce((sum, weight, at) => sum + weight * (vector[at] - mean[at]), 0) : 0;
  });
  return { project, share: total ? found.reduce((sum, size) => sum + size, 0) / total : 0 };
}

// X'(Xv)
function times(rows, dim, axis) {
  const made = new Float64Array(dim);
  for (let start = 0; start < rows.length; start += dim) {
    let along = 0;
    for (let at = 0; at < dim; at += 1) along += rows[start + at] * axis[at];
    for (let at = 0; at < dim; at += 1) made[at] += rows[start + at] * along;
  }
  return made;
}

const norm = (vector) => Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0));

// Of length one, and orthogonal to the axes there are.
function unit(vector, axes) {
  for (const axis of axes) {
    const along = axis.reduce((sum, value, at) => sum + value * vector[at], 0);
    vector = vector.map((value, at) => value - along * axis[at]);
  }
  const length = norm(vector) || 1;
  return vector.map((value) => value / length);
}
