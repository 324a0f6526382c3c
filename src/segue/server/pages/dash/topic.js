// One topic: partitions, who reads it and how far behind, what keeps it from being deleted, records.

import { get, getLines, post, remove } from "./api.js";
import { actButton } from "./acts.js";
import { h } from "./dom.js";
import { NONE, ago, at, bytes, count, exact, now_us, plural, seconds } from "./format.js";
import { badge, empty, facts, page, section, shares, table, tabs } from "./parts.js";
import { payload } from "./payload.js";
import { changed, link } from "./router.js";

const RECORDS = 20;

export const title = ({ names }) => names.topic;
export const every_ms = 5_000;

export async function load({ names, query }) {
  const path = ["topics", names.topic];
  const [retention, told] = await Promise.all([
    get([...path, "retention"]),
    get([...path, "consumers"]),
  ]);
  const place = placeOf(query, retention.partitions);
  const records = place
    ? await getLines([...path, "records"], {
        start: `${place.partition}:${place.start}`,
        partitions: place.partition,
        max_records: RECORDS,
      })
    : [];
  return { retention, consumers: told.consumers, place, records };
}

// Which records to show: by default the last ones of the first partition that has any.
function placeOf(query, partitions) {
  const said = query.get("partition");
  const partition = partitions.find((each) =>
    said === null ? each.next_offset > each.first_offset : each.partition === Number(said),
  );
  if (!partition || partition.next_offset <= partition.first_offset) return null;
  const { first_offset, next_offset } = partition;
  const last = Math.max(first_offset, next_offset - RECORDS);
  const from =
    query.get("offset") === null
      ? last
      : Math.min(Math.max(first_offset, Number(query.get("offset")) || 0), next_offset - 1);
  return {
    partition: partition.partition,
    start: from,
    first: first_offset,
    end: next_offset,
    last,
  };
}

export function view({ names, query }, { retention, consumers, place, records }) {
  return page(
    names.topic,
    {
      crumbs: [h("a", { href: link(["topics"]) }, "Topics"), names.topic],
      aside: [
        clean(names.topic, retention),
        compact(names.topic),
        h(
          "a.button",
          { href: link(["segments"], { kind: "topic", name: names.topic }) },
          "Segments",
        ),
      ],
    },
    section("Readers and groups", {}, consumerTable(names.topic, consumers)),
    section(
      "Retention",
      { note: "what keeps old records" },
      h("p", {}, "Waits for: ", h("strong", {}, retention.waits_for || "nothing"), "."),
      partitionTable(retention),
      rulesOf(retention.rules),
    ),
    section("Records", {}, recordList(names.topic, query, retention, place, records)),
  );
}

function consumerTable(topic, consumers) {
  return table({
    label: "Readers and groups",
    rows: consumers,
    key: (row) => `${row.kind} ${row.name}`,
    none: "Nobody reads it by name.",
    columns: [
      { title: "Name", cell: (row) => [h("strong", {}, row.name), " ", badge(row.kind, "plain")] },
      {
        title: "Lag",
        isNumber: true,
        cell: (row) => h("span", { title: exact(row.records) }, `${count(row.records)} records`),
      },
      { title: "Size", isNumber: true, cell: (row) => bytes(row.size_bytes) },
      { title: "Time", isNumber: true, cell: (row) => seconds(row.seconds) },
      {
        title: "Gone unread",
        isNumber: true,
        cell: (row) => (row.trimmed ? badge(exact(row.trimmed), "dead") : "0"),
      },
      {
        title: "Members",
        isWide: true,
        cell: (row) => (row.kind === "group" ? members(row) : NONE),
      },
      { title: "By partition", isWide: true, cell: (row) => byPartition(row) },
      {
        title: "",
        name: "acts",
        cell: (row) =>
          actButton("Forget", forget(topic, row), {
            tone: "danger",
            label: `Forget ${row.kind} ${row.name}`,
          }),
      },
    ],
  });
}

function members({ members: found, generation }) {
  if (!found.length) return "nobody";
  return h(
    "ul.plain",
    {},
    found.map((each) =>
      h(
        "li",
        { key: each.member },
        each.owner || each.member,
        h(
          "span.dim",
          {},
          ` has ${each.partitions.length ? each.partitions.join(", ") : "none"}, ${seconds(each.seconds_left)} left, generation ${generation}`,
        ),
      ),
    ),
  );
}

function byPartition({ lag }) {
  if (lag.length < 2) return NONE;
  return h(
    "details",
    {},
    h("summary", {}, plural(lag.length, "partition")),
    shares(
      "Lag by partition",
      lag.map((each) => ({
        text: `partition ${each.partition}`,
        count: each.next_offset - each.committed,
      })),
    ),
  );
}

function forget(topic, row) {
  const isReader = row.kind === "reader";
  return {
    title: `Forget ${row.kind} ${row.name}?`,
    button: "Forget it",
    tone: "danger",
    types: row.name,
    says: `Its place is lost: it holds nothing back any more, and begins anew if it comes back.${isReader ? "" : " A group with members cannot be forgotten."}`,
    run: async () =>
      (await remove(["topics", topic, isReader ? "readers" : "groups", row.name])).removed
        ? `${row.kind} ${row.name} is forgotten`
        : `${row.name} was not there any more`,
  };
}

