// One message: how it stands, all that happened to it, and what is in it.

import { Problem, get } from "./api.js";
import { h } from "./dom.js";
import { ago, at, now_us, seconds, when } from "./format.js";
import { letterButtons } from "./letters.js";
import { WHOLE_BYTES_MAX, payload } from "./payload.js";
import { link } from "./router.js";
import { empty, facts, page, section, stateBadge } from "./parts.js";

export const title = ({ names }) => `${names.message} in ${names.queue}`;

export const load = ({ names }) =>
  get(["queues", names.queue, "messages", names.message, "timeline"]);

const WORDS = {
  pushed: "Pushed",
  delayed: "Delayed",
  leased: "Leased",
  extended: "Lease extended",
  released: "Given back",
  failed: "Failed",
  expired: "Lease expired",
  dead: "Moved to the dead letters",
  redriven: "Brought back",
  acked: "Settled: done",
  popped: "Settled: popped",
  purged: "Purged",
  dropped: "Dropped: the queue was full",
  outlived: "Its time to live was over",
  discarded: "Discarded",
  moved: "Moved out of an old segment",
  held: "Held back for its group",
  lost: "Lost: it could not be read",
};
const TONES = {
  failed: "dead",
  dead: "dead",
  expired: "warn",
  lost: "dead",
  outlived: "warn",
  dropped: "warn",
  acked: "good",
  popped: "good",
  leased: "leased",
  pushed: "ready",
  redriven: "ready",
};

export function view({ names }, timeline) {
  const { message, state, letter } = timeline;
  return page(
    [names.message, " ", stateBadge(state)],
    {
      crumbs: [
        h("a", { href: "#/" }, "Overview"),
        h("a", { href: link(["queues", names.queue]) }, names.queue),
        names.message,
      ],
      aside: [
        letter === null ? null : letterButtons(names.queue, { id: names.message, number: letter }),
        h("a.button", { href: link(["tasks", names.queue, names.message]) }, "As a task"),
      ],
    },
    state === "unknown"
      ? empty(
          "Nothing is known of this message: it never was, or it is settled and no longer kept.",
        )
      : null,
    h(
      "div.columns",
      {},
      h("div", {}, standing(timeline), happened(timeline)),
      h(
        "div",
        {},
        message ? content(names, timeline) : section("Payload", {}, empty("It is no longer kept.")),
      ),
    ),
  );
}

function standing({ message, due_us, owner, seconds_left, reason, tries }) {
  const now = now_us();
  return section(
    "How it stands",
    {},
    facts([
      ["Pushed", message ? ago(message.pushed_us, now) : null],
      message && ["Priority", message.priority ?? 0],
      ["Tries", tries],
      message && message.key && ["Deduplication key", message.key],
      message && message.group && ["Group", message.group],
      due_us !== null && ["Due", ago(due_us, now)],
      owner !== null && ["Leased by", owner],
      seconds_left !== null && ["Lease ends in", seconds(seconds_left)],
      message && message.expires_us && ["Lives until", when(message.expires_us)],
      reason && ["Last reason", h("span.reason", {}, reason)],
    ]),
  );
}

function happened({ events, is_whole, since_us }) {
  return section(
    "Timeline",
    {
      note: is_whole
        ? null
        : `what happened${since_us ? ` before ${when(since_us)}` : " earlier"} is no longer known`,
    },
    events.length
      ? h(
          "ol.timeline",
          {},
          events.map((event, index) => entry(event, events[index - 1], index)),
        )
      : empty("Nothing is known to have happened."),
  );
}

function entry(event, before, index) {
  const since =
    before && event.at_us > before.at_us
      ? `after ${seconds((event.at_us - before.at_us) / 1e6)}`
      : null;
  return h(
    `li.${TONES[event.what] || "plain"}`,
    { key: `${index}-${event.what}` },
    h(
      "span.what",
      {},
      WORDS[event.what] || event.what,
      event.owner && event.what !== "dead" ? [" by ", h("strong", {}, event.owner)] : null,
      event.attempt ? h("span.dim", {}, `, attempt ${event.attempt}`) : null,
    ),
    h("span.dim.when", {}, at(event.at_us), since ? `, ${since}` : ""),
    event.ends_us ? h("span.dim", {}, `until ${when(event.ends_us)}`) : null,
    event.due_us ? h("span.dim", {}, `not before ${when(event.due_us)}`) : null,
    event.reason && event.reason !== before?.reason ? h("p.reason", {}, event.reason) : null,
  );
}

function content(names, { message, body_bytes_total, is_cut }) {
  const headers = Object.entries(message.headers || {});
  return [
    section(
      "Payload",
      {},
      payload({
        text: message.body ?? (message.body_base64 ? null : ""),
        base64: message.body_base64,
        totalBytes: body_bytes_total,
        isCut: is_cut,
        whole: () => wholeOf(names),
        name: `${names.queue}-${names.message}`,
      }),
    ),
    section("Headers", {}, headers.length ? facts(headers) : empty("It has none.")),
  ];
}

async function wholeOf({ queue, message }) {
  const path = ["queues", queue, "messages", message, "timeline"];
  const found = await get(path, { body_bytes: WHOLE_BYTES_MAX });
  if (!found.message) throw new Problem(0, "gone", "it is no longer kept");
  return { text: found.message.body, base64: found.message.body_base64 };
}
