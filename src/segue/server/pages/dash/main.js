// The frame around the screens: where we are, what is live, who looks.

import { Live } from "./live.js";
import { Problem, get, token } from "./api.js";
import { arrive, go, here, link } from "./router.js";
import { failure } from "./parts.js";
import { h, morph } from "./dom.js";
import { at, count, seconds, zone } from "./format.js";
import { setUpActs } from "./acts.js";
import { closeMenu, setUpKeys, setUpMenu, setUpTheme } from "./frame.js";
import { paint } from "./pressing.js";
import { noteOverview } from "./recent.js";
import * as audit from "./audit.js";
import * as letters from "./letters.js";
import * as limits from "./limits.js";
import * as message from "./message.js";
import * as overview from "./overview.js";
import * as queue from "./queue.js";
import * as schedules from "./schedules.js";
import * as segments from "./segments.js";
import * as task from "./task.js";
import * as tasks from "./tasks.js";
import * as topic from "./topic.js";
import * as topics from "./topics.js";
import * as workers from "./workers.js";

// Each screen has: title(place), load(place) → data, view(place, data) → node, every_ms.
const SCREENS = [
  ["", overview],
  ["queues", overview],
  ["queues/:queue", queue],
  ["queues/:queue/messages/:message", message],
  ["letters", letters],
  ["letters/:queue", letters],
  ["tasks", tasks],
  ["tasks/:queue/:message", task],
  ["schedules", schedules],
  ["workers", workers],
  ["topics", topics],
  ["topics/:topic", topic],
  ["segments", segments],
  ["limits", limits],
  ["audit", audit],
];
const NAV = [
  ["Overview", "", "o"],
  ["Dead letters", "letters", "d"],
  ["Tasks", "tasks", "t"],
  ["Schedules", "schedules", "s"],
  ["Workers", "workers", "w"],
  ["Topics", "topics", "p"],
  ["Segments", "segments", "m"],
  ["Limits", "limits", "l"],
  ["Audit log", "audit", "a"],
];
const EVERY_MS = 3_000;

const by = (id) => document.getElementById(id);
const main = by("main");

// Have a place hold these, touching only what differs: a button that has the focus keeps it.
function put(place, ...children) {
  const fresh = place.cloneNode(false);
  fresh.append(...children);
  morph(place, fresh);
}

let latest = null; // The last overview.
let shown = null; // The screen that is shown: {screen, place, data, visit}.
let visit = 0;
let visited = ""; // The address of the last navigation.
let draws = 0;
let timer = 0;

// <html data-ready="#/queues/mail 7"> names the address whose screen is drawn, and counts the draws
// since the page was opened. It is absent from the start of a navigation, of a refresh by hand and
// of the refresh after connecting, until the answer is drawn. It is also absent until the first
// overview, which enables the buttons. Scripts and tests wait for it.
function setReady(now) {
  if (now && now.answered < now.wanted) return;
  if (now && !latest && live.state === "connecting") return;
  draws += 1;
  document.documentElement.dataset.ready = `${visited} ${draws}`;
}

function clearReady() {
  delete document.documentElement.dataset.ready;
}

// Screens ----------------------------------------------------------------------------------------

function address() {
  return location.hash || "#/";
}

function found() {
  const { parts, query } = arrive();
  for (const [pattern, screen] of SCREENS) {
    const steps = pattern.split("/").filter(Boolean);
    if (steps.length !== parts.length) continue;
    const names = {};
    const fits = steps.every((step, index) => {
      if (step.startsWith(":")) names[step.slice(1)] = parts[index];
      return step.startsWith(":") || step === parts[index];
    });
    if (fits) return { screen, place: { names, query, overview: latest } };
  }
  return null;
}

async function navigate() {
  clearTimeout(timer);
  clearReady();
  closeMenu();
  visited = address();
  const there = found();
  visit += 1;
  showNav();
  if (!there) {
    shown = null;
    showIdle();
    document.title = "Not found · Segue";
    main.replaceChildren(
      h(
        "div.page",
        {},
        h("h1", { tabindex: "-1" }, "There is no such page"),
        h("p", {}, h("a", { href: "#/" }, "To the overview")),
      ),
    );
    setReady();
    return;
  }
  const isSame = shown && shown.screen === there.screen && sameNames(shown.place, there.place);
  shown = { ...there, visit, data: null, isFirst: true, isSame, asked: 0, answered: 0, wanted: 1 };
  document.title = `${there.screen.title(there.place)} · Segue`;
  main.setAttribute("aria-busy", "true");
  // Until the new screen is drawn, the old one takes no clicks: they were meant for the new one.
  main.inert ||= !isSame;
  await load(shown);
}

function showIdle() {
  main.removeAttribute("aria-busy");
  main.inert = false;
}

function sameNames(one, other) {
  return JSON.stringify(one.names) === JSON.stringify(other.names);
}

