// Parallel coordinates: an axis per parameter, a line per trial, in the colour of its result. Ranges of an axis are chosen
// by dragging along it or with the arrow keys; lines outside of them fade.
import { css, cut, Plot, svg } from "./canvas.js";
import { short } from "./scales.js";

const NEAR = 9,
  ZONE = 30,
  LEAST = 78;

export class Parallel extends Plot {
  height = 330;
  room = { top: 44, bottom: 20, left: 52, right: 56 };

  // shown: {axes, count, place(axis, i), colour(i), passes(i), order, hover, pinned, brush}; tell: {hover, pin, brush}
  constructor(box, shown, tell) {
    super(box, "Parallel coordinates of the trials; the table below has the same data");
    Object.assign(this, { shown, tell, drag: null });
    this.svg.addEventListener("pointermove", (event) => this.move(event));
    this.svg.addEventListener("pointerdown", (event) => this.down(event));
    this.svg.addEventListener("pointerleave", () => {
      if (!this.drag) tell.hover(null);
    });
    for (const kind of ["pointerup", "pointercancel"]) this.svg.addEventListener(kind, () => this.up());
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }

  least() {
    return this.room.left + this.room.right + (this.shown.axes.length - 1) * LEAST;
  }

  x(axis) {
    const { left, right } = this.room,
      parts = Math.max(1, this.shown.axes.length - 1);
    return left + (axis * (this.size.width - left - right)) / parts;
  }

  y(place) {
    return this.room.top + (1 - place) * (this.size.height - this.room.top - this.room.bottom);
  }

  /** Converts a point of the plot to a position on an axis. */
  placeAt(y) {
    return Math.min(1, Math.max(0, 1 - (y - this.room.top) / (this.size.height - this.room.top - this.room.bottom)));
  }

  paint(pen) {
    const { shown } = this,
      faint = css("--line-strong");
    pen.lineJoin = "round";
    const fading = shown.brush.size > 0,
      alpha = shown.count > 400 ? 0.45 : shown.count > 100 ? 0.65 : 0.85;
    for (const i of shown.order) if (!shown.passes(i)) this.line(pen, i, faint, 0.22, 1);
    for (const i of shown.order) if (shown.passes(i)) this.line(pen, i, shown.colour(i), fading ? 0.95 : alpha, 1.4);
    this.frames();
    this.ranges();
  }

  mark(pen) {
    const strong = css("--text");
    for (const i of [this.shown.pinned, this.shown.hover]) {
      if (i === null) continue;
      this.line(pen, i, strong, 1, 5);
      this.line(pen, i, this.shown.colour(i), 1, 2.6);
    }
  }

  line(pen, i, colour, alpha, width) {
    pen.globalAlpha = alpha;
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    pen.beginPath();
    let open = false;
    this.shown.axes.forEach((axis, k) => {
      const place = this.shown.place(k, i);
      if (place === null) {
        open = false;
        return;
      }
      if (open) pen.lineTo(this.x(k), this.y(place));
      else pen.moveTo(this.x(k), this.y(place));
      open = true;
    });
    pen.stroke();
  }

  /** Axes, their names and handles. They are kept while nothing of them changes: the user may be dragging one. */
  frames() {
    const { axes } = this.shown,
      { width, height } = this.size;
    const shape = JSON.stringify([width, height, axes.map(({ name, ticks }) => [name, ticks])]);
    if (shape === this.shape) return;
    this.shape = shape;
    const held = document.activeElement?.dataset?.handle,
      letters = Math.floor(width / Math.max(2, axes.length) / 7.2);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(...axes.map((axis, k) => this.axis(axis, k, letters)));
    if (held) this.svg.querySelector(`[data-handle="${held}"]`)?.focus();
  }

  axis(axis, k, letters) {
    const x = this.x(k),
      last = k === this.shown.axes.length - 1,
      side = last ? 1 : -1;
    const name = svg(
      "text",
      {
        class: "axis-name",
        x,
        y: 16,
        "text-anchor": k === 0 ? "start" : last ? "end" : "middle",
        dx: k === 0 ? -38 : last ? 42 : 0,
      },
      cut(axis.name, letters),
    );
    name.append(svg("title", {}, axis.name));
    const ticks = axis.ticks.map(({ at, text }) =>
      svg(
        "text",
        {
          class: "tick",
          x: x + side * 8,
          y: this.y(at) + 4,
          "text-anchor": last ? "start" : "end",
        },
        cut(text, last ? 9 : k === 0 ? 8 : Math.min(letters, 9)),
      ),
    );
    const marks = axis.ticks.map(({ at }) =>
      svg("line", { class: "mark", x1: x, x2: x + side * 5, y1: this.y(at), y2: this.y(at) }),
    );
    const zone = svg("rect", {
      class: "zone",
      "data-axis": k,
      x: x - ZONE / 2,
      y: this.y(1) - 8,
      width: ZONE,
      height: this.y(0) - this.y(1) + 16,
    });
    const range = svg("rect", { class: "range", "data-range": k, x: x - 6, width: 12 });
    const handles = ["low", "high"].map((end) =>
      svg("path", {
        class: "handle",
        role: "slider",
        tabindex: 0,
        "data-handle": `${k} ${end}`,
        "aria-orientation": "vertical",
        "aria-valuemin": 0,
        "aria-valuemax": 100,
        "aria-label": `${axis.name}: ${end === "low" ? "lowest" : "highest"} shown`,
        d: end === "low" ? "M-7 0h14v3h-5l-2 5-2-5h-5z" : "M-7 0h14v-3h-5l-2-5-2 5h-5z",
      }),
    );
    return svg(
      "g",
      {},
      svg("line", { class: "axis", x1: x, x2: x, y1: this.y(0), y2: this.y(1) }),
      ...marks,
      ...ticks,
      name,
      range,
      zone,
      ...handles,
    );
  }

