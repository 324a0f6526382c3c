// Shows /openapi.json and sends requests. Nothing that comes from the server is ever taken for
// markup: all of it goes through textContent. The token stays in its field and in memory.

const SHOWN_CHARACTERS_MAX = 200_000;
const byId = (id) => document.getElementById(id);

function make(tag, { text, className, ...rest } = {}, ...children) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  Object.assign(element, rest);
  element.append(...children);
  return element;
}

function resolved(description, value) {
  let found = value;
  for (let depth = 0; found && found.$ref && depth < 8; depth += 1) {
    found = found.$ref.slice(2).split("/").reduce((at, part) => at && at[part], description);
  }
  return found;
}

function typeOf(schema) {
  if (!schema || Object.keys(schema).length === 0) return "any";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" | ");
  if (schema.allOf) return schema.allOf.map(typeOf).join(" & ");
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" | ");
  if (schema.type === "array") return `list of ${typeOf(schema.items)}`;
  if (schema.type === "object" && schema.additionalProperties) {
    return `object of ${typeOf(schema.additionalProperties)}`;
  }
  return schema.contentEncoding ? `${schema.type}, ${schema.contentEncoding}` : schema.type ?? "any";
}

function sample(description, schema, depth = 0) {
  const found = resolved(description, schema) ?? {};
  if (depth > 4) return null;
  if (found.default !== undefined) return found.default;
  if (found.enum) return found.enum[0];
  if (found.anyOf) return sample(description, found.anyOf[0], depth + 1);
  switch (found.type) {
    case "string": return "";
    case "integer": return found.minimum ?? 0;
    case "number": return found.minimum ?? 0;
    case "boolean": return false;
    case "array": return [sample(description, found.items, depth + 1)];
    case "object": {
      const wanted = found.required ?? [];
      return Object.fromEntries(
        wanted.map((name) => [name, sample(description, found.properties?.[name], depth + 1)]),
      );
    }
    default: return null;
  }
}

function table(headings, rows) {
  const head = make("tr", {}, ...headings.map((text) => make("th", { text, scope: "col" })));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
}

function parameterRow(parameter, inputs) {
  const input = make("input", { type: "text", autocomplete: "off", spellcheck: false });
  input.setAttribute("aria-label", parameter.name);
  if (parameter.schema.default !== undefined && parameter.schema.default !== null) {
    input.placeholder = String(parameter.schema.default);
  }
  inputs.push({ parameter, input });
  return make("tr", {},
    make("td", {}, make("code", { text: parameter.name }),
      make("small", { text: ` ${parameter.in}${parameter.required ? ", required" : ""}` })),
    make("td", { text: typeOf(parameter.schema) }),
    make("td", {}, input));
}

function answerRows(description, operation) {
  return Object.entries(operation.responses).map(([status, value]) => {
    const answer = resolved(description, value);
    const content = Object.entries(answer.content ?? {}).map(
      ([media, each]) => `${media}: ${typeOf(each.schema)}`);
    return make("tr", {}, make("td", { text: status }), make("td", { text: answer.description }),
      make("td", { text: content.join("; ") }));
  });
}

async function send(path, method, inputs, area, output, stopping) {
  let url = path;
  const query = new URLSearchParams();
  const headers = {};
  for (const { parameter, input } of inputs) {
    if (parameter.in === "path") {
      url = url.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
    } else if (input.value !== "") {
      if (parameter.in === "query") query.set(parameter.name, input.value);
      else headers[parameter.name] = input.value;
    }
  }
  const token = byId("token").value;
  if (token) headers.Authorization = `Bearer ${token}`;
  if (area) headers["Content-Type"] = "application/json";
  if ([...query].length) url += `?${query}`;
  const begun = performance.now();
  const response = await fetch(url, {
    method: method.toUpperCase(), headers, body: area ? area.value : undefined,
    signal: stopping.signal, credentials: "omit", redirect: "error",
  });
  const taken = (performance.now() - begun).toFixed(1);
  const media = response.headers.get("content-type") ?? "";
  output.textContent = `${response.status} ${response.statusText}  ${taken} ms  ${media}\n\n`;
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    text += value;
    output.textContent += value;
    if (text.length > SHOWN_CHARACTERS_MAX) {
      output.textContent += "\n… and more";
      stopping.abort();
      return;
    }
  }
  if (/[/+]json$/.test(media.split(";")[0])) {
    const head = output.textContent.slice(0, output.textContent.length - text.length);
    output.textContent = head + JSON.stringify(JSON.parse(text), null, 2);
  }
}

