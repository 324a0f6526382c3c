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

// The same view with some of its filters changed; null takes one away.
export function changed(changes) {
  const { parts, query } = here();
  return link(parts, { ...Object.fromEntries(query), ...changes });
}

export function go(address, { replaces = false } = {}) {
  if (replaces) {
    history.replaceState(null, "", address);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = address;
  }
}
