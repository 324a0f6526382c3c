// What screens are put together from.

import { h } from "./dom.js";
import { NONE, exact, percent } from "./format.js";
import { changed } from "./router.js";

export function page(title, { aside, crumbs } = {}, ...children) {
  return h(
    "div.page",
    {},
    crumbs &&
      h(
        "p.crumbs",
        {},
        crumbs.map((each, index) => [index ? " / " : null, each]),
      ),
    h("div.head", {}, h("h1", { tabindex: "-1" }, title), h("div.actions", {}, aside)),
    children,
  );
}

export function section(title, { note, aside, key } = {}, ...children) {
  const label = typeof title === "string" ? title : null;
  return h(
    "section.card",
    { "aria-label": label, key: key || label },
    h("div.head", {}, h("h2", {}, title), note && h("span.dim", {}, note), h("span.grow"), aside),
    children,
  );
}

export function tile(label, value, { note, tone, href, title } = {}) {
  const inside = [
    h("span.label", {}, label),
    h("span.value", { title }, value),
    note && h("span.note", {}, note),
  ];
  const kind = `tile${tone ? `.${tone}` : ""}`;
  return href ? h(`a.${kind}`, { href }, inside) : h(`div.${kind}`, {}, inside);
}

export function badge(text, tone) {
  return h(`span.badge.${tone || "plain"}`, {}, text);
}

const STATE_TONES = {
  ready: "ready",
  pending: "ready",
  delayed: "delayed",
  scheduled: "delayed",
  leased: "leased",
  processing: "leased",
  retrying: "warn",
  dead: "dead",
  dead_letter: "dead",
  completed: "good",
  settled: "good",
  acked: "good",
  popped: "good",
  cancelled: "plain",
  failed: "dead",
  expired: "warn",
  released: "plain",
};

export function stateBadge(state) {
  return badge(state.replace("_", " "), STATE_TONES[state]);
}

export function empty(text, ...more) {
  return h("p.empty", {}, text, more);
}

export function failure(error) {
  return h(
    "div.failure",
    { role: "alert" },
    h("strong", {}, "That did not work: "),
    error.message,
    error.code ? h("span.dim", {}, ` (${error.code})`) : null,
  );
}

export function facts(pairs) {
  return h(
    "dl.facts",
    {},
    pairs
      .filter(Boolean)
      .map(([name, value]) =>
        h(
          "div",
          {},
          h("dt", {}, name),
          h("dd", {}, value === null || value === undefined || value === "" ? NONE : value),
        ),
      ),
  );
}

// columns: [{title, cell(row), isNumber, sort, isWide}]; rows are told apart by `key(row)`.
export function table({ label, columns, rows, key, sort, none }) {
  if (!rows.length) return empty(none || "Nothing here.");
  return h(
    "div.scroll",
    { role: "region", "aria-label": label, tabindex: "0" },
    h(
      "table",
      {},
      h("caption.unseen", {}, label),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          columns.map((column) => heading(column, sort)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row) =>
          h(
            "tr",
            { key: key ? `row-${key(row)}` : null },
            columns.map((column) =>
              h(
                "td",
                {
                  class: `${column.isNumber ? "number" : ""} ${column.isWide ? "wide" : ""}`,
                  "data-title": column.title,
                },
                column.cell(row),
              ),
            ),
          ),
        ),
      ),
    ),
  );
}

function heading(column, sort) {
  const kind = column.isNumber ? "number" : "";
  if (!sort || !column.sort)
    return h(
      "th",
      { scope: "col", class: kind },
      column.title || h("span.unseen", {}, column.name || "acts"),
    );
  const isIt = sort.by === column.sort;
  const isDown = isIt ? !sort.isDown : Boolean(column.isNumber);
  return h(
    "th",
    {
      scope: "col",
      class: kind,
      "aria-sort": isIt ? (sort.isDown ? "descending" : "ascending") : "none",
    },
    h(
      "a",
      { href: changed({ sort: `${isDown ? "-" : ""}${column.sort}` }) },
      column.title,
      isIt ? (sort.isDown ? " ↓" : " ↑") : "",
    ),
  );
}

