// Tasks by state, with the filters an operator asks by.

import { get, post } from "./api.js";
import { actButton } from "./acts.js";
import { h } from "./dom.js";
import { NONE, ago, count, exact, now_us, plural, seconds } from "./format.js";
import { changed, go, link } from "./router.js";
import { empty, filters, page, pager, section, stateBadge, table, tabs } from "./parts.js";

const PAGE = 25;
const STATES = [
  "pending",
  "scheduled",
  "processing",
  "retrying",
  "completed",
  "dead_letter",
  "cancelled",
];
const UNFINISHED = new Set(["pending", "scheduled", "processing", "retrying"]);

export const title = () => "Tasks";

export async function load({ query }) {
  const asked = Object.fromEntries(
    ["state", "task", "queue", "error", "after"].map((name) => [name, query.get(name) || null]),
  );
  const [counts, found] = await Promise.all([
    get(["task-counts"]),
    get(["tasks"], { ...asked, limit: PAGE }),
  ]);
  return { counts, found };
}

export function view({ query }, { counts, found }) {
  const state = query.get("state");
  const all = STATES.reduce((sum, each) => sum + (counts.states[each] || 0), 0);
  return page(
    "Tasks",
    {},
    found.behind || counts.behind
      ? h(
          "p.old-note",
          {},
          `The records are being brought up to date: ${plural(Math.max(found.behind, counts.behind), "event")} to go.`,
        )
      : null,
    counts.more_queues
      ? h(
          "p.old-note",
          {},
          `The tasks that wait in ${plural(counts.more_queues, "queue")} are not counted: nobody has looked there yet, or too many queues are open.`,
        )
      : null,
    tabs("State of tasks", [
      {
        text: "all",
        href: changed({ state: null, after: null, past: null }),
        isIt: !state,
        note: count(all),
      },
      ...STATES.map((each) => ({
        text: each.replace("_", " "),
        href: changed({ state: each, after: null, past: null }),
        isIt: state === each,
        note: count(counts.states[each] || 0),
      })),
    ]),
    section(
      "Find",
      {},
      filters(
        [
          { name: "task", label: "Task", placeholder: "resize" },
          { name: "queue", label: "Queue", placeholder: "default" },
          { name: "error", label: "Error contains", placeholder: "TimeoutError" },
        ],
        query,
        (said) => go(changed(said)),
      ),
    ),
    section(
      "Tasks",
      { note: "unfinished first, then the latest" },
      found.tasks.length
        ? taskTable(found.tasks)
        : empty(
            found.next
              ? "None among those looked through: there are more."
              : query.get("after")
                ? "There are no more."
                : all
                  ? "No task fits."
                  : [
                      "There are no tasks yet. Queue one: ",
                      h("code", {}, `segue task enqueue data resize '["a.png"]'`),
                    ],
          ),
      pager(query, found.next, { shown: found.tasks.length }),
    ),
    counts.tasks.length
      ? section("By name", { note: "what workers have told of" }, byName(counts.tasks))
      : null,
  );
}

function taskTable(tasks) {
  const now = now_us();
  return table({
    label: "Tasks",
    rows: tasks,
    key: (row) => row.id,
    columns: [
      { title: "Task", isWide: true, cell: (row) => h("a", { href: addressOf(row.id) }, row.task) },
      { title: "Id", cell: (row) => h("span.dim", {}, row.id) },
      { title: "State", cell: (row) => stateBadge(row.state) },
      { title: "Tries", isNumber: true, cell: (row) => row.attempt },
      { title: "Changed", cell: (row) => ago(row.updated_us || row.pushed_us, now) },
      { title: "Waited", isNumber: true, cell: (row) => seconds(row.wait_seconds) },
      { title: "Ran", isNumber: true, cell: (row) => seconds(row.run_seconds) },
      {
        title: "Error",
        isWide: true,
        cell: (row) => (row.error ? h("span.reason", {}, row.error) : NONE),
      },
      { title: "", name: "acts", cell: (row) => h("div.buttons", {}, taskButtons(row)) },
    ],
  });
}

export function addressOf(id) {
  const cut = id.indexOf("/");
  return link(["tasks", id.slice(0, cut), id.slice(cut + 1)]);
}

export function taskButtons(task) {
  const cut = task.id.indexOf("/");
  const path = ["tasks", task.id.slice(0, cut), task.id.slice(cut + 1)];
  if (task.state === "dead_letter") {
    return actButton(
      "Retry",
      {
        title: `Retry ${task.task}?`,
        button: "Bring it back",
        says: `${task.id} is tried again, with all its tries anew.`,
        run: async () =>
          (await post([...path, "retry"])).retried
            ? `${task.id} is brought back`
            : `${task.id} was no dead letter any more`,
      },
      { tone: "primary", label: `Retry ${task.id}` },
    );
  }
  if (UNFINISHED.has(task.state)) {
    return actButton(
      "Cancel",
      {
        title: `Cancel ${task.task}?`,
        button: "Cancel the task",
        tone: "danger",
        says: `${task.id} will not run, or is stopped if it runs. This cannot be undone.`,
        run: async () =>
          (await post([...path, "cancel"])).cancelled
            ? `${task.id} is cancelled`
            : `${task.id} was finished already`,
      },
      { tone: "danger", label: `Cancel ${task.id}` },
    );
  }
  return null;
}

function byName(rows) {
  return table({
    label: "Tasks by name",
    rows,
    key: (row) => row.task,
    columns: [
      {
        title: "Task",
        isWide: true,
        cell: (row) =>
          h("a", { href: changed({ task: row.task, after: null, past: null }) }, row.task),
      },
      ...["completed", "retrying", "dead_letter", "cancelled", "processing"].map((state) => ({
        title: state.replace("_", " "),
        isNumber: true,
        cell: (row) => exact(row.states[state] || 0),
      })),
    ],
  });
}
