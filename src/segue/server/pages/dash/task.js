// One task: how it stands, what happened, what it was given and what came of it.

import { getExactly } from "./api.js";
import { h } from "./dom.js";
import { ago, at, now_us, seconds, when } from "./format.js";
import { payload } from "./payload.js";
import { link } from "./router.js";
import { empty, facts, page, section, stateBadge } from "./parts.js";
import { taskButtons } from "./tasks.js";

export const title = ({ names }) => `${names.queue}/${names.message}`;

export async function load({ names }) {
  const path = ["tasks", names.queue, names.message];
  const [task, told] = await Promise.all([getExactly(path), getExactly([...path, "events"])]);
  return { task, told };
}

const WORDS = {
  processing: "Started",
  completed: "Completed",
  retrying: "Failed, to be tried again",
  dead_letter: "Failed for good",
  cancelled: "Cancelled",
  pending: "Given back",
  progress: "Told how far it is",
  lost: "Its lease was lost: what it said last does not count",
};
const TONES = {
  processing: "leased",
  completed: "good",
  retrying: "warn",
  dead_letter: "dead",
  lost: "warn",
};

export function view({ names }, { task, told }) {
  const now = now_us();
  return page(
    [task.task, " ", stateBadge(task.state)],
    {
      crumbs: [
        h("a", { href: link(["tasks"]) }, "Tasks"),
        h("a", { href: link(["tasks"], { queue: names.queue }) }, names.queue),
        names.message,
      ],
      aside: [
        taskButtons(task),
        h(
          "a.button",
          { href: link(["queues", names.queue, "messages", names.message]) },
          "As a message",
        ),
      ],
    },
    h(
      "div.columns",
      {},
      h(
        "div",
        {},
        section(
          "How it stands",
          {},
          facts([
            ["Id", task.id],
            ["Tries", task.attempt],
            ["Pushed", ago(task.pushed_us, now)],
            task.due_us && ["Due", ago(task.due_us, now)],
            ["Started", ago(task.started_us, now)],
            ["Finished", ago(task.finished_us, now)],
            ["Waited", seconds(task.wait_seconds)],
            ["Ran", seconds(task.run_seconds)],
            ["Worker", task.worker],
            task.schedule && ["Schedule", h("a", { href: link(["schedules"]) }, task.schedule)],
          ]),
        ),
        section(
          "What happened",
          { note: told.is_whole ? null : "what came earlier is no longer kept" },
          happened(task, told.events),
        ),
      ),
      h(
        "div",
        {},
        task.error
          ? section(
              "Error",
              {},
              h("p.reason", {}, task.error),
              task.traceback
                ? h(
                    "details",
                    { open: true },
                    h("summary", {}, "Traceback"),
                    h("pre", {}, task.traceback),
                  )
                : null,
            )
          : null,
        json(
          "Arguments",
          task.args,
          `${task.task}-arguments`,
          "They were too long to repeat here; the message has them.",
        ),
        json("Progress", task.progress, `${task.task}-progress`),
        task.state === "completed"
          ? json("Result", task.result, `${task.task}-result`, "It returned nothing.")
          : null,
      ),
    ),
  );
}

function json(name, value, file, none) {
  if (value === null || value === undefined) return none ? section(name, {}, empty(none)) : null;
  return section(name, {}, payload({ text: JSON.stringify(value), name: file }));
}

function happened(task, events) {
  const all = [
    ...(task.pushed_us ? [{ at_us: task.pushed_us, happened: "pushed" }] : []),
    ...events,
  ];
  if (!all.length) return empty("Nothing is known to have happened.");
  return h(
    "ol.timeline",
    {},
    all.map((event, index) =>
      h(
        `li.${TONES[event.happened] || "plain"}`,
        { key: `${index}-${event.happened}` },
        h(
          "span.what",
          {},
          event.happened === "pushed" ? "Pushed" : WORDS[event.happened] || event.happened,
          event.worker ? [" by ", h("strong", {}, event.worker)] : null,
          event.attempt ? h("span.dim", {}, `, attempt ${event.attempt}`) : null,
        ),
        h("span.dim.when", {}, at(event.at_us)),
        event.due_us ? h("span.dim", {}, `not before ${when(event.due_us)}`) : null,
        event.progress !== null && event.progress !== undefined
          ? h("code", {}, JSON.stringify(event.progress))
          : null,
        event.error ? h("p.reason", {}, event.error) : null,
        event.traceback
          ? h("details", {}, h("summary", {}, "Traceback"), h("pre", {}, event.traceback))
          : null,
      ),
    ),
  );
}
