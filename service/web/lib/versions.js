// Published embeddings. A version has the id of the job that trained it.

import { at, get } from "./api.js";

// The job's version once it is ready, else null. Looked for in the list: asking for one that is not there is an error.
export async function published(job, signal) {
  const page = await get(`/v1/embeddings?dataset=${encodeURIComponent(job.dataset)}&limit=500`, signal);
  const found = page.items.find((item) => item.version === job.id) ?? (page.next ? await get(`/v1/embeddings/${at(job.id)}`, signal) : null);
  return found?.state === "ready" ? found.version : null;
}
