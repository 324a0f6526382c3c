// What is in a message, a record or a task: as JSON, as text, as bytes; to copy and to keep.

import { Problem } from "./api.js";
import { h } from "./dom.js";
import { bytes, exact } from "./format.js";

export const WHOLE_BYTES_MAX = 8 << 20; // What a server tells of one message at most.
const HEX_BYTES_MAX = 4096;
const DEPTH_MAX = 100; // Deeper JSON is shown as text: its indentation would be all there is.
const TOKENS_MAX = 20_000; // So is longer JSON: each token is an element.

// `whole` fetches {text, base64} of what is cut.
export function payload({ text, base64, totalBytes, isCut, whole, name }) {
  const data = bytesOf({ text, base64 });
  const words =
    totalBytes > WHOLE_BYTES_MAX ? `Download the first ${bytes(WHOLE_BYTES_MAX)}` : "Download";
  const json = text === undefined || text === null ? null : indentedJson(text);
  const ways = [
    json && ["JSON", () => h("pre.json", {}, json.map(coloured))],
    text !== undefined && text !== null && ["Text", () => h("pre", {}, text)],
    ["Hex", () => h("pre", {}, hex(data))],
  ].filter(Boolean);
  const shown = h("div.shown", {}, ways[0][1]());
  const buttons = ways.map(([label, draw], index) =>
    h(
      "button.quiet",
      {
        type: "button",
        "aria-pressed": String(index === 0),
        onclick: (event) => {
          shown.replaceChildren(draw());
          for (const each of event.target.parentNode.querySelectorAll("[aria-pressed]"))
            each.setAttribute("aria-pressed", String(each === event.target));
        },
      },
      label,
    ),
  );
  const node = h(
    "div.payload",
    { key: `payload-${name}-${totalBytes}-${(text || base64 || "").slice(0, 64)}` },
    h(
      "div.head",
      {},
      buttons,
      h(
        "span.dim",
        {},
        bytes(totalBytes ?? data.length),
        isCut ? `, the first ${bytes(data.length)} shown` : "",
      ),
      h("span.grow"),
      h(
        "button.quiet",
        {
          type: "button",
          onclick: (event) =>
            attempt(
              event.target,
              "Copy",
              () => navigator.clipboard.writeText(text ?? base64),
              "Copied",
            ),
        },
        "Copy",
      ),
      h(
        "button.quiet",
        {
          type: "button",
          onclick: (event) =>
            attempt(event.target, words, async () =>
              download(isCut && whole ? bytesOf(await whole()) : data, name),
            ),
        },
        words,
      ),
    ),
    shown,
  );
  node.content = text ?? base64;
  node.keep = (fresh) => {
    if (fresh.content !== node.content) node.replaceWith(fresh); // Else it stays as it is read.
  };
  return node;
}

// The tokens of a JSON object or list, and white space between them; null if it is none, or one
// that is better read as it is. Made from the text: parsing would round numbers and drop names.
function indentedJson(text) {
  try {
    const value = JSON.parse(text);
    if (typeof value !== "object" || value === null) return null;
  } catch {
    return null;
  }
  const tokens = text.match(/"(?:\\.|[^"\\])*"|[[\]{},:]|[^\s[\]{},:"]+/g);
  if (tokens.length > TOKENS_MAX) return null;
  const words = [];
  let depth = 0;
  for (const [index, token] of tokens.entries()) {
    const before = tokens[index - 1];
    const isEnd = token === "]" || token === "}";
    if (isEnd) depth -= 1;
    const isBroken = before === "," || (/^[[{]$/.test(before) ? !isEnd : isEnd && index > 0);
    if (isBroken) words.push(`\n${"  ".repeat(depth)}`);
    else if (before === ":") words.push(" ");
    if (token === "[" || token === "{") depth += 1;
    if (depth > DEPTH_MAX) return null;
    words.push(token);
  }
  return words;
}

function coloured(word, index, words) {
  if (/^[\s[\]{},:]/.test(word)) return word;
  const kind = !word.startsWith('"') ? "literal" : words[index + 1] === ":" ? "name" : "string";
  return h(`span.${kind}`, {}, word);
}

function bytesOf({ text, base64 }) {
  return base64 === undefined || base64 === null
    ? new TextEncoder().encode(text || "")
    : fromBase64(base64);
}

function fromBase64(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

function hex(data) {
  const lines = [];
  for (let start = 0; start < Math.min(data.length, HEX_BYTES_MAX); start += 16) {
    const row = [...data.slice(start, start + 16)];
    const codes = row
      .map((byte) => byte.toString(16).padStart(2, "0"))
      .join(" ")
      .padEnd(47);
    const signs = row
      .map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "."))
      .join("");
    lines.push(`${start.toString(16).padStart(8, "0")}  ${codes}  ${signs}`);
  }
  return (
    lines.join("\n") +
    (data.length > HEX_BYTES_MAX ? `\n… ${exact(data.length - HEX_BYTES_MAX)} bytes more` : "")
  );
}

// Do what a button is for, and have it say for a while how that went.
async function attempt(button, words, step, done = words) {
  try {
    await step();
    button.textContent = done;
  } catch (error) {
    button.textContent = error instanceof Problem ? "Did not work" : "Not allowed";
  }
  setTimeout(() => {
    button.textContent = words;
  }, 1500);
}

function download(data, name) {
  const address = URL.createObjectURL(new Blob([data]));
  const anchor = h("a", { href: address, download: `${name.replace(/[^\w.-]+/g, "_")}.bin` });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