async function load(now) {
  const turn = (now.asked += 1);
  try {
    now.place.overview = latest;
    const data = await now.screen.load(now.place);
    if (now !== shown || turn < now.answered) return; // What was asked later is here already.
    now.answered = turn;
    now.data = data;
    now.failed = null;
    draw(now);
  } catch (error) {
    if (now !== shown || turn < now.answered) return;
    now.answered = turn;
    if (error instanceof Problem && error.status === 401) {
      askForToken(error);
      return;
    }
    now.failed = error;
    if (!now.data || error.status !== 0 || !live.isOld) draw(now);
    else setReady(now); // The banner tells it.
  } finally {
    if (now === shown) {
      clearTimeout(timer);
      timer = setTimeout(() => again(now), now.screen.every_ms || EVERY_MS);
    }
  }
}

function failureOf(error) {
  if (!(error instanceof Problem)) {
    console.error(error);
    return failure(new Problem(0, "bug", String(error)));
  }
  return failure(error);
}

function again(now) {
  if (now !== shown) return;
  if (live.isFlowing) load(now);
  else timer = setTimeout(() => again(now), EVERY_MS);
}

function draw(now) {
  paint("screen", () => {
    if (now !== shown) return;
    showIdle(); // First: what is inert cannot take the focus.
    if (now.data) drawNow(now);
    else
      main.replaceChildren(
        h(
          "div.page",
          {},
          h("h1", { tabindex: "-1" }, now.screen.title(now.place)),
          failureOf(now.failed),
        ),
      );
    setReady(now);
  });
}

function drawNow(now) {
  now.place.overview = latest;
  let fresh;
  try {
    fresh = now.screen.view(now.place, now.data);
  } catch (error) {
    fresh = h(
      "div.page",
      {},
      h("h1", { tabindex: "-1" }, now.screen.title(now.place)),
      failureOf(error),
    );
  }
  if (now.failed) fresh.prepend(failureOf(now.failed));
  if (!now.isFirst && main.firstElementChild) {
    const focused = document.activeElement;
    morph(main.firstElementChild, fresh);
    const isLost = focused !== document.activeElement && focused.isConnected;
    if (isLost) focused.focus({ preventScroll: true }); // It was moved.
    return;
  }
  now.isFirst = false;
  const { activeElement: focused } = document;
  const was = now.isSame && main.contains(focused) ? marksOf(focused) : null;
  main.replaceChildren(fresh);
  // Whoever chose another filter or page of the same screen goes on from there.
  const again =
    was && [...main.querySelectorAll(was.tag)].find((each) => marksOf(each).is === was.is);
  if (again) again.focus({ preventScroll: true });
  else if (visit > 1) main.querySelector("h1")?.focus({ preventScroll: true });
  if (!now.isSame) scrollTo(0, 0);
}

// What tells an element of a screen from the others, whatever its figures are.
function marksOf(element) {
  const place = element.closest("[aria-label], form")?.getAttribute("aria-label") || "";
  const name = element.name || element.textContent.replace(/[\d.,↑↓ ]+/g, "");
  return { tag: element.localName, is: `${place} ${name}` };
}

async function refresh() {
  if (shown) shown.wanted = shown.asked + 1;
  clearReady();
  if (live.isPaused) await takeOnce(); // Else it comes by itself.
  if (shown) load(shown);
  else setReady();
}

// The overview, where none comes by itself: who may act is told there.
async function takeOnce() {
  try {
    takeOverview(await get(["overview"]));
  } catch {
    // The screen's own request fails as well, and shows why.
    if (shown && shown.answered) setReady(shown);
  }
}

// The frame ---------------------------------------------------------------------------------------

function showNav() {
  const first = here().parts[0] || "";
  const isAt = (path) => (path === "" ? first === "" || first === "queues" : first === path);
  const dead = latest ? latest.totals.dead : 0;
  const fresh = h(
    "nav",
    { id: "nav", "aria-label": "Screens" },
    h(
      "ul",
      {},
      NAV.map(([text, path]) =>
        h(
          "li",
          {},
          h(
            "a",
            { href: link(path ? [path] : []), "aria-current": isAt(path) ? "page" : null },
            text,
            path === "letters" && dead ? [" ", h("span.count.dead", {}, count(dead))] : null,
          ),
        ),
      ),
    ),
  );
  fresh.className = by("nav").className;
  morph(by("nav"), fresh);
}

const STATES = {
  connecting: ["Connecting", "plain"],
  live: ["Live", "good"],
  paused: ["Paused", "warn"],
  hidden: ["Hidden", "plain"],
  stale: ["Stale", "warn"],
  disconnected: ["Disconnected", "dead"],
  refused: ["Signed out", "plain"],
};

function showState(state) {
  paint("state", () => showStateNow(state));
}

