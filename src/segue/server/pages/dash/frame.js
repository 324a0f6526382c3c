// The theme, the menu of small screens, and keys.

import { go, link } from "./router.js";
import { h } from "./dom.js";

const by = (id) => document.getElementById(id);
const THEMES = ["auto", "light", "dark"];
const DARK = matchMedia("(prefers-color-scheme: dark)");

// The theme --------------------------------------------------------------------------------------

function theme() {
  const said = localStorage.getItem("segue-theme");
  return THEMES.includes(said) ? said : "auto";
}

function showTheme() {
  const isDark = theme() === "dark" || (theme() === "auto" && DARK.matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  by("theme").textContent = `Theme: ${theme()}`;
}

export function setUpTheme() {
  by("theme").onclick = () => {
    localStorage.setItem("segue-theme", THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
    showTheme();
  };
  DARK.addEventListener("change", showTheme);
  showTheme();
}

// The menu ---------------------------------------------------------------------------------------

export function setUpMenu() {
  by("menu").onclick = () => {
    const isOpen = by("nav").classList.toggle("open");
    by("menu").setAttribute("aria-expanded", String(isOpen));
  };
  by("skip").onclick = (event) => {
    event.preventDefault(); // What stands behind the # is a screen.
    by("main").focus();
  };
}

export function closeMenu() {
  by("nav").classList.remove("open");
  by("menu").setAttribute("aria-expanded", "false");
}

// Keys -------------------------------------------------------------------------------------------

// Have keys do what they stand for; `screens` are [text, path, key], which comes after g. Returns
// what shows the list of them. Single letters can be switched off: some speak to their browser.
export function setUpKeys({ screens, refresh, pause }) {
  const keys = {
    "/": ["filter", () => by("main").querySelector("input[type=search]")?.focus()],
    r: ["refresh", refresh],
    p: ["pause, go on", pause],
    "?": ["this list", () => showKeys(keys, screens)],
  };
  let isGoing = false;
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest("input, select, textarea, dialog");
    if (isTyping || !areOn() || event.ctrlKey || event.metaKey || event.altKey) return;
    const screen = isGoing ? screens.find(([, , key]) => key === event.key) : null;
    isGoing = event.key === "g";
    if (screen) go(link(screen[1] ? [screen[1]] : []));
    else if (keys[event.key]) keys[event.key][1]();
    else return;
    event.preventDefault();
  });
  return () => showKeys(keys, screens);
}

function areOn() {
  return localStorage.getItem("segue-keys") !== "off";
}

function showKeys(keys, screens) {
  const rows = [
    ...Object.entries(keys).map(([key, [text]]) => [key, text]),
    ...screens.map(([text, , key]) => [`g ${key}`, text]),
  ];
  const list = h(
    "dl.keys",
    {},
    rows.map(([key, text]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, text))),
  );
  const toggle = h("input", {
    type: "checkbox",
    checked: areOn(),
    onchange: (event) => localStorage.setItem("segue-keys", event.target.checked ? "on" : "off"),
  });
  const close = h("button.primary", { type: "submit" }, "Close");
  const form = h("form", { method: "dialog" }, h("h2", { id: "keys-title" }, "Keys"), list);
  form.append(h("label", {}, toggle, " Use these keys"), h("div.buttons", {}, close));
  const dialog = h("dialog", { "aria-labelledby": "keys-title" }, form);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