export function sortOf(query, by) {
  const said = query.get("sort") || by;
  return { by: said.replace(/^-/, ""), isDown: said.startsWith("-") };
}

export function sorted(rows, { by, isDown }, valueOf) {
  const order = (one, other) => {
    const [a, b] = [valueOf(one, by), valueOf(other, by)];
    if (a === b) return 0;
    if (a === null || a === undefined) return -1;
    if (b === null || b === undefined) return 1;
    return a < b ? -1 : 1;
  };
  return [...rows].sort((one, other) => (isDown ? -order(one, other) : order(one, other)));
}

export function tabs(label, choices) {
  return h(
    "nav.tabs",
    { "aria-label": label },
    choices
      .filter(Boolean)
      .map(({ text, href, isIt, note }) =>
        h(
          "a",
          { href, "aria-current": isIt ? "true" : null },
          text,
          note !== undefined && [" ", h("span.count", {}, note)],
        ),
      ),
  );
}

// Pages go on behind a mark; the marks that were passed are in the address, for the way back.
export function pager(query, next, { name = "after", shown } = {}) {
  const marks = query
    .getAll("past")
    .flatMap((each) => each.split(" "))
    .filter(Boolean);
  const mark = query.get(name) || "";
  const back = marks.length
    ? changed({
        [name]: marks[marks.length - 1] === "-" ? null : marks[marks.length - 1],
        past: marks.slice(0, -1).join(" ") || null,
      })
    : null;
  const on =
    next === null || next === undefined
      ? null
      : changed({ [name]: next, past: [...marks, mark || "-"].join(" ") });
  if (!back && !on) return null;
  return h(
    "nav.pager",
    { "aria-label": "Pages" },
    back
      ? h("a.button", { href: back, rel: "prev" }, "← Back")
      : h("span.button.off", {}, "← Back"),
    h("span.dim", {}, `page ${marks.length + 1}${shown === undefined ? "" : ` · ${shown} shown`}`),
    on ? h("a.button", { href: on, rel: "next" }, "Next →") : h("span.button.off", {}, "Next →"),
  );
}

export function bar(share, tone) {
  return h(
    "span.bar",
    { "aria-hidden": "true" },
    h(`span.${tone || "ready"}`, { style: { width: `${Math.max(0, Math.min(1, share)) * 100}%` } }),
  );
}

export function shares(label, rows, { none, tone } = {}) {
  if (!rows.length) return empty(none || "Nothing to tell.");
  const most = Math.max(...rows.map((row) => row.count), 1);
  return h(
    "ul.shares",
    { "aria-label": label },
    rows.map((row) =>
      h(
        "li",
        { key: row.text },
        h(
          "span.what",
          { title: row.text },
          row.href ? h("a", { href: row.href }, row.text) : row.text,
        ),
        h(
          "span.amount",
          {},
          exact(row.count),
          row.share === undefined ? null : h("span.dim", {}, ` ${percent(row.share)}`),
        ),
        bar(row.count / most, tone),
      ),
    ),
  );
}

// Form fields whose values are filters in the address.
export function filters(fields, query, apply, button = "Filter") {
  return h(
    "form.filters",
    {
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        const said = Object.fromEntries(
          [...new FormData(event.target)].map(([name, value]) => [name, value || null]),
        );
        apply({ ...said, after: null, past: null, before: null });
      },
    },
    fields.map((field) =>
      h(
        "label",
        {},
        h("span", {}, field.label),
        field.choices
          ? h(
              "select",
              { name: field.name, onchange: (event) => event.target.form.requestSubmit() },
              field.choices.map(([value, text]) =>
                h("option", { value, selected: (query.get(field.name) || "") === value }, text),
              ),
            )
          : h("input", {
              name: field.name,
              value: query.get(field.name) || "",
              placeholder: field.placeholder,
              type: "search",
              autocomplete: "off",
            }),
      ),
    ),
    h("button", { type: "submit" }, button),
  );
}
