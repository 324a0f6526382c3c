// Dead letters: why there are any, and bringing them back or dropping them.

import { get, post } from "./api.js";
import { actButton } from "./acts.js";
import { h } from "./dom.js";
import { NONE, ago, count, exact, leftOut, now_us, plural } from "./format.js";
import { changed, link } from "./router.js";
import { badge, empty, page, pager, section, table } from "./parts.js";
import { PREVIEW_BYTES, preview } from "./queue.js";

const PAGE = 25;
const OTHER = "(other)"; // What is not told apart: there is no filter for it.

export const title = ({ names }) =>
  names.queue ? `Dead letters of ${names.queue}` : "Dead letters";
export const isLive = true;

export async function load({ names, query, overview }) {
  if (!names.queue) return { overview: overview || (await get(["overview"])) };
  const path = ["queues", names.queue, "dead-letters"];
  const [groups, letters] = await Promise.all([
    get([...path, "groups"]),
    get(path, {
      limit: PAGE,
      after: query.get("after"),
      cause: query.get("cause"),
      pattern: query.get("pattern"),
      body_bytes: PREVIEW_BYTES,
    }),
  ]);
  return { groups, letters };
}

export function view(place, data) {
  return place.names.queue ? ofQueue(place, data) : ofAll(place.overview || data.overview);
}

function ofAll(overview) {
  const rows = overview.queues
    .filter((row) => row.dead)
    .sort((one, other) => other.dead - one.dead);
  return page(
    "Dead letters",
    {},
    section(
      "By queue",
      { note: rows.length ? `${exact(overview.totals.dead)} in all` : null },
      table({
        label: "Dead letters by queue",
        rows,
        key: (row) => row.name,
        none: overview.more_queues
          ? `There are none in the ${plural(overview.queues.length, "queue")} listed on the overview; ${leftOut(overview.more_queues)}.`
          : "There are no dead letters.",
        columns: [
          {
            title: "Queue",
            cell: (row) => h("a", { href: link(["letters", row.name]) }, row.name),
          },
          { title: "Dead letters", isNumber: true, cell: (row) => exact(row.dead) },
          { title: "Ready", isNumber: true, cell: (row) => count(row.ready) },
        ],
      }),
    ),
  );
}

function ofQueue({ names, query }, { groups, letters }) {
  const [cause, pattern] = [query.get("cause"), query.get("pattern")];
  const isFiltered = cause !== null || pattern !== null;
  return page(
    `Dead letters of ${names.queue}`,
    {
      crumbs: [
        h("a", { href: link(["letters"]) }, "Dead letters"),
        h("a", { href: link(["queues", names.queue]) }, names.queue),
      ],
      aside: groups.total ? buttons(names.queue, { cause, pattern }, groups) : null,
    },
    section(
      "By cause",
      {
        note: noteOf(groups),
        aside: isFiltered
          ? h(
              "a",
              { href: changed({ cause: null, pattern: null, after: null, past: null }) },
              "Show all",
            )
          : null,
      },
      groupTable(names.queue, query, groups),
    ),
    section(
      isFiltered ? "Letters of this cause" : "Letters",
      { note: "oldest first" },
      letterTable(names.queue, query, letters),
    ),
  );
}

function noteOf({ counted, total, is_complete }) {
  return is_complete
    ? plural(total, "letter")
    : `${exact(counted)} of ${exact(total)} counted so far`;
}

function groupTable(queue, query, { groups }) {
  const now = now_us();
  return table({
    label: "Dead letters by cause",
    rows: groups,
    key: (row) => `${row.cause} ${row.pattern}`,
    none: "There are no dead letters.",
    columns: [
      { title: "Cause", cell: (row) => badge(row.cause || "unknown", "dead") },
      {
        title: "Reason",
        isWide: true,
        cell: (row) =>
          row.pattern === OTHER
            ? "other reasons"
            : h(
                "a",
                {
                  href: changed({
                    cause: row.cause,
                    pattern: row.pattern,
                    after: null,
                    past: null,
                  }),
                  title: row.example ? row.example.reason : null,
                  "aria-current":
                    query.get("cause") === row.cause && query.get("pattern") === row.pattern
                      ? "true"
                      : null,
                },
                row.pattern || "no reason given",
              ),
      },
      { title: "Letters", isNumber: true, cell: (row) => exact(row.count) },
      { title: "First", cell: (row) => ago(row.first_us, now) },
      { title: "Last", cell: (row) => ago(row.last_us, now) },
      {
        title: "Example",
        cell: (row) =>
          row.example && row.example.id
            ? h(
                "a",
                {
                  href: link(["queues", queue, "messages", row.example.id]),
                },
                row.example.id,
              )
            : NONE,
      },
    ],
  });
}

