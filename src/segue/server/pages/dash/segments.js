// Which segments there are, what state each is in, and what keeps it.

import { get } from "./api.js";
import { h } from "./dom.js";
import { at, bytes, exact, plural, when } from "./format.js";
import { changed, go } from "./router.js";
import { badge, empty, filters, page, section, table, tabs } from "./parts.js";

const KINDS = [
  ["queue", "queues"],
  ["topic", "topics"],
  ["ring", "rings"],
];
const ROWS_MAX = 200;
const TONES = { active: "ready", sealed: "good", quarantined: "dead", unreadable: "dead" };

export const title = ({ query }) =>
  query.get("name") ? `Segments of ${query.get("name")}` : "Segments";
export const every_ms = 5_000;

export async function load({ query }) {
  const kind = kindOf(query);
  const names = await namesOf(kind);
  const name = query.get("name") || names[0] || null;
  const map = name === null ? null : await get([plurals(kind), name, "segments"]);
  return { kind, names, name, map };
}

function kindOf(query) {
  return KINDS.some(([kind]) => kind === query.get("kind")) ? query.get("kind") : "queue";
}

function plurals(kind) {
  return KINDS.find(([each]) => each === kind)[1];
}

async function namesOf(kind) {
  const found = await get([plurals(kind)]);
  return found.queues || found.names;
}

export function view(_place, { kind, names, name, map }) {
  const choices = names.includes(name) || name === null ? names : [name, ...names];
  return page(
    "Segments",
    {},
    tabs(
      "Kind",
      KINDS.map(([each, text]) => ({
        text,
        href: changed({ kind: each, name: null }),
        isIt: each === kind,
      })),
    ),
    choices.length
      ? filters(
          [
            {
              name: "name",
              label: `Name of the ${kind}`,
              choices: choices.map((each) => [each, each]),
            },
          ],
          new URLSearchParams({ name }),
          (said) => go(changed({ kind, name: said.name })),
          "Show",
        )
      : empty(`There are no ${plurals(kind)}.`),
    h(
      "p.legend",
      {},
      badge("active", "ready"),
      " takes records ",
      badge("sealed", "good"),
      " full ",
      badge("pinned", "warn"),
      " kept for somebody ",
      badge("quarantined", "dead"),
      " damaged, set aside",
    ),
    map === null
      ? null
      : map.is_known
        ? map.logs.length
          ? [
              map.logs.map((log) => logMap(log)),
              map.more_logs
                ? empty(`It has ${plural(map.more_logs, "log")} more, which are not shown.`)
                : null,
            ]
          : empty("It has no segments.")
        : empty("Only a directory has segments as files; this store is on a server."),
  );
}

function logMap(log) {
  const states = log.segments.reduce(
    (sums, each) => ({ ...sums, [stateOf(each)]: (sums[stateOf(each)] || 0) + 1 }),
    {},
  );
  const listed = listedOf(log.segments);
  const note = `${plural(log.segments.length + log.more, "segment")}, ${bytes(log.size_bytes)}, offsets ${exact(log.first_offset)} to ${exact(log.next_offset)}${log.more ? `; the newest ${exact(log.segments.length)} are shown` : ""}`;
  return section(
    log.name,
    { note },
    h(
      "p.dim",
      {},
      Object.entries(states)
        .map(([state, n]) => `${n} ${state}`)
        .join(", "),
    ),
    h(
      "div.map",
      {
        role: "img",
        "aria-label": `${log.name}: ${Object.entries(states)
          .map(([state, n]) => `${n} ${state}`)
          .join(", ")}`,
      },
      log.segments.map((each) =>
        h(`span.${each.is_pinned ? "warn" : TONES[each.state] || "plain"}`, {
          key: `${each.state}-${each.id}`,
          title: words(each),
        }),
      ),
    ),
    h(
      "details",
      {},
      h("summary", {}, "As a table"),
      listed.length < log.segments.length
        ? h(
            "p.dim",
            {},
            `The newest, and what is kept for somebody: ${listed.length} of ${exact(log.segments.length)}.`,
          )
        : null,
      table({
        label: `Segments of ${log.name}`,
        rows: listed,
        key: (row) => `${row.state}-${row.id}`,
        columns: [
          { title: "Segment", isNumber: true, cell: (row) => row.id },
          {
            title: "State",
            cell: (row) => [
              badge(row.state, TONES[row.state]),
              row.is_pinned ? [" ", badge("pinned", "warn")] : null,
            ],
          },
          { title: "First offset", isNumber: true, cell: (row) => exact(row.first_offset) },
          { title: "Records", isNumber: true, cell: (row) => exact(row.count) },
          { title: "Size", isNumber: true, cell: (row) => bytes(row.size_bytes) },
          { title: "From", cell: (row) => at(row.created_us) },
          { title: "To", cell: (row) => at(row.last_us) },
          { title: "Kept for", isWide: true, cell: (row) => row.pinned_by || "–" },
        ],
      }),
    ),
  );
}

// The newest first; of many only so many, those that are not just full among them.
function listedOf(segments) {
  const spare = Math.max(0, segments.length - ROWS_MAX);
  const older = segments.slice(0, spare).filter((each) => stateOf(each) !== "sealed");
  return [...older.slice(0, ROWS_MAX), ...segments.slice(spare)].reverse();
}

function stateOf(segment) {
  return segment.is_pinned ? "pinned" : segment.state;
}

function words(segment) {
  return `segment ${segment.id}: ${segment.state}${segment.is_pinned ? `, kept for ${segment.pinned_by}` : ""}, ${plural(segment.count, "record")}, ${bytes(segment.size_bytes)}, made ${when(segment.created_us)}`;
}
