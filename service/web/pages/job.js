// One job, live: its stream of events adds to the curves, and says when the rest is worth asking again.

import { at, bytes, get, idempotencyKey, pause, poll, post, text } from "../lib/api.js";
import { asCurl, asPython } from "../lib/commands.js";
import { add, charts } from "../lib/curves.js";
import { copyable, external, h, show } from "../lib/dom.js";
import { follow } from "../lib/events.js";
import * as format from "../lib/format.js";
import { published } from "../lib/versions.js";
import { OVER, stateOf } from "./jobs.js";
import { logView } from "./log.js";

export const TITLE = "Job";
const PICTURES = { png: "image/png", svg: "image/svg+xml" };

export async function mount(place, { rest: [id], signal }) {
  const own = `/v1/jobs/${at(id ?? "")}`;
  let job = await get(own, signal);
  const data = await get(`${own}/metrics`, signal);
  document.title = `${job.name || job.id} · NML-GCL`;

  const top = h("div"), curves = h("div.charts"), pictures = h("div.charts"), figures = h("div");
  const said = h("p.notice", { role: "status", hidden: true });
  const log = logView(() => text(`${own}/log?tail=5000`, signal));
  const say = (error) => { said.hidden = false; said.textContent = error.message; };
  let version = null;

  const draw = () => show(top, head(job, version, { cancel, again }), progress(job));
  const drawCurves = () => {
    const made = charts(data).filter(Boolean);
    show(curves, made.length ? made : h("p.quiet", {}, OVER.has(job.state) ? "No epoch was trained." : "Curves begin with the first epoch."));
  };
  const cancel = () => post(`${own}/cancel`, undefined, { signal }).then((answer) => { job = answer; draw(); }).catch(say);
  const again = async () => {
    const spec = structuredClone(job.spec);
    spec.run.seed += 1;
    delete spec.run.name; // the job's name is its newest
    try {
      const made = await post(`/v1/jobs${job.name ? `?name=${encodeURIComponent(job.name)}` : ""}`, spec,
        { signal, headers: { "Idempotency-Key": idempotencyKey() } });
      location.hash = `#/job/${at(made.id)}`;
    } catch (error) {
      say(error);
    }
  };
  const refresh = async () => {
    job = await get(own, signal);
    draw();
    drawCurves();
    if (job.result) show(figures, h("h2", {}, "Figures"), table(job.result));
  };

  show(place, top, said, h("h2", {}, "Curves"), curves, figures, pictures, log.element, specification(job));
  await refresh();
  const ended = async () => {
    await Promise.all([log.load().catch(say), pictured(job, pictures, signal)]);
    if (!job.links.embeddings) return;
    const isLate = () => Date.now() - new Date(job.ended) > PUBLISHING_MS; // it failed, or the version is gone again
    await poll(async () => (version = await published(job, signal)) !== null || isLate(), { seconds: 1, signal });
    if (!signal.aborted) draw();
  };
  if (OVER.has(job.state)) {
    await ended();
    return;
  }
  log.load();
  let isDue = false;
  const followed = follow(`${own}/events`, job.last_event, (event) => {
    add(data, event);
    isDue = true;
  }, signal).then(() => { isDue = true; });
  const isOver = () => OVER.has(job.state);
  followed.catch(say);
  // Events may come a hundred at a time; what they changed is asked for and drawn once a second at most.
  await poll(async () => {
    if (isDue) {
      isDue = false;
      await refresh();
      await log.load();
    }
    return isOver();
  }, { seconds: 1, signal, onTrouble: (error) => {
    said.hidden = error === null;
    if (error) { isDue = true; said.textContent = `${error.message} Trying again.`; }
  } });
  await pause(0, signal);
  if (isOver() && !signal.aborted) await ended();
}

