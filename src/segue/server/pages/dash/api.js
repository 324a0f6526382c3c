// Asking the server. A refusal is a Problem, which says what the server said.

const PREFIX = "../api/v1";
const TOKEN = "segue-token";
const PATIENCE_MS = 20_000;

export class Problem extends Error {
  constructor(status, code, detail) {
    super(detail);
    this.status = status;
    this.code = code;
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN) || "",
  set: (text) => (text ? sessionStorage.setItem(TOKEN, text) : sessionStorage.removeItem(TOKEN)),
};

export function path(parts, query) {
  // To browsers these are directories, however they are written: another path would be asked.
  const step = parts.find((each) => each === "." || each === "..");
  if (step) throw new Problem(404, "not_found", `nothing is called ${step}`);
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(query || {})) {
    if (value !== null && value !== undefined) asked.set(name, value);
  }
  const said = asked.toString();
  return `${PREFIX}/${parts.map(encodeURIComponent).join("/")}${said ? `?${said}` : ""}`;
}

export function headers() {
  const said = token.get();
  return said ? { authorization: `Bearer ${said}` } : {};
}

async function ask(method, where, body, signal) {
  const options = { method, headers: headers(), cache: "no-store", signal };
  if (body !== undefined) {
    options.headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(where, options);
    if (answer.ok) return await answer.text();
  } catch (error) {
    const words = {
      TimeoutError: "the server does not answer",
      AbortError: "stopped; what was done until then stays done",
    };
    throw new Problem(
      0,
      error.name === "AbortError" ? "stopped" : "unreachable",
      words[error.name] || "the server cannot be reached",
    );
  }
  throw await problemOf(answer);
}

function parsed(text, reviver) {
  try {
    return text ? JSON.parse(text, reviver) : null;
  } catch {
    throw new Problem(502, "unreadable", "what came is no answer of this server");
  }
}

// Numbers that would be rounded stay as they are written, where the browser can do that.
function exactly(_name, value, { source } = {}) {
  const isRounded =
    typeof value === "number" &&
    (/^-?\d+$/.test(source) ? !Number.isSafeInteger(value) : !Number.isFinite(value));
  return isRounded && source && JSON.rawJSON ? JSON.rawJSON(source) : value;
}

export async function problemOf(answer) {
  try {
    const said = await answer.json();
    return new Problem(
      answer.status,
      said.code || "",
      said.detail || said.title || answer.statusText,
    );
  } catch {
    return new Problem(answer.status, "", answer.statusText || `status ${answer.status}`);
  }
}

function asked(parts, query) {
  return ask("GET", path(parts, query), undefined, AbortSignal.timeout(PATIENCE_MS));
}

export async function get(parts, query) {
  return parsed(await asked(parts, query));
}

// The same, for what others have written and is shown as they wrote it.
export async function getExactly(parts) {
  return parsed(await asked(parts), exactly);
}

export async function getLines(parts, query) {
  return (await asked(parts, query))
    .split("\n")
    .filter(Boolean)
    .map((line) => parsed(line));
}

// Acts take as long as they take, or until `signal`: the server stops what nobody waits for.
async function act(method, parts, body, signal) {
  return parsed(await ask(method, path(parts), body, signal));
}

export const post = (parts, body = {}, signal) => act("POST", parts, body, signal);
export const put = (parts, body) => act("PUT", parts, body);
export const remove = (parts) => act("DELETE", parts, undefined);