function letterTable(queue, query, { letters, next }) {
  const now = now_us();
  return [
    letters.length
      ? table({
          label: "Dead letters",
          rows: letters,
          key: (row) => row.number,
          columns: [
            {
              title: "Message",
              cell: (row) =>
                h(
                  "a",
                  {
                    href: link(["queues", queue, "messages", row.message.id]),
                  },
                  row.message.id,
                ),
            },
            { title: "Died", cell: (row) => ago(row.died_us, now) },
            { title: "Cause", cell: (row) => row.cause || NONE },
            { title: "Tries", isNumber: true, cell: (row) => row.tries },
            {
              title: "Reason",
              isWide: true,
              cell: (row) => h("span.reason", {}, row.reason || NONE),
            },
            { title: "Body", isWide: true, cell: (row) => preview(row.message) },
            {
              title: "",
              name: "acts",
              cell: (row) =>
                h(
                  "div.buttons",
                  {},
                  letterButtons(queue, { id: row.message.id, number: row.number }),
                ),
            },
          ],
        })
      : empty(
          next !== null && next !== undefined
            ? "None here fits: there are more to look through."
            : query.get("after")
              ? "There are no more."
              : query.get("cause") === null
                ? "There are none."
                : "None fits.",
        ),
    pager(query, next, { shown: letters.length }),
  ];
}

// What can be done with one letter, {id, number}.
export function letterButtons(queue, letter) {
  const path = ["queues", queue, "dead-letters"];
  const named = { letters: [letter] };
  const told = (n, words) => `${letter.id} ${n ? words : "was no dead letter any more"}`;
  return [
    actButton(
      "Redrive",
      {
        title: `Redrive ${letter.id}?`,
        button: "Bring it back",
        says: "It goes to the front of its priority, with all its deliveries anew.",
        run: async () =>
          told((await post([...path, "redrive"], named)).redriven, `is back in ${queue}`),
      },
      { tone: "primary", label: `Redrive ${letter.id}` },
    ),
    actButton(
      "Discard",
      {
        title: `Discard ${letter.id}?`,
        button: "Drop it for good",
        tone: "danger",
        types: letter.id,
        says: "It is dropped for good. This cannot be undone.",
        run: async () => told((await post([...path, "discard"], named)).count, "is dropped"),
      },
      { tone: "danger", label: `Discard ${letter.id}` },
    ),
  ];
}

function buttons(queue, chosen, groups) {
  const path = ["queues", queue, "dead-letters"];
  const which =
    chosen.pattern !== null
      ? `those of “${chosen.pattern || "no reason"}”`
      : chosen.cause !== null
        ? `those of cause ${chosen.cause}`
        : "all dead letters";
  const body = ({ reason, limit, rate }, extra) => ({
    cause: chosen.cause,
    pattern: chosen.pattern,
    reason: reason || null,
    limit,
    ...(rate === undefined ? {} : { rate }),
    ...extra,
  });
  const fields = [
    { name: "reason", label: "Only where the reason contains", hint: "leave empty for any" },
    {
      name: "limit",
      label: "At most",
      type: "number",
      min: 1,
      step: 1,
      hint: "letters; leave empty for all",
    },
  ];
  const redrive = {
    title: `Redrive dead letters of ${queue}`,
    button: "Bring them back",
    says: [
      `This brings ${which} back to the front of their priority, with all their deliveries anew.`,
    ],
    fields: [
      ...fields,
      {
        name: "rate",
        label: "No faster than",
        type: "number",
        min: 0.1,
        step: "any",
        hint: "letters a second; leave empty for as fast as it goes. It goes on while this stays open.",
      },
    ],
    preview: async (said) =>
      `${plural((await post([...path, "redrive"], body(said, { dry_run: true }))).matched, "letter")} would be brought back.`,
    isStoppable: true,
    run: async (said, signal) => {
      const done = await post([...path, "redrive"], body(said, { dry_run: false }), signal);
      return `${exact(done.redriven)} of ${plural(done.matched, "dead letter")} of ${queue} brought back${done.stopped ? "; it was stopped, there may be more" : ""}`;
    },
  };
  const discard = {
    title: `Discard dead letters of ${queue}`,
    button: "Drop them for good",
    tone: "danger",
    types: queue,
    says: [`This drops ${which} for good. It cannot be undone.`],
    fields,
    preview: async (said) =>
      `${plural((await post([...path, "redrive"], body(said, { dry_run: true }))).matched, "letter")} would be dropped.`,
    run: async (said) =>
      `${plural((await post([...path, "discard"], body(said))).count, "dead letter")} of ${queue} dropped`,
  };
  const n = chosenCount(chosen, groups);
  return [
    actButton(`Redrive ${n}…`, redrive, { tone: "primary" }),
    actButton(`Discard ${n}…`, discard, { tone: "danger" }),
  ];
}

// How many letters an act is about: all there are, or as far as they are counted by cause.
function chosenCount({ cause, pattern }, { groups, total, is_complete }) {
  if (cause === null && pattern === null) return count(total);
  const n = groups
    .filter(
      (each) =>
        (cause === null || each.cause === cause) && (pattern === null || each.pattern === pattern),
    )
    .reduce((sum, each) => sum + each.count, 0);
  return is_complete ? count(n) : `${count(n)} or more`;
}
