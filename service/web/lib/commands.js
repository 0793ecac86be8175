// The same request for a terminal and for Python.

import { key } from "./api.js";

const shell = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export function asCurl(spec, name) {
  const query = name ? `?name=${encodeURIComponent(name)}` : "";
  return `curl ${shell(`${location.origin}/v1/jobs${query}`)} -H 'Content-Type: application/json' \\\n`
    + `${key.get() ? '    -H "Authorization: Bearer $NML_API_KEY" \\\n' : ""}    -d ${shell(JSON.stringify(spec))}`;
}

export function asPython(spec, name) {
  const named = name ? `, name=${JSON.stringify(name)}` : "";
  return "from service.client import Client\n\n"
    + `with Client(${JSON.stringify(location.origin)}) as client:${key.get() ? "  # the key: NML_API_KEY" : ""}\n`
    + `    job = client.submit(${literal(spec)}${named})\n    print(client.wait(job).metrics)\n`;
}

function literal(value) {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${literal(item)}`).join(", ")}}`;
  return JSON.stringify(value);
}
