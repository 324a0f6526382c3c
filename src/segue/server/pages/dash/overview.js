// The first screen: what is stuck, how much, how fast, and every queue.

import { get } from "./api.js";
import { h } from "./dom.js";
import { NONE, bytes, count, exact, leftOut, millis, percent, plural, rate, seconds } from "./format.js";
import { changed, go, link } from "./router.js";
import { badge, filters, page, section, sortOf, sorted, table, tile } from "./parts.js";
import {
  ageChart,
  depthChart,
  diskChart,
  flowChart,
  loadHistory,
  rangeTabs,
  taskChart,
} from "./history.js";
import { recentOut } from "./recent.js";
import { spark } from "./charts.js";

const STUCK_SECONDS = 300;
const SURE_LOOKS = 5; // So many looks at which nothing came out, before a queue is said to be stuck.
const DISK_LOW = 0.1;
const QUEUES_PER_PAGE = 50;
const NOT_YET = "not looked at yet"; // What a server says of a queue right after its start.

export const title = () => "Overview";
export const every_ms = 10_000;
export const isLive = true;

export async function load({ query, overview }) {
  const [history, first] = await Promise.all([loadHistory(query), overview || get(["overview"])]);
  return { history, first };
}

export function view({ query, overview }, { history, first }) {
  const now = overview || first;
  return page(
    "Overview",
    { aside: rangeTabs(query) },
    attention(now),
    tiles(now),
    h(
      "div.charts",
      {},
      flowChart(history, now.totals, now.at_us),
      depthChart(history, now.totals, now.at_us),
      ageChart(history, now.totals, now.at_us),
      now.tasks ? taskChart(history) : null,
      now.syncs_per_second === null ? null : diskChart(history),
    ),
    queues(query, now),
  );
}

// What wants to be looked at ---------------------------------------------------------------------

function problems(now) {
  const found = [];
  const tell = (tone, kind, name, text, href) =>
    found.push({ tone, key: `${kind} ${name}`, text, href });
  if (now.health.status !== "ok")
    tell("dead", "health", "", `The server is not well: ${now.health.reason || now.health.status}`);
  if (now.disk && now.disk.free_bytes < DISK_LOW * now.disk.total_bytes) {
    const { free_bytes, total_bytes } = now.disk;
    const words = `The disk is nearly full: ${bytes(free_bytes)} free of ${bytes(total_bytes)}`;
    tell("dead", "disk", "", words, link(["segments"]));
  }
  for (const { name, ...row } of now.queues) {
    const there = link(["queues", name]);
    if (row.problem && row.problem !== NOT_YET)
      tell("dead", "problem", name, `${name} cannot be read: ${row.problem}`, there);
    if (row.paused)
      tell("warn", "paused", name, `${name} is paused, with ${exact(row.ready)} ready`, there);
    else if (waitsForLong(row) && recentOut(name).length >= SURE_LOOKS && !hasLeft(name)) {
      const words = `${name} is stuck: ${exact(row.ready)} ready, the oldest for ${seconds(row.oldest_seconds)}, and nothing comes out`;
      tell("dead", "stuck", name, words, there);
    }
    if (row.dead) {
      const words = `${name} has ${plural(row.dead, "dead letter")}`;
      tell("warn", "letters", name, words, link(["letters", name]));
    }
  }
  return found;
}

function waitsForLong(row) {
  return row.ready && row.oldest_seconds > STUCK_SECONDS;
}

// Whether anything came out in the last minute, or nobody can tell.
function hasLeft(name) {
  return recentOut(name).some((rate) => rate !== 0);
}

// Whether a queue may yet turn out to be stuck.
function isUnsure({ name, ...row }) {
  const isNew = recentOut(name).length < SURE_LOOKS;
  return row.problem === NOT_YET || (isNew && !row.paused && waitsForLong(row) && !hasLeft(name));
}

function attention(now) {
  const found = problems(now);
  if (!found.length && now.queues.some(isUnsure))
    return h("p.dim", { role: "status" }, "Looking at the queues…");
  if (!found.length) return h("p.calm", { role: "status" }, calm(now));
  const order = { dead: 0, warn: 1 };
  found.sort((one, other) => order[one.tone] - order[other.tone]);
  const items = found.map(({ tone, key, text, href }) =>
    h(`li.${tone}`, { key }, href ? h("a", { href }, text) : text),
  );
  const shown = items.slice(0, 6);
  const more = items.slice(6);
  return h(
    "section.attention",
    { "aria-label": "What wants to be looked at" },
    h("ul", {}, shown),
    more.length
      ? h("details", {}, h("summary", {}, `${more.length} more`), h("ul", {}, more))
      : null,
  );
}

function calm({ queues: listed, more_queues }) {
  if (!more_queues) return "Nothing is stuck.";
  return `Nothing is stuck in the ${plural(listed.length, "queue")} listed here; ${leftOut(more_queues)}.`;
}

