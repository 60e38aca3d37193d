// Event streams that reconnect after the server was unreachable. They pause while the tab is hidden:
// a browser has few connections per server.
import { offline, signedOut } from "./app.js";

/** Subclasses define the `address`, and a `probe` that shows whether the user is still signed in. */
class Stream {
  constructor(kinds, handlers) {
    Object.assign(this, { kinds, handlers, source: null, wait: 500, over: false });
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", ({ persisted }) => {
      if (persisted) this.open();
    });
  }

  open() {
    this.close();
    if (this.over || document.hidden) return;
    const source = (this.source = new EventSource(this.address()));
    source.onopen = () => offline(false);
    source.onerror = () => this.retry();
    for (const kind of this.kinds)
      source.addEventListener(kind, (event) => {
        this.wait = 500;
        this.take(kind, event);
      });
  }

  take(kind, event) {
    this.handlers[kind]?.(event.data ? JSON.parse(event.data) : {});
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  async retry() {
    this.close();
    this.timer = setTimeout(() => this.open(), this.wait);
    this.wait = Math.min(this.wait * 2, 8000);
    try {
      const answer = await fetch(this.probe, { headers: { Accept: "application/json" } });
      if (answer.status === 401) {
        this.over = true;
        this.close();
        signedOut(null);
      }
      if (answer.status === 404) {
        this.over = true;
        this.close();
      }
    } catch {
      offline(true);
    }
  }
}

/** Stream of one job: log lines, changes, new metrics. */
export class Follower extends Stream {
  constructor(url, cursor, handlers) {
    super(["log", "job", "metrics", "end", "ping"], handlers);
    Object.assign(this, { url, cursor, probe: url, params: {} });
  }

  address() {
    return `${this.url}/follow?${new URLSearchParams({ ...this.params, after: this.cursor })}`;
  }

  take(kind, event) {
    if (kind === "log" && event.lastEventId) this.cursor = Number(event.lastEventId);
    if (kind === "end") {
      this.over = true;
      this.close();
    }
    super.take(kind, event);
  }

  restart(cursor = this.cursor) {
    this.cursor = cursor;
    this.over = false;
    this.open();
  }
}

/** Stream of all jobs, sweeps and swarms of the user. Its position is kept for the next page of this tab, so that no end of a job is missed. */
export class Changes extends Stream {
  probe = "/api/v1/auth/me";

  constructor(handlers) {
    super(["hello", "job", "sweep", "swarm", "gone", "ping"], handlers);
  }

  address() {
    let after = null;
    try {
      after = sessionStorage.getItem("shoal-live");
    } catch {
      /* no storage, no memory */
    }
    return after ? `/live?after=${after}` : "/live";
  }

  take(kind, event) {
    try {
      sessionStorage.setItem("shoal-live", event.lastEventId);
    } catch {
      /* as above */
    }
    super.take(kind, event);
  }
}
