// Logs of several ranks side by side. Each column reads its own rank; scrolling one brings the others to the same time.
import { make } from "./dom.js";

const MOST = 4,
  LINES = 3000,
  EVERY_MS = 400;

/** `ask(what, params)` reads lines, `row(line, place)` makes one, `count` is the number of ranks. */
export class Ranks {
  constructor(box, { ask, row, count }) {
    Object.assign(this, { box, ask, row, count, columns: [], leading: null, timer: null });
    box.replaceChildren();
    box.classList.add("beside");
  }

  /** Fills the columns; returns the position from which the log can be followed. */
  async start() {
    const shown = Array.from({ length: Math.min(this.count, MOST) }, (_, rank) => this.add(rank));
    const cursors = await Promise.all(shown.map((column) => this.fill(column)));
    return Math.min(...cursors);
  }

  add(rank) {
    const select = make("select", { ariaLabel: `Rank in column ${this.columns.length + 1}` });
    for (let n = 0; n < this.count; n++) select.append(new Option(`rank ${n}`, n, n === rank, n === rank));
    const lines = make("div", { className: "lines", tabIndex: 0, role: "group", ariaLabel: `Log of rank ${rank}` });
    const column = { rank, lines, next: 0, part: make("section", {}, make("header", {}, select), lines) };
    lines.setAttribute("role", "group");
    select.addEventListener("change", () => {
      column.rank = Number(select.value);
      lines.ariaLabel = `Log of rank ${column.rank}`;
      this.fill(column);
    });
    for (const kind of ["pointerenter", "focusin", "wheel", "touchstart"])
      lines.addEventListener(kind, () => (this.leading = column), { passive: true });
    lines.addEventListener("scroll", () => {
      if (this.leading === column) this.align(column);
    });
    this.columns.push(column);
    this.box.append(column.part);
    return column;
  }

  async fill(column) {
    const slice = await this.ask("lines", { rank: column.rank });
    column.lines.replaceChildren();
    this.put(column, slice);
    if (!slice.lines.length) column.lines.append(make("p", { className: "none", text: "Nothing was logged yet." }));
    column.lines.scrollTop = column.lines.scrollHeight;
    return slice.cursor;
  }
  put(column, slice) {
    const { lines } = column;
    column.next = slice.next;
    if (!slice.lines.length) return;
    lines.querySelector(".none")?.remove();
    for (const [i, line] of slice.lines.entries())
      lines.append(Object.assign(this.row(line, slice.places[i]), { at: line.at }));
    while (lines.childElementCount > LINES) lines.firstElementChild.remove();
  }

  /** Reads what is new in each column, soon. */
  soon() {
    this.timer ??= setTimeout(async () => {
      try {
        await Promise.all(this.columns.map((column) => this.more(column)));
      } catch {
        /* the next lines bring these, too */
      }
      this.timer = null;
    }, EVERY_MS);
  }
  async more(column) {
    const { lines } = column,
      atEnd = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 40;
    this.put(column, await this.ask("lines", { rank: column.rank, after: column.next }));
    if (atEnd) lines.scrollTop = lines.scrollHeight;
  }

  /** Brings the other columns to the time of the last line that is seen in this one. */
  align({ lines }) {
    const bottom = lines.scrollTop + lines.clientHeight;
    const seen = [...lines.children].findLast((row) => row.offsetTop < bottom - 4);
    if (!seen?.at) return;
    for (const other of this.columns) {
      if (other.lines === lines) continue;
      const row = [...other.lines.children].findLast(({ at }) => at <= seen.at) ?? other.lines.firstElementChild;
      if (row) other.lines.scrollTop = row.offsetTop + row.offsetHeight - other.lines.clientHeight;
    }
  }
}