function head(job, version, { cancel, again }) {
  const name = job.name || job.id;
  const isTraining = job.kind === "train" && job.spec;
  return [
    h("div.bar", {}, h("h1", {}, name), stateOf(job), h("span.grow"),
      job.links.cancel && job.state !== "cancelling" ? h("button", { type: "button", onclick: cancel }, "Cancel job") : null,
      isTraining ? h("a.button", { href: `#/new?from=${at(job.id)}` }, "Clone and edit") : null,
      isTraining ? h("button", { type: "button", onclick: again }, "Train with another seed") : null,
      version ? h("a.button.primary", { href: `#/explore/${at(version)}` }, "Explore embeddings") : null),
    job.failure ? h("p.notice.bad", { role: "alert" }, h("b", {}, `Failed (${job.failure.kind}). `), job.failure.message) : null,
    job.tracker_error ? h("p.notice", {}, `MLflow could not be updated: ${job.tracker_error}`) : null,
  ];
}

function progress(job) {
  const { share, phase, epoch, epochs, eta_seconds: left } = job.progress;
  const [what, value] = format.headline(job);
  const facts = [
    ["Id", h("span.mono", {}, job.id)], ["Data set", job.dataset], ["Method", job.spec?.method?.name ?? "–"],
    ["Seed", job.spec?.run?.seed ?? "–"], ["Phase", job.state === "queued" ? "waits for its turn" : phase ?? "–"],
    ["Epoch", epoch ? `${format.whole(epoch)} of ${format.whole(epochs)}` : "–"],
    [job.state === "running" ? "Time left" : "Took", format.duration(job.state === "running" ? left : format.tookSeconds(job))],
    [what ? capital(what) : "Figure", value], ["Created", format.moment(job.created)],
    ["Memory, estimated", format.bytes(job.memory_bytes)], ["Attempt", String(job.attempt)],
    job.links.mlflow ? ["MLflow", external(job.links.mlflow, "open the run")] : null,
  ];
  return [
    h("progress.wide", { max: 1, value: job.progress.share ?? 0, "aria-label": `Done: ${format.percent(share)}` }),
    h("dl.facts", {}, facts.filter(Boolean).map(([term, text]) => h("div", {}, h("dt", {}, term), h("dd", {}, text)))),
  ];
}

function table(result) {
  const rows = format.flat({ ...result.eval, protocol: undefined, train_seconds: result.train_seconds })
    .filter(([, value]) => typeof value === "number");
  return h("details", {}, h("summary", {}, `${rows.length} figures of the finished run`),
    h("div.scroll", {}, h("table", {}, h("tbody", {}, rows.map(([name, value]) =>
      h("tr", {}, h("th", { scope: "row" }, name), h("td.number", {}, format.number(value))))))));
}

// Pictures are fetched, because an image's address cannot carry a key.
async function pictured(job, place, signal) {
  const made = await Promise.all(job.links.figures.map(async (address) => {
    const name = decodeURIComponent(address.split("/").at(-1));
    const type = PICTURES[name.split(".").at(-1)];
    if (!type) return null;
    const content = await bytes(address, signal).catch(() => null); // the rest of the page does without it
    if (!content) return null;
    const picture = URL.createObjectURL(new Blob([content], { type }));
    signal.addEventListener("abort", () => URL.revokeObjectURL(picture), { once: true });
    return h("figure", {}, h("figcaption", {}, name), h("img", { src: picture, alt: `${name}, drawn by the job` }));
  }));
  show(place, made);
}

function specification(job) {
  if (!job.spec) return null;
  return h("section", {}, h("h2", {}, "Spec"),
    h("details", {}, h("summary", {}, "Every field"), h("pre", { tabindex: 0 }, JSON.stringify(job.spec, null, 2))),
    h("details", {}, h("summary", {}, "The same job by curl or Python"),
      copyable("curl", asCurl(job.spec, job.name)), copyable("Python", asPython(job.spec, job.name))));
}

const PUBLISHING_MS = 600_000;
const capital = (text) => text[0].toUpperCase() + text.slice(1);
