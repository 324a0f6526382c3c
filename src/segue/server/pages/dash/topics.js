// Topics, and who is furthest behind in each.

import { get } from "./api.js";
import { h } from "./dom.js";
import { NONE, ago, bytes, count, exact, now_us, seconds } from "./format.js";
import { badge, page, pager, section, table } from "./parts.js";
import { link } from "./router.js";

const PAGE = 50;

export const title = () => "Topics";
export const load = ({ query }) =>
  get(["overview", "topics"], { after: query.get("after"), limit: PAGE });
export const every_ms = 5_000;

export function view({ query }, { topics, next }) {
  const now = now_us();
  return page(
    "Topics",
    {},
    section(
      "Topics",
      { note: "the lag is that of the reader or group furthest behind" },
      table({
        label: "Topics",
        rows: topics,
        key: (row) => row.name,
        none: [
          "There are no topics yet. Append a record: ",
          h("code", {}, "echo hello | segue topic append data events"),
        ],
        columns: [
          {
            title: "Topic",
            cell: (row) => [
              h("a", { href: link(["topics", row.name]) }, row.name),
              row.problem
                ? [" ", badge("unreadable", "dead"), " ", h("span.reason", {}, row.problem)]
                : null,
            ],
          },
          { title: "Partitions", isNumber: true, cell: (row) => row.partitions },
          {
            title: "Records",
            isNumber: true,
            cell: (row) => h("span", { title: exact(row.records) }, count(row.records)),
          },
          { title: "Size", isNumber: true, cell: (row) => bytes(row.size_bytes) },
          { title: "Oldest", cell: (row) => ago(row.oldest_us, now) },
          { title: "Readers", isNumber: true, cell: (row) => row.readers },
          { title: "Groups", isNumber: true, cell: (row) => row.groups },
          {
            title: "Lag",
            isNumber: true,
            cell: (row) => (row.lag_of ? `${count(row.lag_records)} records` : NONE),
          },
          {
            title: "Lag, size",
            isNumber: true,
            cell: (row) => (row.lag_of ? bytes(row.lag_bytes) : NONE),
          },
          {
            title: "Lag, time",
            isNumber: true,
            cell: (row) => (row.lag_of ? seconds(row.lag_seconds) : NONE),
          },
          {
            title: "Of",
            cell: (row) => (row.lag_of ? `${row.lag_kind || ""} ${row.lag_of}`.trim() : NONE),
          },
        ],
      }),
      pager(query, next, { shown: topics.length }),
    ),
  );
}