function showStateNow(state) {
  const [text, tone] = STATES[state];
  const { isOld } = live;
  put(
    by("status"),
    h(
      `button.badge.${tone}`,
      {
        type: "button",
        "aria-pressed": String(live.isPaused),
        title: live.isPaused ? "Go on (p)" : "Pause (p)",
        onclick: () => live.pause(!live.isPaused),
      },
      text,
    ),
  );
  document.body.classList.toggle("old", isOld);
  put(by("banner"), isOld ? oldNote(state) : "");
}

// Its words stay the same for as long as it is shown: they are read out whenever they change.
function oldNote(state) {
  const left_ms = live.retry_ms - Date.now();
  const trying =
    left_ms > 0 ? `Next try in ${seconds(Math.ceil(left_ms / 1000))}.` : "Trying again…";
  return h(
    "div.old-note",
    {},
    h(
      "span",
      {},
      state === "stale" ? "No new figures come" : "Not connected",
      live.last_ms ? [": what is shown is old, of ", at(live.last_ms * 1000)] : null,
      ". ",
      state === "disconnected" ? h("span", { "aria-hidden": "true" }, trying) : null,
    ),
    h(
      "button",
      {
        type: "button",
        onclick: () => {
          live.retry();
          refresh();
        },
      },
      "Try now",
    ),
  );
}

function takeOverview(fresh) {
  const isFirst = !latest;
  latest = fresh;
  noteOverview(fresh);
  setUpActs({ mayAct: fresh.you.may_act, refresh });
  paint("frame", showFrame);
  if (shown && shown.data !== null && (isFirst || shown.screen.isLive)) draw(shown);
}

function showFrame() {
  if (!latest) return; // Signed out since.
  const { store, you } = latest;
  by("store").textContent =
    `${store.kind}, ${store.durable === "redis" ? "" : "sync "}${store.durable}`;
  put(
    by("foot"),
    `Segue ${store.version} · times in ${zone} · `,
    h("button.quiet", { type: "button", onclick: showKeys }, "Keys"),
  );
  showWho(you);
  showNav();
}

function showWho(you) {
  const role = you.may_act ? "admin" : "read-only";
  put(
    by("who"),
    h(
      "span.dim",
      { title: `roles: ${you.roles.join(", ")}; names: ${you.names.join(", ")}` },
      `${you.name} (${role})`,
    ),
    token.get() ? h("button.quiet", { type: "button", onclick: signOut }, "Sign out") : "",
  );
}

function signOut() {
  token.set("");
  location.reload();
}

function askForToken(problem) {
  const wasRefused = Boolean(token.get());
  token.set("");
  live.refuse();
  clearTimeout(timer);
  shown = latest = null;
  for (const id of ["store", "who", "foot"]) by(id).replaceChildren();
  showNav();
  document.title = "Sign in · Segue";
  showIdle();
  const isTyping = main.querySelector("input[name=token]");
  if (!isTyping) drawSignIn(problem, wasRefused);
  setReady();
}

function drawSignIn(problem, wasRefused) {
  const told = h("div", {}, wasRefused ? failure(problem) : null);
  main.replaceChildren(
    h(
      "div.page.narrow",
      {},
      h("h1", { tabindex: "-1" }, "Sign in"),
      h(
        "p",
        {},
        "This server asks for a token: ",
        h("code", {}, "segue token add"),
        " makes one. It is kept until this tab is closed.",
      ),
      told,
      h(
        "form",
        {
          onsubmit: async (event) => {
            event.preventDefault();
            token.set(new FormData(event.target).get("token").trim());
            try {
              await get(["overview"]); // Once: servers count wrong tokens.
            } catch (error) {
              token.set("");
              told.replaceChildren(failureOf(error));
              return;
            }
            main.replaceChildren();
            live.retry();
            navigate();
          },
        },
        h(
          "label.field",
          {},
          h("span", {}, "Token"),
          h("input", {
            name: "token",
            type: "password",
            required: true,
            pattern: "\\s*[!-~]+\\s*",
            title: "Letters, digits, _ and -",
            autocomplete: "current-password",
          }),
        ),
        h("button.primary", { type: "submit" }, "Sign in"),
      ),
    ),
  );
  main.querySelector("input").focus();
}

// Beginning ---------------------------------------------------------------------------------------

const live = new Live({
  onOverview: takeOverview,
  onState: (state) => {
    showState(state);
    if (state === "live" && shown) refresh();
    if (state === "disconnected" && !latest) takeOnce();
  },
  onRefused: askForToken,
});

addEventListener("hashchange", () => {
  if (address() !== visited) navigate();
});
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#/']");
  const isPlain = !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
  if (!link || !isPlain || event.defaultPrevented) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});
setUpTheme();
setUpMenu();
const showKeys = setUpKeys({
  screens: NAV,
  refresh,
  pause: () => live.pause(!live.isPaused),
});
showState("connecting");
navigate();
live.begin();