function clean(topic, { partitions }) {
  const n = partitions.reduce((sum, each) => sum + each.deletable_segments, 0);
  const told = ({ deleted, freed_bytes }) =>
    `${plural(
      Object.values(deleted).reduce((sum, each) => sum + each.length, 0),
      "segment",
    )} (${bytes(freed_bytes)})`;
  return actButton("Clean…", {
    title: `Clean ${topic}?`,
    button: "Delete them",
    tone: "danger",
    types: topic,
    says: `Segments that may go by the rules are deleted: ${plural(n, "segment")} now.`,
    preview: async () =>
      `${told(await post(["topics", topic, "clean"], { dry_run: true }))} would go.`,
    run: async () => `${told(await post(["topics", topic, "clean"]))} of ${topic} deleted`,
  });
}

function compact(topic) {
  return actButton("Compact…", {
    title: `Compact ${topic}?`,
    button: "Compact it",
    tone: "danger",
    types: topic,
    says: "Every record that a later one with the same key has made needless is removed from sealed segments. Offsets stay as they are.",
    run: async () => {
      const done = await post(["topics", topic, "compact"]);
      return `${plural(done.removed_records, "record")} (${bytes(done.freed_bytes)}) of ${topic} removed`;
    },
  });
}

function partitionTable({ partitions }) {
  const now = now_us();
  return table({
    label: "Partitions",
    rows: partitions,
    key: (row) => row.partition,
    columns: [
      {
        title: "Partition",
        cell: (row) =>
          h("a", { href: changed({ partition: row.partition, offset: null }) }, row.partition),
      },
      {
        title: "Offsets",
        isNumber: true,
        cell: (row) => `${exact(row.first_offset)} – ${exact(row.next_offset)}`,
      },
      { title: "Size", isNumber: true, cell: (row) => bytes(row.size_bytes) },
      { title: "Oldest", cell: (row) => ago(row.oldest_us, now) },
      { title: "Held by", cell: (row) => row.held_by || NONE },
      {
        title: "May go",
        cell: (row) =>
          row.deletable_segments
            ? `${plural(row.deletable_segments, "segment")}, ${bytes(row.deletable_bytes)}`
            : "nothing",
      },
    ],
  });
}

function rulesOf(rules) {
  return facts([
    ["Keep for", rules.keep_seconds === null ? "no limit" : seconds(rules.keep_seconds)],
    ["Keep at most", rules.keep_bytes === null ? "no limit" : bytes(rules.keep_bytes)],
    ["Lag at most", rules.lag_max === null ? "no limit" : plural(rules.lag_max, "record")],
  ]);
}

function recordList(topic, query, { partitions }, place, records) {
  const chosen = place ? place.partition : Number(query.get("partition"));
  const choices =
    partitions.length > 1
      ? tabs(
          "Partition",
          partitions.slice(0, 64).map((each) => ({
            text: String(each.partition),
            href: changed({ partition: each.partition, offset: null }),
            isIt: each.partition === chosen,
          })),
        )
      : null;
  if (!place) return [choices, empty("There are no records here.")];
  const step = (start) =>
    changed({
      partition: place.partition,
      offset: Math.max(place.first, Math.min(start, place.last)),
    });
  return [
    choices,
    h(
      "nav.pager",
      { "aria-label": "Pages of records" },
      place.start > place.first
        ? h("a.button", { href: step(place.start - RECORDS) }, "← Older")
        : h("span.button.off", {}, "← Older"),
      h(
        "span.dim",
        {},
        `partition ${place.partition}, offsets ${exact(place.start)} to ${exact(Math.min(place.end, place.start + RECORDS) - 1)} of ${exact(place.first)} to ${exact(place.end - 1)}`,
      ),
      place.start < place.last
        ? h("a.button", { href: step(place.start + RECORDS) }, "Newer →")
        : h("span.button.off", {}, "Newer →"),
    ),
    h(
      "div.records",
      {},
      records.map((record) =>
        h(
          "details",
          { key: `${record.partition}:${record.offset}` },
          h(
            "summary",
            {},
            h("strong", {}, exact(record.offset)),
            " ",
            h("span.dim", {}, at(record.timestamp_us)),
            " ",
            keyOf(record),
            " ",
            h("code.preview", {}, summaryOf(record)),
          ),
          record.headers ? facts(Object.entries(record.headers)) : null,
          valueOf(topic, record),
        ),
      ),
    ),
  ];
}

function keyOf(record) {
  return record.key === undefined || record.key === null ? null : badge(record.key, "plain");
}

function summaryOf(record) {
  if (record.value === undefined || record.value === null)
    return record.value_base64 ? "binary" : "tombstone";
  return record.value.length > 100 ? `${record.value.slice(0, 100)}…` : record.value;
}

function valueOf(topic, record) {
  if ((record.value === undefined || record.value === null) && !record.value_base64)
    return empty("A tombstone: it has no value.");
  return payload({
    text: record.value,
    base64: record.value_base64,
    name: `${topic}-${record.partition}-${record.offset}`,
  });
}
