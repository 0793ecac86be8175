// A log that can be searched. New lines leave the search and the place where one reads as they are.

import { h, show } from "../lib/dom.js";

const MOST = 5000; // lines that the page holds

export function logView(read) {
  let lines = [];
  const find = h("input", { type: "search", id: "find", placeholder: "Only lines that contain …" });
  const count = h("span.quiet", { role: "status" });
  const place = h("pre", { tabindex: 0, "aria-label": "Log", id: "log" });
  const draw = () => {
    const wanted = find.value.toLowerCase();
    const shown = wanted ? lines.filter((line) => line.toLowerCase().includes(wanted)) : lines;
    const isAtEnd = place.scrollTop + place.clientHeight >= place.scrollHeight - 4;
    show(place, shown.length ? shown.map((line) => [marked(line, wanted), "\n"]) : wanted ? "No line contains this." : "The log is empty so far.");
    count.textContent = wanted ? `${shown.length} of ${lines.length} lines` : `${lines.length}${lines.length >= MOST ? " newest" : ""} lines`;
    if (isAtEnd) place.scrollTop = place.scrollHeight;
  };
  find.addEventListener("input", draw);
  const load = async () => {
    const text = await read();
    lines = text.split("\n").filter(Boolean);
    draw();
  };
  const element = h("section", {}, h("h2", {}, "Log"),
    h("div.bar", {}, h("label", { for: "find" }, "Search"), find, count), place);
  return { element, load };
}

function marked(line, wanted) {
  if (!wanted) return [line];
  const parts = [], low = line.toLowerCase();
  if (low.length !== line.length) return [line]; // letters that change their length: nothing to point at safely
  let from = 0;
  for (let found = low.indexOf(wanted); found >= 0; found = low.indexOf(wanted, from)) {
    parts.push(line.slice(from, found), h("mark", {}, line.slice(found, found + wanted.length)));
    from = found + wanted.length;
  }
  return [...parts, line.slice(from)];
}
