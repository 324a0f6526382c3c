// Limits of every queue, and the switches that pause them.

import { get, post, put } from "./api.js";
import { actButton } from "./acts.js";
import { h } from "./dom.js";
import { NONE, exact, percent, rate, seconds } from "./format.js";
import { badge, bar, page, pager, section, table } from "./parts.js";
import { link } from "./router.js";

const PAGE = 100;
const MAY_BE_NONE = ["rate", "max_leases", "capacity", "max_deliveries"];

export const title = () => "Limits";
export const load = ({ query }) =>
  get(["overview", "limits"], { after: query.get("after"), limit: PAGE });

export function view({ query }, { queues, next }) {
  return page(
    "Limits and switches",
    {},
    section(
      "Queues",
      {},
      table({
        label: "Limits of queues",
        rows: queues,
        key: (row) => row.name,
        none: [
          "There are no queues yet. Push a message: ",
          h("code", {}, "segue queue push data orders hello"),
        ],
        columns: [
          { title: "Queue", cell: (row) => h("a", { href: link(["queues", row.name]) }, row.name) },
          {
            title: "Delivers",
            cell: (row) =>
              row.problem
                ? [badge("unreadable", "dead"), " ", h("span.reason", {}, row.problem)]
                : [
                    row.paused ? badge("paused", "warn") : badge("yes", "good"),
                    " ",
                    pauseButton(row, { isNamed: true }),
                  ],
          },
          {
            title: "Rate",
            isNumber: true,
            cell: (row) =>
              limit(row.rules, (rules) => (rules.rate === null ? null : rate(rules.rate))),
          },
          {
            title: "Leases at once",
            isNumber: true,
            cell: (row) =>
              limit(row.rules, (rules) =>
                rules.max_leases === null
                  ? null
                  : `${exact(row.leased)} of ${exact(rules.max_leases)}`,
              ),
          },
          {
            title: "Of one group",
            isNumber: true,
            cell: (row) => limit(row.rules, (rules) => rules.group_concurrency),
          },
          {
            title: "Capacity",
            isNumber: true,
            cell: (row) =>
              limit(row.rules, (rules) =>
                rules.capacity === null
                  ? null
                  : [
                      `${percent(row.capacity_used)} of ${exact(rules.capacity)} `,
                      bar(row.capacity_used || 0, row.capacity_used > 0.9 ? "dead" : "ready"),
                    ],
              ),
          },
          {
            title: "Tries",
            isNumber: true,
            cell: (row) => limit(row.rules, (rules) => rules.max_deliveries),
          },
          {
            title: "Lease",
            isNumber: true,
            cell: (row) => limit(row.rules, (rules) => seconds(rules.lease_ttl)),
          },
          {
            title: "",
            name: "acts",
            cell: (row) =>
              row.problem
                ? null
                : actButton("Change…", change(row), { label: `Change the limits of ${row.name}` }),
          },
        ],
      }),
      pager(query, next, { shown: queues.length }),
    ),
  );
}

function limit(rules, of) {
  const value = rules ? of(rules) : null;
  return value === null || value === undefined ? h("span.dim", {}, NONE) : value;
}

// The switch that stops a queue, or starts it again; `isNamed` where there are many of them.
export function pauseButton({ name, paused }, { isNamed = false, tone } = {}) {
  const verb = paused ? "Resume" : "Pause";
  const act = {
    title: `${verb} ${name}?`,
    button: verb,
    says: paused
      ? "What is ready will be delivered."
      : "Nothing is delivered until it is resumed, to nobody. Pushing goes on; what is leased stays so.",
    run: async () => {
      await post(["queues", name, verb.toLowerCase()]);
      return paused ? `${name} delivers again` : `${name} is paused`;
    },
  };
  return actButton(verb, act, { label: isNamed ? `${verb} ${name}` : null, tone });
}

// Changing the limits of a queue, as an act.
export function change({ name, rules }) {
  const none = "leave empty for no limit";
  return {
    title: `Limits of ${name}`,
    button: "Change them",
    says: "They hold for everybody from now on. What is out stays as it was taken.",
    fields: [
      {
        name: "rate",
        label: "Messages a second",
        type: "number",
        min: 0,
        step: "any",
        value: rules.rate ?? "",
        hint: none,
      },
      {
        name: "rate_burst",
        label: "At once, if there was none for a while",
        type: "number",
        min: 1,
        step: 1,
        value: rules.rate_burst,
      },
      {
        name: "max_leases",
        label: "Leases at once",
        type: "number",
        min: 1,
        step: 1,
        value: rules.max_leases ?? "",
        hint: none,
      },
      {
        name: "group_concurrency",
        label: "Of one group at once",
        type: "number",
        min: 1,
        step: 1,
        value: rules.group_concurrency,
      },
      {
        name: "capacity",
        label: "Capacity",
        type: "number",
        min: 1,
        step: 1,
        value: rules.capacity ?? "",
        hint: none,
      },
      {
        name: "on_full",
        label: "When it is full",
        choices: [
          ["refuse", "refuse"],
          ["block", "wait"],
          ["drop_oldest", "drop the oldest"],
        ],
        value: rules.on_full,
      },
      {
        name: "max_deliveries",
        label: "Tries",
        type: "number",
        min: 1,
        step: 1,
        value: rules.max_deliveries ?? "",
        hint: none,
      },
      {
        name: "lease_ttl",
        label: "Lease, in seconds",
        type: "number",
        min: 0,
        step: "any",
        value: rules.lease_ttl,
      },
    ],
    run: async (said) => {
      const meant = Object.fromEntries(
        Object.entries(said).filter(
          ([field, value]) =>
            value !== (rules[field] ?? null) && (value !== null || MAY_BE_NONE.includes(field)),
        ),
      );
      // Read again: somebody else may have changed the others meanwhile.
      const now = await get(["queues", name, "rules"]);
      await put(["queues", name, "rules"], { ...now, ...meant });
      return `The limits of ${name} are changed`;
    },
  };
}
