// What was done by those who may do everything, newest first.

import { get } from "./api.js";
import { h } from "./dom.js";
import { at, when } from "./format.js";
import { badge, page, pager, section, table } from "./parts.js";

const PAGE = 50;
const REFUSED = 400;

export const title = () => "Audit log";
export const every_ms = 5_000;
export const load = ({ query }) => get(["audit"], { before: query.get("before"), limit: PAGE });

export function view({ query }, { entries, before }) {
  return page(
    "Audit log",
    {},
    section(
      "Acts",
      { note: "newest first" },
      table({
        label: "Acts",
        rows: [...entries].reverse(),
        key: (row) => row.offset,
        none: "Nothing was done yet that takes the role admin.",
        columns: [
          {
            title: "When",
            cell: (row) => h("span", { title: when(row.time_us) }, at(row.time_us)),
          },
          {
            title: "Who",
            cell: (row) =>
              h("span", { title: row.token_id ? `token ${row.token_id}` : null }, row.token),
          },
          { title: "From", cell: (row) => row.remote || "–" },
          {
            title: "What",
            isWide: true,
            cell: (row) => h("code", {}, `${row.method} ${row.path}`),
          },
          {
            title: "Outcome",
            cell: (row) => badge(String(row.status), row.status < REFUSED ? "good" : "dead"),
          },
          { title: "Did", isWide: true, cell: (row) => (row.did ? h("code", {}, row.did) : "–") },
        ],
      }),
      pager(query, before, { name: "before", shown: entries.length }),
    ),
  );
}
