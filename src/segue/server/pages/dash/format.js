// Numbers with units, and times in the zone of whoever looks.

import { h } from "./dom.js";

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const moment = new Intl.DateTimeFormat(undefined, {
  year: "numeric",
  month: "short",
  day: "numeric",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const clock = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});

export const NONE = "–";
export const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "local time";

function isNone(value) {
  return value === null || value === undefined || Number.isNaN(value);
}

function significant(value) {
  return value >= 100 ? whole.format(value) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

export function count(value) {
  if (isNone(value)) return NONE;
  if (value < 1e6) return whole.format(value);
  return value < 1e9 ? `${significant(value / 1e6)} M` : `${significant(value / 1e9)} G`;
}

export function exact(value) {
  return isNone(value) ? NONE : whole.format(value);
}

export function plural(value, one, many = `${one}s`) {
  return `${exact(value)} ${value === 1 ? one : many}`;
}

// Behind what is said of the queues that are listed.
export function leftOut(more) {
  return `${exact(more)} more ${more === 1 ? "is" : "are"} not`;
}

export function rate(value) {
  if (isNone(value)) return NONE;
  if (value === 0) return "0/s";
  return value < 0.01 ? "<0.01/s" : `${value < 1e6 ? significant(value) : count(value)}/s`;
}

export function bytes(value) {
  if (isNone(value)) return NONE;
  if (value < 1024) return `${whole.format(value)} B`;
  const units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = -1;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${significant(value)} ${units[unit]}`;
}

export function percent(share) {
  return isNone(share) ? NONE : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
}

export function millis(value) {
  return isNone(value) ? NONE : seconds(value / 1000);
}

export function seconds(value) {
  if (isNone(value)) return NONE;
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 0.001) return `${significant(value * 1e6)} µs`;
  if (size < 1) return `${significant(value * 1000)} ms`;
  if (size < 60) return `${size < 10 ? value.toFixed(1) : Math.round(value)} s`;
  if (size < 3600) return pair(value, 60, "min", 1, "s");
  if (size < 86400) return pair(value, 3600, "h", 60, "min");
  return pair(value, 86400, "d", 3600, "h");
}

function pair(value, large, largeUnit, small, smallUnit) {
  const sign = value < 0 ? "-" : "";
  const total = Math.round(Math.abs(value) / small);
  const per = large / small;
  const rest = total % per;
  return `${sign}${Math.floor(total / per)} ${largeUnit}${rest ? ` ${rest} ${smallUnit}` : ""}`;
}

export function when(time_us) {
  return isNone(time_us) || !time_us ? NONE : moment.format(new Date(time_us / 1000));
}

// A moment as an element: how long ago, with the whole time to point at.
export function ago(time_us, now_us) {
  if (isNone(time_us) || !time_us) return NONE;
  const past = (now_us - time_us) / 1e6;
  const words =
    past >= 0 ? `${seconds(Math.max(0, Math.floor(past)))} ago` : `in ${seconds(-past)}`;
  return time(time_us, words);
}

export function at(time_us) {
  if (isNone(time_us) || !time_us) return NONE;
  const date = new Date(time_us / 1000);
  const isToday = date.toDateString() === new Date().toDateString();
  return time(time_us, isToday ? clock.format(date) : when(time_us));
}

function time(time_us, words) {
  const date = new Date(time_us / 1000);
  const iso = Number.isFinite(date.getTime()) ? date.toISOString() : "";
  return h("time", { datetime: iso, title: `${when(time_us)} (${zone})` }, words);
}

// By the clock of the server, which wrote the times: that of whoever looks may be wrong.
export function now_us() {
  return (Date.now() + ahead_ms) * 1000;
}

const AHEAD_MS = 3_000; // What is less may be the way here.
let ahead_ms = 0;

export function noteServerTime(time_us) {
  const found_ms = time_us / 1000 - Date.now();
  ahead_ms = Math.abs(found_ms) > AHEAD_MS ? found_ms : 0;
}
