// Elements. The only way in which this console makes any: text is always text, never read as HTML.

const SVG = "http://www.w3.org/2000/svg";

// h("a.button", {href: "#/new"}, "New job"): properties whose name begins with "on" are listeners; null children are left out.
export function h(selector, properties = {}, ...children) {
  const [tag, ...classes] = selector.split(".");
  return fill(document.createElement(tag || "div"), classes, properties, children);
}

export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), [], properties, children);
}

function fill(element, classes, properties, children) {
  if (classes.length) element.classList.add(...classes);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function show(place, ...children) {
  place.replaceChildren(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
}

// A link that runs only over http: what a server says may be no address at all.
export function external(address, text) {
  return /^https?:\/\//.test(address) ? h("a", { href: address, rel: "noreferrer" }, text) : text;
}

export function copyable(title, text) {
  const code = h("pre", { tabindex: 0 }, text);
  const said = h("span.quiet", { role: "status" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      said.textContent = "Copied.";
    } catch { // only a secure address may write to the clipboard
      getSelection().selectAllChildren(code);
      said.textContent = "Selected: copy it with your keyboard.";
    }
  };
  return h("section", {}, h("div.bar", {}, h("h3", {}, title), h("button", { type: "button", onclick: copy }, "Copy"), said), code);
}
