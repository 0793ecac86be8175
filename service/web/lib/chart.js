// Curves over epochs as SVG. A line is {label, xs, ys}; a missing value (null) interrupts it.

import { h, svg } from "./dom.js";
import { number } from "./format.js";

const WIDTH = 360, HEIGHT = 190, LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 22;
export const COLOURS = 8; // classes s0 … s7 of the style sheet

export function chart(title, lines) {
  const drawn = lines.filter((line) => line.ys.some((value) => value !== null));
  const xs = drawn.flatMap((line) => line.xs);
  const ys = drawn.flatMap((line) => line.ys).filter((value) => value !== null);
  if (!ys.length) return null;
  const [left, right] = extent(xs), marks = ticks(...padded(extent(ys)));
  const bottom = marks[0], top = marks.at(-1);
  const x = (value) => LEFT + ((value - left) / (right - left || 1)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - ((value - bottom) / (top - bottom || 1)) * (HEIGHT - TOP - BOTTOM);
  const described = drawn.map((line) => `${line.label} is ${number(last(line.ys))}`).join(", ");
  return h("figure", {},
    h("figcaption", {}, title),
    svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}, epochs ${left} to ${right}: ${described}` },
      marks.map((mark) => [
        svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(mark), y2: y(mark) }),
        svg("text", { x: LEFT - 6, y: y(mark) + 4, "text-anchor": "end" }, number(mark)),
      ]),
      svg("text", { x: LEFT, y: HEIGHT - 5 }, String(left)),
      svg("text", { x: WIDTH - RIGHT, y: HEIGHT - 5, "text-anchor": "end" }, `epoch ${right}`),
      drawn.map((line, index) => curve(line, index, x, y))),
    h("ul.legend", {}, drawn.map((line, index) =>
      h(`li.s${index % COLOURS}`, {}, h("span", {}, `${line.label} `, h("b", {}, number(last(line.ys))))))));
}

function curve({ xs, ys }, index, x, y) {
  let path = "", isOpen = false, points = 0;
  ys.forEach((value, at) => {
    if (value === null) { isOpen = false; return; }
    path += `${isOpen ? "L" : "M"}${x(xs[at]).toFixed(1)} ${y(value).toFixed(1)}`;
    isOpen = true;
    points += 1;
  });
  const first = ys.findIndex((value) => value !== null);
  return svg("g", { class: `s${index % COLOURS}` }, svg("path", { d: path }),
    points === 1 ? svg("circle", { cx: x(xs[first]), cy: y(ys[first]), r: 2.5 }) : null);
}

// A figure that is measured only now and then is a curve through the epochs at which it was.
export function line(label, xs, ys) {
  const known = ys.map((value, at) => [xs[at], value]).filter(([, value]) => typeof value === "number");
  return { label, xs: known.map(([at]) => at), ys: known.map(([, value]) => value) };
}

const extent = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
const padded = ([low, high]) => (low === high ? [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1] : [low, high]);
const last = (values) => values.findLast((value) => value !== null);

// About four round numbers that enclose both.
function ticks(low, high) {
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const first = Math.floor(low / step), end = Math.ceil(high / step);
  return Array.from({ length: end - first + 1 }, (_, at) => Number(((first + at) * step).toPrecision(12)));
}
