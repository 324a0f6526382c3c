// Where we are, by what stands behind the # of the address: every view and filter has a link.

export function here() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decoded);
  return { parts, query: new URLSearchParams(query) };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function link(parts, query) {
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(query || {})) {
    if (value !== null && value !== undefined) asked.set(name, value);
  }
  const said = asked.toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${said ? `?${said}` : ""}`;
}

let route = here(); // The route of the screen that is shown, or that is being loaded.

// Make the current address the route that `changed` starts from, and return it.
export function arrive() {
  route = here();
  return route;
}

// The address of the same screen with some of its filters changed; null removes a filter. It does
// not read the address bar, which may name the next screen before that screen is loaded.
export function changed(changes) {
  const { parts, query } = route;
  return link(parts, { ...Object.fromEntries(query), ...changes });
}

// Navigate at once. The browser sends its own hashchange later, and a click can overtake it.
export function go(address, { replaces = false } = {}) {
  if (replaces) history.replaceState(null, "", address);
  else location.hash = address;
  dispatchEvent(new HashChangeEvent("hashchange"));
}
