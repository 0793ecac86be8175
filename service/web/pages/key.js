// Asked for when the API answers 401.

import { key } from "../lib/api.js";
import { h, show } from "../lib/dom.js";

export function askForKey(place, why, then) {
  const input = h("input.mono", { id: "key", type: "password", autocomplete: "off", required: true, spellcheck: "false", "aria-describedby": "key-help" });
  const enter = (event) => {
    event.preventDefault();
    key.set(input.value.trim());
    then();
  };
  document.title = "Key · NML-GCL";
  show(place, h("form.narrow", { onsubmit: enter },
    h("h1", {}, "This service asks for a key"),
    h("p.notice", { role: "alert" }, why),
    h("div.field", {}, h("label", { for: "key" }, "API key"), input,
      h("small", { id: "key-help" }, "Made with: nml keys create NAME --scope submit. It stays in this tab and is gone when you close it.")),
    h("p", {}, h("button.primary", {}, "Use this key"))));
  input.focus();
}
