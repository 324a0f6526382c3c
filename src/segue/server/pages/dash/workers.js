// Workers: who is there, when it was last heard of, what it is at, and what its autoscaler did.

import { get } from "./api.js";
import { h } from "./dom.js";
import { NONE, ago, at, exact, now_us, plural, rate, seconds } from "./format.js";
import { addressOf } from "./tasks.js";
import { badge, empty, facts, page, section, table } from "./parts.js";
import { link } from "./router.js";

const LATE_SECONDS = 6;
const GONE_SECONDS = 10; // Whoever was silent for longer is not there any more.

export const title = () => "Workers";
export const load = () => get(["workers"]);
export const every_ms = 2_000;

export function view(_place, { workers, silent }) {
  return page(
    "Workers",
    {},
    workers.length || silent.length
      ? [workers.map(worker), silent.map(worker)]
      : section(
          "Workers",
          {},
          empty(
            "No worker is running, and none fell silent of late. Start one: ",
            h("code", {}, "segue worker jobs:app"),
          ),
        ),
  );
}

function worker(row) {
  const now = now_us();
  const silent_seconds = Math.max(0, (now - row.at_us) / 1e6);
  const heard =
    silent_seconds > LATE_SECONDS
      ? badge(
          `silent for ${seconds(silent_seconds)}`,
          silent_seconds > GONE_SECONDS ? "dead" : "warn",
        )
      : badge(`heard ${seconds(Math.floor(silent_seconds))} ago`, "good");
  return section(
    [row.worker, " ", badge(row.state, row.state === "running" ? "good" : "warn"), " ", heard],
    { note: `${row.host}, pid ${row.pid}, ${row.kind}`, key: row.worker },
    silent_seconds > GONE_SECONDS
      ? h(
          "p.old-note",
          {},
          "It stopped without a word: what it had leased comes back when the leases end. This is what it said last.",
        )
      : null,
    facts([
      ["Busy", `${row.busy} of ${plural(row.size, "slot")}`],
      ["May have", row.min === row.max ? exact(row.max) : `${row.min} to ${row.max}`],
      ["Done", rate(row.per_second)],
      [
        "Queues",
        row.queues.map((name, index) => [
          index ? ", " : "",
          h("a", { href: link(["queues", name]) }, name),
        ]),
      ],
      ["Started", ago(row.started_us, now)],
      ["Safe to stop", row.is_safe_to_stop ? "yes" : "no"],
      row.given_up ? ["Slots given up", exact(row.given_up)] : null,
    ]),
    h("h3", {}, "Slots"),
    table({
      label: `Slots of ${row.worker}`,
      rows: row.slots,
      key: (slot) => slot.number,
      none: "It has none.",
      columns: [
        { title: "Slot", cell: (slot) => slot.number },
        { title: "State", cell: (slot) => badge(slot.state, slot.id ? "leased" : "plain") },
        { title: "For", isNumber: true, cell: (slot) => seconds(slot.seconds) },
        {
          title: "Job",
          isWide: true,
          cell: (slot) =>
            slot.id
              ? [
                  h("div", {}, h("a", { href: addressOf(slot.id) }, slot.task)),
                  h("span.dim", {}, slot.id),
                ]
              : NONE,
        },
        { title: "Process", isNumber: true, cell: (slot) => slot.pid || NONE },
      ],
    }),
    h("h3", {}, "Autoscaler"),
    h("p", {}, row.standing ? `Now: ${row.standing}` : "It has not decided anything yet."),
    row.decisions.length
      ? h(
          "ol.timeline",
          {},
          [...row.decisions]
            .reverse()
            .slice(0, 20)
            .map((each) =>
              h(
                `li.${each.after > each.before ? "ready" : "plain"}`,
                { key: each.at_us },
                h("span.what", {}, each.reason),
                h("span.dim.when", {}, at(each.at_us)),
              ),
            ),
        )
      : null,
  );
}
