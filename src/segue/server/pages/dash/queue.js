// One queue: what is in which state, of what, since when, and switching it off and on.

import { get, post, remove } from "./api.js";
import { actButton } from "./acts.js";
import { h } from "./dom.js";
import { change, pauseButton } from "./limits.js";
import {
  NONE,
  ago,
  bytes,
  count,
  exact,
  now_us,
  percent,
  plural,
  rate,
  seconds,
} from "./format.js";
import { changed, go, link } from "./router.js";
import {
  badge,
  empty,
  facts,
  page,
  pager,
  section,
  shares,
  stateBadge,
  table,
  tabs,
  tile,
} from "./parts.js";
import { ageChart, depthChart, flowChart, loadHistory, rangeTabs } from "./history.js";

const PAGE = 25;
const STATES = ["ready", "delayed", "leased", "dead"];
const PREVIEW_CHARACTERS = 80;
export const PREVIEW_BYTES = 4 * PREVIEW_CHARACTERS + 4; // No character takes up more than four.

export const title = ({ names }) => names.queue;
export const isLive = true;

export async function load({ names, query }) {
  const path = ["queues", names.queue];
  const state = query.get("state") || null;
  const [stats, rules, breakdown, history, messages] = await Promise.all([
    get(path),
    get([...path, "rules"]),
    get([...path, "breakdown"]),
    loadHistory(query, names.queue),
    get([...path, "messages"], {
      state,
      limit: PAGE + 1,
      after: query.get("after"),
      body_bytes: PREVIEW_BYTES,
    }),
  ]);
  return { stats, rules, breakdown, history, messages };
}

export function view({ names, query, overview }, { stats, rules, breakdown, history, messages }) {
  const row = overview && overview.queues.find((each) => each.name === names.queue);
  const at_us = overview ? overview.at_us : 0;
  const { counts } = stats;
  return page(
    [names.queue, stats.paused ? [" ", badge("paused", "warn")] : null],
    {
      crumbs: [h("a", { href: "#/" }, "Overview"), names.queue],
      aside: buttons(names.queue, stats),
    },
    overview && !row && !overview.more_queues && !stats.size_bytes
      ? h("p.old-note", {}, `There is no queue ${names.queue}. The first push makes it.`)
      : null,
    h(
      "div.tiles",
      {},
      STATES.map((state) =>
        tile(
          state === "dead" ? "Dead letters" : state[0].toUpperCase() + state.slice(1),
          count(counts[state]),
          {
            title: exact(counts[state]),
            tone: state === "dead" && counts.dead ? "alarm" : null,
            href:
              state === "dead"
                ? link(["letters", names.queue])
                : changed({ state, after: null, past: null }),
          },
        ),
      ),
      tile("In", rate(row ? row.in_per_second : null)),
      tile("Out", rate(row ? row.out_per_second : null)),
      tile("Errors", rate(row ? row.failed_per_second : null), {
        tone: row && row.failed_per_second ? "alarm" : null,
      }),
      tile("Oldest waits", seconds(stats.oldest_ready_seconds)),
      tile("On disk", bytes(stats.size_bytes), {
        note: stats.pinned_bytes ? `${bytes(stats.pinned_bytes)} kept for old messages` : null,
        href: link(["segments"], { kind: "queue", name: names.queue }),
      }),
    ),
    stats.damaged
      ? h(
          "p.failure",
          {},
          `${plural(stats.damaged, "message")} could not be read and were passed over.`,
        )
      : null,
    h("div.bar-line", {}, rangeTabs(query)),
    h(
      "div.charts.three",
      {},
      flowChart(history, row, at_us),
      depthChart(history, row, at_us),
      ageChart(history, row, at_us),
    ),
    h("div.columns", {}, priorities(stats), keys(breakdown), causes(names.queue, breakdown)),
    leases(names.queue, stats),
    messageList(names.queue, query, counts, messages),
    h("div.columns", {}, rulesOf(names.queue, rules), totals(stats)),
  );
}

