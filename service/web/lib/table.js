// A random sample of a version's rows, over the public API: ids first, then the vectors of those that were drawn.

import { at, bytes, get, request } from "./api.js";

const AT_ONCE = 1000; // ids of one lookup

// {ids, vectors [n × dim], rows}; the same sample of a version every time.
export async function sample(version, dim, most, signal) {
  const ids = await allIds(version, signal);
  const chosen = drawn(ids.length, most).map((row) => ids[row]);
  const vectors = new Float32Array(chosen.length * dim);
  for (let first = 0; first < chosen.length; first += AT_ONCE) {
    const part = await bytes(`/v1/embeddings/${at(version)}/lookup`, signal, {
      method: "POST", body: { ids: chosen.slice(first, first + AT_ONCE) }, headers: { Accept: "application/octet-stream" },
    });
    vectors.set(new Float32Array(part), first * dim);
  }
  return { ids: chosen, vectors, rows: ids.length };
}

// Ids as text: a whole number may be larger than a number here can hold, and the API takes either.
async function allIds(version, signal) {
  const answer = await request(`/v1/embeddings/${at(version)}/download?format=ids`, { signal });
  if (!answer.headers.get("Content-Type").includes("npy")) return (await answer.json()).map(String);
  return wholeNumbers(await answer.arrayBuffer());
}

// The .npy format: magic, version, length of the header, header, and then the numbers.
export function wholeNumbers(buffer) {
  const view = new DataView(buffer);
  const long = view.getUint8(6) > 1;
  const start = long ? 12 + view.getUint32(8, true) : 10 + view.getUint16(8, true);
  const header = new TextDecoder("latin1").decode(buffer.slice(0, start));
  if (!header.includes("'<i8'")) throw new Error("The ids of this version are in a format that the console does not read.");
  return Array.from(new BigInt64Array(buffer.slice(start)), String);
}

// `most` different numbers below `count`, at random but always the same ones, in ascending order.
export function drawn(count, most) {
  const rows = Array.from({ length: count }, (_, row) => row);
  if (count <= most) return rows;
  const random = generator(1);
  for (let place = 0; place < most; place += 1) {
    const other = place + Math.floor(random() * (count - place));
    [rows[place], rows[other]] = [rows[other], rows[place]];
  }
  return rows.slice(0, most).sort((one, other) => one - other);
}

// Mulberry32: a seeded generator of numbers from 0 to 1.
export function generator(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

export const describe = (ref, signal) => get(`/v1/embeddings/${at(ref)}`, signal);
