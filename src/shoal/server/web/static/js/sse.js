// One stream of a job's events, which finds its way back after the server was away. Pauses while the tab is hidden:
// a browser has few connections per server, and nobody looks.
import { offline, signedOut } from "./app.js";

const KINDS = ["log", "job", "metrics", "end", "ping"];

export class Follower {
  constructor(url, cursor, handlers) {
    Object.assign(this, { url, cursor, handlers, source: null, wait: 500, over: false, params: {} });
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
  }

  open() {
    this.close();
    if (this.over || document.hidden) return;
    const query = new URLSearchParams({ ...this.params, after: this.cursor });
    const source = this.source = new EventSource(`${this.url}/follow?${query}`);
    source.onopen = () => { this.wait = 500; offline(false); };
    source.onerror = () => this.retry();
    for (const kind of KINDS) source.addEventListener(kind, (event) => this.take(kind, event));
  }

  take(kind, event) {
    if (kind === "log" && event.lastEventId) this.cursor = Number(event.lastEventId);
    if (kind === "end") { this.over = true; this.close(); }
    this.handlers[kind]?.(event.data ? JSON.parse(event.data) : {});
  }

  restart(cursor = this.cursor) { this.cursor = cursor; this.over = false; this.open(); }

  close() { clearTimeout(this.timer); this.source?.close(); this.source = null; }

  async retry() {
    this.close();
    this.timer = setTimeout(() => this.open(), this.wait);
    this.wait = Math.min(this.wait * 2, 8000);
    try {
      const answer = await fetch(this.url, { headers: { Accept: "application/json" } });
      if (answer.status === 401) { this.over = true; this.close(); signedOut(null); }
      if (answer.status === 404) { this.over = true; this.close(); }
    } catch { offline(true); }
  }
}