function buttons(name, stats) {
  const path = ["queues", name];
  const purge = {
    title: `Purge ${name}?`,
    button: "Drop them for good",
    tone: "danger",
    types: name,
    says: `${exact(stats.counts.ready + stats.counts.delayed)} ready and delayed messages are dropped. Leased ones and dead letters stay. This cannot be undone.`,
    run: async () =>
      `${plural((await post([...path, "purge"])).count, "message")} of ${name} dropped`,
  };
  const removal = {
    title: `Delete ${name}?`,
    button: "Delete it",
    tone: "danger",
    types: name,
    says: "The queue is deleted with all it holds: messages, leases, dead letters, history. This cannot be undone.",
    run: async () => {
      await remove(path);
      go("#/");
      return `${name} is deleted`;
    },
  };
  return [
    pauseButton({ name, paused: stats.paused }, { tone: stats.paused ? "primary" : null }),
    actButton("Purge…", purge, { tone: "danger" }),
    actButton("Delete…", removal, { tone: "danger" }),
  ];
}

function priorities({ ready_by_priority }) {
  const rows = Object.entries(ready_by_priority).map(([priority, ready]) => ({
    text: `priority ${priority}`,
    count: ready,
  }));
  return section(
    "Ready by priority",
    { note: "lower numbers first" },
    shares("Ready by priority", rows, { none: "Nothing is ready." }),
  );
}

function keys({ keys: found, tasks, sampled, of, is_exact }) {
  const how = is_exact
    ? `of ${exact(of)} waiting`
    : `estimated from ${exact(sampled)} of ${count(of)} waiting`;
  return section(
    "Top keys",
    { note: found.length || tasks.length ? how : null },
    shares(
      "Top keys",
      found.map(({ key, count: n, share }) => ({ text: key, count: n, share })),
      {
        none: is_exact
          ? "No message that waits has a key or a group."
          : sampled
            ? `Of ${exact(sampled)} messages looked at none has a key or a group.`
            : "Not known yet.",
      },
    ),
    tasks.length
      ? [
          h("h3", {}, "Tasks"),
          shares(
            "Tasks that wait",
            tasks.map(({ task, count: n, share }) => ({
              text: task,
              count: n,
              share,
              href: link(["tasks"], { task, state: "pending" }),
            })),
          ),
        ]
      : null,
  );
}

function causes(name, { causes: found, returned }) {
  return section(
    "Causes",
    {},
    shares(
      "Dead letters by cause",
      found.map(({ cause, count: n }) => ({
        text: cause || "unknown",
        count: n,
        href: link(["letters", name], { cause }),
      })),
      { none: "There are no dead letters.", tone: "dead" },
    ),
    returned.length
      ? [
          h("h3", {}, "Why messages came back"),
          shares(
            "Why messages came back",
            returned.map(({ reason, count: n }) => ({
              text: reason || "no reason given",
              count: n,
            })),
            { tone: "warn" },
          ),
        ]
      : null,
  );
}

function leases(name, { leases: found, counts }) {
  if (!found.length) return null;
  return section(
    "Leases that end first",
    { note: counts.leased > found.length ? `${found.length} of ${exact(counts.leased)}` : null },
    table({
      label: "Leases",
      rows: found,
      key: (row) => row.receipt,
      columns: [
        {
          title: "Message",
          cell: (row) =>
            h("a", { href: link(["queues", name, "messages", row.message_id]) }, row.message_id),
        },
        { title: "Owner", isWide: true, cell: (row) => row.owner || NONE },
        { title: "Attempt", isNumber: true, cell: (row) => row.attempt },
        {
          title: "Ends in",
          isNumber: true,
          cell: (row) => (row.seconds_left < 0 ? badge("over", "warn") : seconds(row.seconds_left)),
        },
      ],
    }),
  );
}

