// The JSON schema of a training spec, as the API's OpenAPI document has it, taken apart into fields of a form.

export function resolve(schema, document) {
  return schema?.$ref ? document.components.schemas[schema.$ref.split("/").at(-1)] : schema;
}

// Names of the learning methods, in the schema's order.
export function methods(document) {
  const { method } = document.components.schemas.TrainSpec.properties;
  return resolve(method, document).anyOf.find((part) => part.enum).enum;
}

export function methodSchema(document, name) {
  const { method } = document.components.schemas.TrainSpec.properties;
  const mapping = method.anyOf.find((part) => part.discriminator).discriminator.mapping;
  return resolve({ $ref: mapping[name] }, document);
}

// [{path, kind, choices, hint}] of a section, with those of the sections in it.
export function fields(schema, document, path) {
  return Object.entries(schema.properties).filter(([, part]) => part.const === undefined).flatMap(([name, part]) => {
    const own = [...path, name];
    const inner = resolve(part, document);
    if (inner.properties) return fields(inner, document, own);
    return [field(own, part, document)];
  });
}

function field(path, part, document) {
  const options = (part.anyOf ?? [part]).map((option) => resolve(option, document)).filter((option) => option.type !== "null");
  const only = options.length === 1 ? options[0] : {};
  const choices = only.type === "boolean" ? [true, false] : only.enum ?? null;
  const kind = ["integer", "number", "string"].includes(only.type) ? only.type : "json";
  return { path, kind, choices, hint: [part.description, bounds(only)].filter(Boolean).join("; ") };
}

function bounds(schema) {
  const low = schema.minimum !== undefined ? `at least ${schema.minimum}` : schema.exclusiveMinimum !== undefined ? `more than ${schema.exclusiveMinimum}` : "";
  const high = schema.maximum !== undefined ? `at most ${schema.maximum}` : schema.exclusiveMaximum !== undefined ? `less than ${schema.exclusiveMaximum}` : "";
  return [low, high].filter(Boolean).join(", ");
}

// What somebody typed, as a value. The API has the last word: what is no number is sent as text, and refused there by name.
export function parsed(kind, text) {
  if (kind === "string") return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

export const written = (kind, value) => (value === undefined || value === null ? "" : kind === "string" ? String(value) : JSON.stringify(value));

export function put(target, path, value) {
  const [name, ...rest] = path;
  if (!rest.length) {
    if (value === undefined) delete target[name];
    else target[name] = value;
    return;
  }
  if (target[name] === null || typeof target[name] !== "object") {
    if (value === undefined) return;
    target[name] = {};
  }
  put(target[name], rest, value);
}

export const take = (source, path) => path.reduce((value, name) => value?.[name], source);