function tiles(now) {
  const { totals, disk, tasks, workers } = now;
  return h(
    "div.tiles",
    {},
    tile("Ready", count(totals.ready), {
      title: exact(totals.ready),
      note: totals.paused ? `${plural(totals.paused, "queue")} paused` : null,
    }),
    tile("Leased", count(totals.leased), { title: exact(totals.leased) }),
    tile("Delayed", count(totals.delayed), { title: exact(totals.delayed) }),
    tile("Dead letters", count(totals.dead), {
      tone: totals.dead ? "alarm" : null,
      href: link(["letters"]),
      title: exact(totals.dead),
    }),
    tile("In", rate(totals.in_per_second)),
    tile("Out", rate(totals.out_per_second)),
    tile("Errors", rate(totals.failed_per_second), {
      tone: totals.failed_per_second ? "alarm" : null,
      note: "failed, expired or buried",
    }),
    tile("Oldest waits", seconds(totals.oldest_seconds), {
      href: totals.oldest_queue ? link(["queues", totals.oldest_queue]) : null,
      note: totals.oldest_queue,
    }),
    tasks
      ? tile("Wait, median", millis(tasks.wait.count ? tasks.wait.p50_ms : null), {
          note: tasks.wait.count ? `p99 ${millis(tasks.wait.p99_ms)}` : "no tasks yet",
        })
      : null,
    tasks
      ? tile("Run, median", millis(tasks.run.count ? tasks.run.p50_ms : null), {
          note: tasks.run.count ? `p99 ${millis(tasks.run.p99_ms)}` : "no tasks yet",
        })
      : null,
    workers
      ? tile("Workers", exact(workers.count), {
          href: link(["workers"]),
          note: `${workers.busy} of ${workers.slots} slots busy`,
        })
      : null,
    disk
      ? tile("On disk", bytes(disk.store_bytes), {
          note: `${bytes(disk.free_bytes)} free (${percent(disk.free_bytes / disk.total_bytes)})`,
          tone: disk.free_bytes < DISK_LOW * disk.total_bytes ? "alarm" : null,
        })
      : null,
    now.syncs_per_second === null ? null : tile("Fsync", rate(now.syncs_per_second)),
  );
}

// Queues -----------------------------------------------------------------------------------------

const COLUMNS = [
  {
    title: "Queue",
    sort: "name",
    cell: (row) => [
      h("a", { href: link(["queues", row.name]) }, row.name),
      row.paused ? [" ", badge("paused", "warn")] : null,
      row.problem === NOT_YET
        ? [" ", badge(NOT_YET)]
        : row.problem
          ? [" ", badge("unreadable", "dead")]
          : null,
    ],
  },
  { title: "Ready", sort: "ready", isNumber: true, cell: (row) => number(row, row.ready) },
  { title: "Delayed", sort: "delayed", isNumber: true, cell: (row) => number(row, row.delayed) },
  { title: "Leased", sort: "leased", isNumber: true, cell: (row) => number(row, row.leased) },
  {
    title: "Dead",
    sort: "dead",
    isNumber: true,
    cell: (row) =>
      row.dead
        ? h("a.bad", { href: link(["letters", row.name]) }, count(row.dead))
        : number(row, 0),
  },
  { title: "In", sort: "in_per_second", isNumber: true, cell: (row) => rate(row.in_per_second) },
  { title: "Out", sort: "out_per_second", isNumber: true, cell: (row) => rate(row.out_per_second) },
  {
    title: "Last minute",
    cell: (row) => spark(recentOut(row.name), `Out of ${row.name} in the last minute`),
  },
  {
    title: "Oldest",
    sort: "oldest_seconds",
    isNumber: true,
    cell: (row) => (row.oldest_seconds === null ? NONE : seconds(row.oldest_seconds)),
  },
  { title: "Size", sort: "size_bytes", isNumber: true, cell: (row) => bytes(row.size_bytes) },
];

function number(row, value) {
  if (row.problem === NOT_YET) return NONE;
  return h("span", { title: exact(value) }, count(value));
}

function queues(query, now) {
  const wanted = (query.get("q") || "").toLowerCase();
  const fitting = now.queues.filter((row) => row.name.toLowerCase().includes(wanted));
  const sort = sortOf(query, "name");
  const rows = sorted(fitting, sort, (row, by) => row[by]);
  const start = Math.min(Number(query.get("from") || 0), Math.max(0, rows.length - 1));
  const first = Math.floor(start / QUEUES_PER_PAGE) * QUEUES_PER_PAGE;
  const shown = rows.slice(first, first + QUEUES_PER_PAGE);
  const note = `${exact(fitting.length)}${fitting.length === now.queues.length ? "" : ` of ${exact(now.queues.length)}`}${now.more_queues ? `, and ${exact(now.more_queues)} not shown` : ""}`;
  return section(
    "Queues",
    { note },
    filters([{ name: "q", label: "Name contains", placeholder: "orders" }], query, (said) =>
      go(changed({ q: said.q || null, from: null }), { replaces: true }),
    ),
    table({
      label: "Queues",
      columns: COLUMNS,
      rows: shown,
      key: (row) => row.name,
      sort,
      none: now.queues.length
        ? "No queue has that in its name."
        : [
            "There are no queues yet. Push a message: ",
            h("code", {}, "segue queue push data orders hello"),
          ],
    }),
    rows.length > QUEUES_PER_PAGE
      ? h(
          "nav.pager",
          { "aria-label": "Pages of queues" },
          first
            ? h("a.button", { href: changed({ from: first - QUEUES_PER_PAGE }) }, "← Back")
            : h("span.button.off", {}, "← Back"),
          h("span.dim", {}, `${first + 1}–${first + shown.length} of ${rows.length}`),
          first + QUEUES_PER_PAGE < rows.length
            ? h("a.button", { href: changed({ from: first + QUEUES_PER_PAGE }) }, "Next →")
            : h("span.button.off", {}, "Next →"),
        )
      : null,
  );
}