  /** Positions of the chosen ranges. */
  ranges() {
    this.shown.axes.forEach((axis, k) => {
      const chosen = this.shown.brush.get(axis.name),
        [low, high] = chosen ?? [0, 1];
      const range = this.svg.querySelector(`[data-range="${k}"]`);
      range.toggleAttribute("hidden", !chosen);
      range.setAttribute("y", this.y(high));
      range.setAttribute("height", Math.max(2, this.y(low) - this.y(high)));
      for (const [end, place] of [
        ["low", low],
        ["high", high],
      ]) {
        const handle = this.svg.querySelector(`[data-handle="${k} ${end}"]`);
        handle.setAttribute("transform", `translate(${this.x(k)} ${this.y(place)})`);
        handle.setAttribute("aria-valuenow", Math.round(100 * place));
        handle.setAttribute(
          "aria-valuetext",
          short(axis.value(axis.isWords ? place - (end === "high" ? 1e-9 : 0) : place)),
        );
        handle.classList.toggle("set", Boolean(chosen));
      }
    });
  }

  nearest([x, y]) {
    const { axes, count } = this.shown;
    if (axes.length < 2) return null;
    const k = Math.min(axes.length - 2, Math.max(0, Math.floor((x - this.room.left) / (this.x(1) - this.x(0)))));
    const part = (x - this.x(k)) / (this.x(k + 1) - this.x(k));
    let found = null,
      least = NEAR;
    for (let i = 0; i < count; i += 1) {
      const a = this.shown.place(k, i),
        b = this.shown.place(k + 1, i);
      if (a === null || b === null || !this.shown.passes(i)) continue;
      const away = Math.abs(this.y(a + (b - a) * part) - y);
      if (away < least) {
        least = away;
        found = i;
      }
    }
    return found;
  }

  move(event) {
    if (!this.size) return;
    const at = this.where(event);
    if (!this.drag) return this.tell.hover(this.nearest(at), event);
    const { axis, from } = this.drag,
      place = this.placeAt(at[1]);
    this.drag.moved ||= Math.abs(place - from) > 0.02;
    if (this.drag.moved) this.choose(axis, Math.min(from, place), Math.max(from, place));
  }

  down(event) {
    const handle = event.target.dataset.handle,
      axis = handle ? Number(handle.split(" ")[0]) : Number(event.target.dataset.axis ?? -1);
    if (axis < 0) return this.tell.pin(this.nearest(this.where(event)));
    const [low, high] = this.shown.brush.get(this.shown.axes[axis].name) ?? [0, 1];
    const from = handle ? (handle.endsWith("low") ? high : low) : this.placeAt(this.where(event)[1]);
    this.drag = { axis, from, moved: Boolean(handle) };
    this.svg.setPointerCapture(event.pointerId);
    this.tell.hover(null);
  }

  up() {
    if (this.drag && !this.drag.moved) this.choose(this.drag.axis, 0, 1);
    this.drag = null;
  }

  key(event) {
    const handle = event.target.dataset.handle;
    if (!handle) return;
    const [k, end] = handle.split(" "),
      axis = this.shown.axes[k],
      [low, high] = this.shown.brush.get(axis.name) ?? [0, 1];
    const by = axis.step * (event.shiftKey ? 5 : 1),
      now = end === "low" ? low : high;
    const next = {
      ArrowUp: now + by,
      ArrowRight: now + by,
      ArrowDown: now - by,
      ArrowLeft: now - by,
      Home: end === "low" ? 0 : low,
      End: end === "low" ? high : 1,
    }[event.key];
    if (event.key === "Escape") this.choose(k, 0, 1);
    else if (next === undefined) return;
    else if (end === "low") this.choose(k, Math.min(high, Math.max(0, next)), high);
    else this.choose(k, low, Math.max(low, Math.min(1, next)));
    event.preventDefault();
  }

  choose(k, low, high) {
    const { name } = this.shown.axes[k];
    if (low <= 0 && high >= 1) this.shown.brush.delete(name);
    else this.shown.brush.set(name, [low, high]);
    this.tell.brush();
  }
}
