// Server-sent events, read with fetch because EventSource cannot send a key. Begins again where a connection broke.

import { pause, request } from "./api.js";

// Calls `onEvent({seq, type, data})` for each event after number `after`, until the stream has no more or the page is left.
export async function follow(path, after, onEvent, signal) {
  let seen = after;
  while (!signal.aborted) {
    let wait = 1;
    try {
      const answer = await request(path, { signal, headers: { "Last-Event-ID": String(seen), Accept: "text/event-stream" } });
      if (answer.status === 204) return;
      for await (const event of parse(answer.body)) {
        seen = event.seq;
        onEvent(event);
      }
    } catch (error) {
      if (signal.aborted || error.status === 401 || error.status === 404) return;
      wait = error.wait || 2;
    }
    await pause(wait, signal);
  }
}

export async function* parse(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const event = {};
      for (const line of block.split(/\r?\n/)) {
        const found = /^(id|event|data): ?(.*)$/.exec(line);
        if (found) event[found[1]] = found[2];
      }
      if (event.data !== undefined) yield { seq: Number(event.id), type: event.event, data: JSON.parse(event.data) };
    }
  }
}
