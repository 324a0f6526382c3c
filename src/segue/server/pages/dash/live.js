// The overview as it comes, by server-sent events. Read with fetch, which can send a token.
//
// Nothing is asked for while the page is hidden, or paused by hand. Whoever listens is told each
// overview and each change of state: connecting, live, paused, hidden, stale, disconnected, refused.

import { Problem, headers, path, problemOf } from "./api.js";
import { noteServerTime } from "./format.js";

const STALE_MS = 6_000;
const GIVE_UP_MS = 20_000; // A line that is cut without a word is silent for ever.
const RETRY_MS = [1_000, 2_000, 4_000, 8_000, 15_000];

export class Live {
  constructor({ onOverview, onState, onRefused }) {
    this.onOverview = onOverview;
    this.onState = onState;
    this.onRefused = onRefused;
    this.state = "connecting";
    this.last_ms = 0; // When new figures came last.
    this._told_us = null; // Of when they were, by the server's clock.
    this._heard_ms = 0; // When anything did: also that there is nothing new.
    this.retry_ms = 0; // When the next try is.
    this.isPaused = false;
    this._failures = 0;
    this._reading = null;
    this._timer = 0;
    this._begun_ms = 0; // When the server was asked last.
    document.addEventListener("visibilitychange", () => this._turn());
    setInterval(() => this._look(), 1_000);
  }

  begin() {
    this._turn();
  }

  pause(isPaused) {
    this.isPaused = isPaused;
    this._turn();
  }

  retry() {
    this._failures = 0;
    this._stop();
    this._turn();
  }

  // Ask nothing more until `retry`: whoever looks has to sign in first.
  refuse() {
    this._stop();
    this._say("refused");
  }

  // Whether what is shown is told to be old.
  get isOld() {
    return this.state === "stale" || this.state === "disconnected";
  }

  get isFlowing() {
    return !this.isPaused && !document.hidden;
  }

  _turn() {
    if (!this.isFlowing) {
      this._stop();
      this._say(this.isPaused ? "paused" : "hidden");
    } else if (!this._reading) {
      if (!this.isOld) this._say("connecting"); // Else what is shown stays as old as it is.
      this._read();
    }
  }

  _stop() {
    clearTimeout(this._timer);
    this.retry_ms = 0;
    if (this._reading) this._reading.abort();
    this._reading = null;
  }

  _say(state) {
    if (this.state !== state) {
      this.state = state;
      this.onState(state);
    }
  }

  _look() {
    const since_ms = (moment_ms) => Date.now() - Math.max(moment_ms, this._begun_ms);
    if (this._reading && since_ms(this._heard_ms) > GIVE_UP_MS) this._fail();
    else if (this._reading && since_ms(this.last_ms) > STALE_MS) this._say("stale");
    if (this.isOld) this.onState(this.state);
  }

  async _read() {
    const reading = new AbortController();
    this._reading = reading;
    this._begun_ms = Date.now();
    this._told_us = null;
    this.retry_ms = 0;
    try {
      const answer = await fetch(path(["overview", "live"]), {
        headers: { ...headers(), accept: "text/event-stream" },
        signal: reading.signal,
        cache: "no-store",
      });
      if (!answer.ok) throw await problemOf(answer);
      await this._follow(answer.body.getReader(), reading);
    } catch (error) {
      if (this._reading !== reading) return; // We ended it ourselves.
      if (error instanceof Problem && (error.status === 401 || error.status === 403)) {
        this.refuse();
        this.onRefused(error);
        return;
      }
    }
    if (this._reading === reading) this._fail();
  }

  _fail() {
    this._stop();
    const pause_ms = RETRY_MS[Math.min(this._failures, RETRY_MS.length - 1)];
    this._failures += 1;
    this.retry_ms = Date.now() + pause_ms;
    this._timer = setTimeout(() => this._turn(), pause_ms);
    this._say("disconnected");
  }

  async _follow(reader, reading) {
    const decoder = new TextDecoder();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done || this._reading !== reading) return;
      text += decoder.decode(value, { stream: true });
      let end;
      while ((end = text.indexOf("\n\n")) >= 0) {
        this._take(text.slice(0, end));
        text = text.slice(end + 2);
      }
    }
  }

  // Of a look that takes long is told how far it has come, with the time of the one before.
  _takeOverview(overview) {
    if (overview.at_us !== this._told_us) {
      if (this._told_us !== null) noteServerTime(overview.at_us);
      this._told_us = overview.at_us;
      this.last_ms = Date.now();
      this._say("live");
    }
    this.onOverview(overview);
  }

  _take(event) {
    this._heard_ms = Date.now();
    const data = event
      .split("\n")
      .filter((line) => line.startsWith("data:"))
      .map((line) => line.slice(5).trimStart())
      .join("\n");
    if (data && /^event: ?overview$/m.test(event)) {
      this._failures = 0;
      this._takeOverview(JSON.parse(data));
    }
  }
}
