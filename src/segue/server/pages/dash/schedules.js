// Schedules: when each fires next, what it fired last; firing by hand.

import { get, post, remove } from "./api.js";
import { actButton } from "./acts.js";
import { h } from "./dom.js";
import { NONE, ago, exact, now_us } from "./format.js";
import { addressOf } from "./tasks.js";
import { badge, page, section, table } from "./parts.js";
import { link } from "./router.js";

export const title = () => "Schedules";
export const load = () => get(["schedules"]);

export function view(_place, { schedules }) {
  const now = now_us();
  return page(
    "Schedules",
    {},
    section(
      "Schedules",
      { note: "as workers have met them" },
      table({
        label: "Schedules",
        rows: schedules,
        key: (row) => `${row.name} ${row.when}`,
        none: [
          "No worker has told of a schedule yet. A task gets one where it is declared: ",
          h("code", {}, '@app.task(schedule="*/5 * * * *")'),
        ],
        columns: [
          { title: "Schedule", isWide: true, cell: (row) => h("strong", {}, row.name) },
          { title: "When", cell: (row) => h("code", {}, row.when) },
          {
            title: "Task",
            isWide: true,
            cell: (row) => h("a", { href: link(["tasks"], { task: row.task }) }, row.task),
          },
          {
            title: "Queue",
            cell: (row) => h("a", { href: link(["queues", row.queue]) }, row.queue),
          },
          {
            title: "Next",
            cell: (row) =>
              row.next_us && row.next_us < now
                ? [badge("late", "warn"), " ", ago(row.next_us, now)]
                : ago(row.next_us, now),
          },
          { title: "Last", cell: (row) => ago(row.fired_us, now) },
          { title: "Fired", isNumber: true, cell: (row) => exact(row.fired) },
          {
            title: "Last task",
            cell: (row) =>
              row.last_id ? h("a", { href: addressOf(row.last_id) }, row.last_id) : NONE,
          },
          {
            title: "",
            name: "acts",
            cell: (row) =>
              h(
                "div.buttons",
                {},
                actButton("Fire now", fire(row), { label: `Fire ${row.name} now` }),
                actButton("Forget", forget(row), { tone: "danger", label: `Forget ${row.name}` }),
              ),
          },
        ],
      }),
    ),
  );
}

function fire(row) {
  return {
    title: `Fire ${row.name} now?`,
    button: "Fire it",
    says: `A call of ${row.task} is queued in ${row.queue}. When the schedule fires by itself stays as it was.`,
    run: async () =>
      `${row.name} fired: ${(await post(["schedules", row.name, "fire"])).id} is queued`,
  };
}

function forget(row) {
  return {
    title: `Forget ${row.name}?`,
    button: "Forget it",
    tone: "danger",
    types: row.name,
    says: "For schedules that no code has any more. A worker whose code still has it will bring it back.",
    run: async () =>
      (await remove(["schedules", row.name])).removed
        ? `${row.name} is forgotten`
        : `${row.name} was not there any more`,
  };
}
