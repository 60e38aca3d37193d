// The rows of the table of runs, read from the server as one scrolls to them: only those in view are in the page.
import { call } from "./api.js";
import { $, make } from "./dom.js";
import { api, query, state } from "./runs_state.js";

const PAGE = 200,
  ROW_PX = 33,
  SPARE = 15,
  COLUMNS = 40;

/** `given`: row(item) and head() make elements; empty() what is shown without any run; drawn() is called after each drawing. */
export class Table {
  constructor(given) {
    Object.assign(this, given, { rows: [], heads: [], total: 0, pages: new Set(), made: new Map(), generation: 0 });
    this.view = $("runs-view");
    this.body = $("runs-rows");
    let waiting = false;
    this.view.addEventListener("scroll", () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        this.draw();
      });
    });
    addEventListener("resize", () => this.draw());
  }

  /** Reads the first rows again. Returns false if another reading has begun meanwhile. */
  async read(before) {
    const mine = ++this.generation;
    const [page, heads] = await Promise.all([this.fetch(0), before]);
    if (mine !== this.generation) return false;
    this.pages = new Set([0]);
    this.rows = state.group.length ? page.groups : page.rows;
    this.total = this.rows.length = page.total;
    this.heads = heads;
    this.forget();
    keepFocus($("runs-head"), () => $("runs-head").replaceChildren(this.head()));
    return true;
  }
  fetch(number) {
    const asked = query();
    asked.set("limit", PAGE);
    asked.set("offset", number * PAGE);
    return call("GET", `${api}/runs/query?${asked}`);
  }
  /** Reads the pages of rows that are in view and not here yet. */
  async need(first, last) {
    const mine = this.generation;
    for (let n = Math.floor(first / PAGE); n <= Math.floor(Math.min(last, this.total - 1) / PAGE); n++) {
      if (this.pages.has(n)) continue;
      this.pages.add(n);
      try {
        const page = await this.fetch(n);
        if (mine !== this.generation) return;
        (state.group.length ? page.groups : page.rows).forEach((row, i) => (this.rows[n * PAGE + i] = row));
        this.draw();
      } catch (error) {
        this.pages.delete(n);
        $("runs-error").textContent = error.message;
        return;
      }
    }
  }

  /** All rows known so far: runs or groups, and trials of sweeps that are open. */
  known() {
    return [...this.rows.filter(Boolean), ...this.heads.map(({ item }) => item).filter((item) => item?.id)];
  }
  /** Rows are made again when they are drawn next. */
  forget() {
    this.made = new Map();
  }

  /** Rows that were in view stay the same elements, so that what has the focus keeps it. */
  draw() {
    const count = this.heads.length + this.total,
      first = Math.max(0, Math.floor(this.view.scrollTop / ROW_PX) - SPARE),
      last = Math.min(count, Math.ceil((this.view.scrollTop + this.view.clientHeight) / ROW_PX) + SPARE);
    const shown = [];
    for (let i = first; i < last; i++) shown.push(this.rowAt(i));
    if (first) shown.unshift(space(first));
    if (last < count) shown.push(space(count - last));
    if (!count) shown.push(make("tr", {}, make("td", { colSpan: COLUMNS, className: "muted" }, ...this.empty())));
    keepFocus(this.body, () => this.body.replaceChildren(...shown));
    this.need(Math.max(0, first - this.heads.length), Math.max(0, last - this.heads.length));
  }
  rowAt(i) {
    const item = i < this.heads.length ? this.heads[i] : this.rows[i - this.heads.length];
    if (!item) return make("tr", { className: "wait" }, make("td", { colSpan: COLUMNS, text: "…" }));
    if (!this.made.has(item)) this.made.set(item, item.make?.() ?? this.row(item));
    return this.made.get(item);
  }
}

/** Gives the focus back to the element that stands for the one that had it. */
function keepFocus(root, change) {
  const before = root.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  change();
  if (before) root.querySelector(`[data-focus="${CSS.escape(before)}"]`)?.focus({ preventScroll: true });
}

/** Stands for rows that are out of view. */
function space(rows) {
  const cell = make("td", { colSpan: COLUMNS }),
    made = make("tr", { className: "space", ariaHidden: "true" }, cell);
  cell.style.height = `${rows * ROW_PX}px`;
  return made;
}
