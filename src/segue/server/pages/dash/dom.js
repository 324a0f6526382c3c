// Elements from plain values. Text is always text: nothing here ever parses HTML.

const HANDLERS = ["onclick", "onchange", "oninput", "onsubmit", "onkeydown"];

// h("a.name.other", {href, onclick, style: {width}}, "text", [nodes], null)
export function h(what, props, ...children) {
  const [tag, ...classes] = what.split(".");
  const node = document.createElement(tag || "div");
  if (classes.length) node.className = classes.join(" ");
  for (const [name, value] of Object.entries(props || {})) set(node, name, value);
  add(node, children);
  return node;
}

export function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  add(node, children);
  return node;
}

function set(node, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name === "style")
    Object.assign(node.style, value); // By property: attributes are not allowed.
  else if (name === "class") node.className += ` ${value}`;
  else if (name === "key") node.dataset.key = value;
  else if (name.startsWith("on")) node[name] = value;
  else node.setAttribute(name, value === true ? "" : String(value));
}

function add(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
}

// Make `old` what `fresh` is, touching only what differs: focus, selection, scrolling, open
// details and what is being typed stay. Elements with a `keep` method see to that themselves.
export function morph(old, fresh) {
  if (!alike(old, fresh)) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.keep) {
    old.keep(fresh);
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !isOwn(old, name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value && !isOwn(old, name)) old.setAttribute(name, value);
  }
  if (old.style && old.style.cssText !== fresh.style.cssText) {
    old.style.cssText = fresh.style.cssText;
  }
  for (const name of HANDLERS) if (old[name] !== fresh[name]) old[name] = fresh[name];
  morphChildren(old, fresh);
}

function morphChildren(old, fresh) {
  const keyed = new Map();
  for (const child of old.childNodes) {
    if (keyOf(child) && !keyed.has(keyOf(child))) keyed.set(keyOf(child), child);
  }
  const children = [...fresh.childNodes];
  const wanted = new Set(children.map(keyOf));
  let place = old.firstChild;
  const drop = () => {
    const next = place.nextSibling;
    place.remove();
    place = next;
  };
  for (const [index, child] of children.entries()) {
    while (place && !wanted.has(keyOf(place))) drop();
    const key = keyOf(child);
    if (!key && place && !keyOf(place) && !alike(place, child)) {
      // Something went, came, or is another thing now; what lies behind it stays.
      const following = children[index + 1];
      if (place.nextSibling && alike(place.nextSibling, child)) {
        drop();
      } else if (!following || !alike(place, following)) {
        place.replaceWith(child);
        place = child.nextSibling;
        continue;
      }
    }
    const known = key ? keyed.get(key) : place;
    keyed.delete(key);
    if (known && alike(known, child)) {
      if (known === place) place = place.nextSibling;
      else old.insertBefore(known, place);
      morph(known, child);
    } else {
      old.insertBefore(child, place);
    }
  }
  while (place) drop();
}

function alike(one, other) {
  return one.nodeName === other.nodeName && keyOf(one) === keyOf(other);
}

function keyOf(node) {
  return node.dataset ? node.dataset.key : undefined;
}

// What belongs to whoever looks: what is typed or opened.
function isOwn(node, name) {
  const isField = /^(INPUT|SELECT|TEXTAREA|OPTION)$/.test(node.nodeName);
  return (
    name === "style" ||
    (isField && /^(value|checked|selected)$/.test(name)) ||
    (node.nodeName === "DETAILS" && name === "open")
  );
}