function trying(description, path, method, operation, inputs) {
  const content = operation.requestBody?.content?.["application/json"];
  const area = operation.requestBody ? make("textarea", { spellcheck: false }) : null;
  if (area) {
    area.setAttribute("aria-label", "Body");
    const value = content?.example ?? sample(description, content?.schema ?? {}) ?? {};
    area.value = JSON.stringify(value, null, 2);
  }
  const output = make("pre", { hidden: true });
  const go = make("button", { type: "button", text: "Send" });
  const stop = make("button", { type: "button", text: "Stop", hidden: true });
  go.addEventListener("click", async () => {
    const stopping = new AbortController();
    stop.onclick = () => stopping.abort();
    go.disabled = true;
    stop.hidden = false;
    output.hidden = false;
    output.textContent = "…";
    output.classList.remove("bad");
    try {
      await send(path, method, inputs, area, output, stopping);
    } catch (error) {
      if (error.name !== "AbortError") {
        output.classList.add("bad");
        output.textContent += `\n${error}`;
      }
    } finally {
      go.disabled = false;
      stop.hidden = true;
    }
  });
  return [...(area ? [make("h3", { text: "Body" }), area] : []), go, stop, output];
}

function inside(description, path, method, operation) {
  const box = make("div", { className: "inside" });
  const inputs = [];
  const role = operation["x-segue-role"];
  box.append(make("p", { className: "quiet",
    text: role === "nobody" ? "Needs no token." : `Needs a token with the role ${role}.` }));
  if (operation.parameters?.length) {
    const rows = operation.parameters.map((each) => parameterRow(each, inputs));
    box.append(make("h3", { text: "Parameters" }), table(["Name", "Type", "Value"], rows));
  }
  const body = operation.requestBody;
  if (body) {
    const kinds = Object.entries(body.content).map(([media, each]) => `${media}: ${typeOf(each.schema)}`);
    box.append(make("p", { text: `Takes ${kinds.join("; ")}` }));
  }
  box.append(...trying(description, path, method, operation, inputs));
  box.append(make("h3", { text: "Answers" }),
    table(["Status", "What it says", "With"], answerRows(description, operation)));
  return box;
}

function operationElement(description, path, method, operation) {
  const line = make("summary", {},
    make("span", { className: `method ${method}`, text: method.toUpperCase() }),
    make("code", { text: path }), make("span", { className: "words", text: operation.summary }));
  const details = make("details", { id: operation.operationId }, line);
  details.dataset.words = `${method} ${path} ${operation.summary}`.toLowerCase();
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) {
      details.append(inside(description, path, method, operation));
    }
  });
  return details;
}

function schemaElement(name, schema) {
  const wanted = schema.required ?? [];
  const rows = Object.entries(schema.properties ?? {}).map(([field, each]) => make("tr", {},
    make("td", {}, make("code", { text: field }),
      make("small", { text: wanted.includes(field) ? " required" : "" })),
    make("td", { text: typeOf(each) }),
    make("td", { text: each.default === undefined ? "" : JSON.stringify(each.default) })));
  const box = make("div", { className: "inside" },
    make("p", { text: schema.description ?? "" }), table(["Field", "Type", "Default"], rows));
  return make("details", {}, make("summary", {}, make("code", { text: name })), box);
}

function show(description) {
  byId("version").textContent = description.info.version;
  byId("about").textContent = description.info.description;
  const groups = new Map(description.tags.map(({ name }) => [name, []]));
  for (const [path, operations] of Object.entries(description.paths)) {
    for (const [method, operation] of Object.entries(operations)) {
      groups.get(operation.tags[0]).push(operationElement(description, path, method, operation));
    }
  }
  for (const [name, elements] of groups) {
    byId("operations").append(make("section", {}, make("h2", { text: name }), ...elements));
  }
  const schemas = byId("schemas");
  schemas.hidden = false;
  for (const [name, schema] of Object.entries(description.components.schemas)) {
    schemas.append(schemaElement(name, schema));
  }
  byId("status").hidden = true;
  const open = location.hash && document.getElementById(location.hash.slice(1));
  if (open) {
    open.open = true;
    open.scrollIntoView();
  }
}

byId("find").addEventListener("input", ({ target }) => {
  const words = target.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const details of document.querySelectorAll("#operations details")) {
    details.hidden = !words.every((word) => details.dataset.words.includes(word));
  }
  for (const section of document.querySelectorAll("#operations section")) {
    section.hidden = !section.querySelector("details:not([hidden])");
  }
});

try {
  const response = await fetch("/openapi.json", { credentials: "omit" });
  if (!response.ok) throw new Error(`the description cannot be had: ${response.status}`);
  show(await response.json());
} catch (error) {
  byId("status").textContent = String(error);
  byId("status").classList.add("bad");
}
