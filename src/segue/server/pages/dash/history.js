// Charts of how things went: the same for the whole store and for one queue.

import { get } from "./api.js";
import { chart } from "./charts.js";
import { count, millis, rate, seconds } from "./format.js";
import { changed } from "./router.js";
import { tabs } from "./parts.js";

const RANGES = [
  ["15m", "15 min", 900],
  ["1h", "1 h", 3600],
  ["6h", "6 h", 21600],
  ["24h", "24 h", 86400],
  ["7d", "7 d", 604800],
];

function range(query) {
  return RANGES.find(([name]) => name === query.get("range")) || RANGES[1];
}

export function loadHistory(query, queue) {
  return get(["overview", "history"], { seconds: range(query)[2], queue });
}

export function rangeTabs(query) {
  const [now] = range(query);
  return tabs(
    "Range of the charts",
    RANGES.map(([name, text]) => ({ text, href: changed({ range: name }), isIt: name === now })),
  );
}

// The points that were kept, and the one of this very second behind them.
function withNow(history, row, at_us) {
  const last = history.at_us[history.at_us.length - 1] || 0;
  if (!row || at_us <= last) return history;
  const longer = { ...history, at_us: [...history.at_us, at_us] };
  for (const [name, values] of Object.entries(history)) {
    if (Array.isArray(values) && name !== "at_us") longer[name] = [...values, row[name] ?? null];
  }
  return longer;
}

export function flowChart(history, row, at_us) {
  const {
    at_us: times,
    in_per_second,
    out_per_second,
    failed_per_second,
  } = withNow(history, row, at_us);
  return chart({
    key: "flow",
    title: "In and out, messages a second",
    at_us: times,
    format: rate,
    series: [
      { label: "in", colour: "ready", values: in_per_second },
      { label: "out", colour: "good", values: out_per_second, isFilled: true },
      { label: "failed", colour: "dead", values: failed_per_second, dash: [4, 3] },
    ],
  });
}

export function depthChart(history, row, at_us) {
  const { at_us: times, ready, delayed, leased, dead } = withNow(history, row, at_us);
  return chart({
    key: "depth",
    title: "Messages held, by state",
    at_us: times,
    format: count,
    series: [
      { label: "ready", colour: "ready", values: ready, isFilled: true },
      { label: "delayed", colour: "delayed", values: delayed },
      { label: "leased", colour: "leased", values: leased },
      { label: "dead", colour: "dead", values: dead, dash: [4, 3] },
    ],
  });
}

export function ageChart(history, row, at_us) {
  const { at_us: times, oldest_seconds } = withNow(history, row, at_us);
  return chart({
    key: "age",
    title: "Age of the oldest message that waits",
    at_us: times,
    format: seconds,
    series: [{ label: "oldest", colour: "warn", values: oldest_seconds, isFilled: true }],
  });
}

export function taskChart(history) {
  return chart({
    key: "tasks",
    title: "Tasks: time waited and time run",
    at_us: history.at_us,
    format: millis,
    series: [
      { label: "wait p50", colour: "ready", values: history.wait_p50_ms },
      { label: "wait p99", colour: "ready", values: history.wait_p99_ms, dash: [4, 3] },
      { label: "run p50", colour: "good", values: history.run_p50_ms },
      { label: "run p99", colour: "good", values: history.run_p99_ms, dash: [4, 3] },
    ],
  });
}

export function diskChart(history) {
  return chart({
    key: "syncs",
    title: "Writes made durable (fsync), a second",
    at_us: history.at_us,
    format: rate,
    series: [
      { label: "fsync", colour: "leased", values: history.syncs_per_second, isFilled: true },
    ],
  });
}
