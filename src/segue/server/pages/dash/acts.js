// What changes something: asked twice, done once, and told afterwards.

import { h } from "./dom.js";
import { failure } from "./parts.js";

const TOAST_MS = 10_000;

let isAllowed = false;
let afterAct = () => {};

export function setUpActs({ mayAct, refresh }) {
  isAllowed = mayAct;
  afterAct = refresh;
}

// A button for those who may; for others it says why not.
export function actButton(text, act, { tone, label } = {}) {
  return h(
    `button${tone ? `.${tone}` : ""}`,
    {
      type: "button",
      disabled: !isAllowed,
      "aria-label": label,
      title: isAllowed ? null : "Needs the role admin, and a server that is not read-only",
      onclick: () => ask(act),
    },
    text,
  );
}

// act: {title, says (nodes), fields: [{name, label, type, value, hint, min, step, choices}], button,
//       tone, types (a word to be typed), isStoppable, run(values, signal) → what was done,
//       preview(values) → what would be}
function ask(act) {
  const told = h("div.told", { "aria-live": "polite" });
  const typed = act.types
    ? h(
        "label.field",
        {},
        h("span", {}, "Type ", h("strong", {}, act.types), " to go on"),
        h("input", {
          name: "typed",
          autocomplete: "off",
          oninput: () => allow(),
        }),
      )
    : null;
  const go = h(
    `button.${act.tone || "primary"}`,
    { type: "submit", disabled: Boolean(act.types) },
    act.button,
  );
  const preview = act.preview
    ? h(
        "button",
        { type: "button", onclick: () => attempt(() => act.preview(values(form, act))) },
        "Dry run",
      )
    : null;
  const close = h("button.quiet", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const form = h(
    "form",
    {
      method: "dialog",
      onsubmit: (event) => {
        event.preventDefault();
        attempt(() => act.run(values(form, act), stopping.signal), { isFinal: true });
      },
    },
    h("h2", { id: "act-title" }, act.title),
    h("div.says", {}, act.says),
    (act.fields || []).map(field),
    typed,
    told,
    h("div.buttons", {}, close, preview, go),
  );
  const dialog = h("dialog", { "aria-labelledby": "act-title" }, form);
  const stopping = new AbortController();
  let isWorking = false;
  dialog.addEventListener("close", () => {
    stopping.abort(); // What can be stopped ends where it is; the rest goes on to its end.
    dialog.remove();
  });
  document.body.append(dialog);
  dialog.showModal();

  function allow() {
    if (preview) preview.disabled = isWorking;
    go.disabled = isWorking || (typed && form.elements.typed.value !== act.types);
    close.textContent = !isWorking ? "Cancel" : act.isStoppable ? "Stop" : "Close";
  }

  async function attempt(step, { isFinal = false } = {}) {
    isWorking = true;
    allow();
    told.replaceChildren(h("p.dim", {}, "Working…"));
    try {
      const words = await step();
      if (isFinal) {
        dialog.close();
        toast(words);
        afterAct();
      } else {
        told.replaceChildren(h("p.preview", {}, words));
      }
    } catch (error) {
      if (dialog.open) told.replaceChildren(failure(error));
      else if (isFinal) {
        toast(`${act.title}: ${error.message}`, { tone: "dead" });
        afterAct();
      }
    }
    isWorking = false;
    allow();
  }
}

function field({ name, label, type = "text", value, hint, min, step, choices }) {
  const input = choices
    ? h(
        "select",
        { name },
        choices.map(([each, text]) => h("option", { value: each, selected: each === value }, text)),
      )
    : h("input", {
        name,
        type,
        value,
        min,
        step,
        autocomplete: "off",
        checked: type === "checkbox" && value,
      });
  return h("label.field", {}, h("span", {}, label), input, hint && h("small.dim", {}, hint));
}

function values(form, act) {
  const said = {};
  for (const { name, type } of act.fields || []) {
    const input = form.elements[name];
    if (type === "checkbox") said[name] = input.checked;
    else if (type === "number") said[name] = input.value === "" ? null : Number(input.value);
    else said[name] = input.value;
  }
  return said;
}

function toast(words, { tone = "good" } = {}) {
  const node = h(
    `div.toast.${tone}`,
    {},
    h("span", {}, words),
    h(
      "button.quiet",
      { type: "button", "aria-label": "Dismiss", onclick: () => node.remove() },
      "×",
    ),
  );
  document.getElementById("toasts").append(node);
  if (tone === "good") setTimeout(() => node.remove(), TOAST_MS);
}