export function preview(message) {
  if (message.body === undefined || message.body === null)
    return message.body_base64 ? h("span.dim", {}, "binary") : h("span.dim", {}, "empty");
  const text = message.body.slice(0, PREVIEW_CHARACTERS + 1);
  return h(
    "code.preview",
    {},
    text.length > PREVIEW_CHARACTERS ? `${text.slice(0, PREVIEW_CHARACTERS)}…` : text,
  );
}

function messageList(name, query, counts, { messages: found, next }) {
  const messages = found.slice(0, PAGE);
  const state = query.get("state");
  const choices = [
    ["all", null, counts.ready + counts.delayed + counts.leased + counts.dead],
    ...STATES.map((each) => [each, each, counts[each]]),
  ];
  const now = now_us();
  const last = messages.length ? messages[messages.length - 1].message.id : null;
  return section(
    "Messages",
    {},
    tabs(
      "State of messages",
      choices.map(([text, value, n]) => ({
        text,
        href: changed({ state: value, after: null, past: null }),
        isIt: (state || null) === value,
        note: count(n),
      })),
    ),
    messages.length
      ? table({
          label: "Messages",
          rows: messages,
          key: (row) => row.message.id,
          columns: [
            {
              title: "Message",
              cell: (row) =>
                h(
                  "a",
                  { href: link(["queues", name, "messages", row.message.id]) },
                  row.message.id,
                ),
            },
            {
              title: "State",
              cell: (row) => [
                stateBadge(row.state),
                row.state === "delayed" && row.due_us ? [" ", ago(row.due_us, now)] : null,
                row.owner ? h("span.dim", {}, ` by ${row.owner}`) : null,
              ],
            },
            { title: "Priority", isNumber: true, cell: (row) => row.message.priority ?? 0 },
            { title: "Tries", isNumber: true, cell: (row) => row.tries },
            { title: "Pushed", cell: (row) => ago(row.message.pushed_us, now) },
            {
              title: "Key",
              isWide: true,
              cell: (row) => row.message.group || row.message.key || NONE,
            },
            { title: "Reason", isWide: true, cell: (row) => row.reason || NONE },
            { title: "Body", isWide: true, cell: (row) => preview(row.message) },
          ],
        })
      : empty(
          query.get("after")
            ? "There are no more."
            : state
              ? `No message is ${state}.`
              : "The queue holds nothing.",
        ),
    pager(query, next === null ? null : last, { shown: messages.length }),
  );
}

function rulesOf(name, rules) {
  return section(
    "Limits",
    {
      aside: actButton("Change…", change({ name, rules }), {
        label: `Change the limits of ${name}`,
      }),
    },
    facts([
      ["Lease", seconds(rules.lease_ttl)],
      ["Leases at once", rules.max_leases ?? "no limit"],
      ["Tries", rules.max_deliveries ?? "no limit"],
      [
        "Backoff",
        `${seconds(rules.backoff_base)} to ${seconds(rules.backoff_cap)}, jitter ${percent(rules.backoff_jitter)}`,
      ],
      [
        "Capacity",
        rules.capacity === null ? "no limit" : `${exact(rules.capacity)}, then ${rules.on_full}`,
      ],
      [
        "Rate",
        rules.rate === null ? "no limit" : `${rate(rules.rate)}, ${rules.rate_burst} at once`,
      ],
      ["Of one group at once", rules.group_concurrency],
      [
        "Settled are kept",
        rules.keep_seconds === null && rules.keep_bytes === null
          ? "no"
          : [
              rules.keep_seconds !== null ? seconds(rules.keep_seconds) : null,
              rules.keep_bytes !== null ? bytes(rules.keep_bytes) : null,
            ]
              .filter(Boolean)
              .join(", "),
      ],
    ]),
  );
}

function totals({ totals: found }) {
  return section(
    "Since it was made",
    {},
    facts(
      Object.entries(found)
        .sort()
        .map(([name, n]) => [name, exact(n)]),
    ),
  );
}
