// Which page is shown: the part of the address after #, so that everything has an address and the back button works.

import { key } from "./lib/api.js";
import { h, show } from "./lib/dom.js";
import { askForKey } from "./pages/key.js";
import * as compare from "./pages/compare.js";
import * as explore from "./pages/explore.js";
import * as job from "./pages/job.js";
import * as jobs from "./pages/jobs.js";
import * as newJob from "./pages/new.js";

// first part of the address: [page, how the navigation calls it]
const PAGES = { jobs: [jobs, "jobs"], job: [job, "jobs"], compare: [compare, "jobs"], new: [newJob, "new"], explore: [explore, "explore"] };

const main = document.getElementById("main");
let leave = new AbortController();

function read() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/").map(decoded);
  return { name: name || "jobs", rest, query: new URLSearchParams(query) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

async function open() {
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  const { name, rest, query } = read();
  const [page, current] = PAGES[Object.hasOwn(PAGES, name) ? name : "jobs"];
  document.title = `${page.TITLE} · NML-GCL`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#/${current}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.getElementById("forget").hidden = !key.get();
  document.getElementById("reference").hidden = Boolean(key.get()); // a link cannot send the key
  const place = h("div");
  show(main, place);
  scrollTo(0, 0);
  try {
    await page.mount(place, { rest, query, signal });
  } catch (error) {
    if (signal.aborted || error.status === 401) return;
    show(place, h("h1", {}, "This page could not be shown"), h("p.notice.bad", { role: "alert" }, error.message),
      h("button", { type: "button", onclick: open }, "Try again"));
  }
}

addEventListener("hashchange", () => {
  open();
  main.focus();
});
addEventListener("nml-key-needed", ({ detail }) => {
  leave.abort();
  askForKey(main, detail, open);
});
document.getElementById("forget").addEventListener("click", () => {
  key.forget();
  open();
});
document.getElementById("skip").addEventListener("click", (event) => { // its address would be taken for a page
  event.preventDefault();
  main.focus();
});
open();
