// Trials as dots: a value of theirs on the x axis, their result on the y axis; optionally with a line through them.
import { css, cut, Plot, svg } from "./canvas.js";

const NEAR = 14;
const HOLLOW = new Set(["pruned", "stopped", "running"]);

export class Scatter extends Plot {
  height = 260;
  room = { top: 12, bottom: 40, left: 62, right: 16 };

  // shown: as for Parallel, with {result, results, states}; of: {across() → scale, place(i), line() → [[place, result], …]}
  constructor(box, label, shown, tell, of) {
    super(box, label);
    this.svg.setAttribute("role", "img");
    Object.assign(this, { shown, tell, of });
    this.svg.addEventListener("pointermove", (event) => tell.hover(this.nearest(this.where(event)), event));
    this.svg.addEventListener("pointerleave", () => tell.hover(null));
    this.svg.addEventListener("pointerdown", (event) => tell.pin(this.nearest(this.where(event))));
  }

  spot(across, result) {
    const up = this.shown.result.at(result);
    if (across === null || up === null || !this.size) return null;
    const { top, bottom, left, right } = this.room;
    return [left + across * (this.size.width - left - right), top + (1 - up) * (this.size.height - top - bottom)];
  }

  paint(pen) {
    const { shown } = this;
    this.frames(pen);
    const line = this.of.line?.() ?? [];
    if (line.length) this.steps(pen, line);
    const radius = this.radius(),
      faint = css("--line-strong");
    for (const i of shown.order) if (!shown.passes(i)) this.dot(pen, i, radius, faint, 0.4);
    for (const i of shown.order) if (shown.passes(i)) this.dot(pen, i, radius, shown.colour(i), 0.9);
  }

  mark(pen) {
    for (const i of [this.shown.pinned, this.shown.hover]) {
      if (i === null) continue;
      this.dot(pen, i, this.radius() + 4, css("--text"), 1);
      this.dot(pen, i, this.radius() + 2, this.shown.colour(i), 1);
    }
  }

  radius() {
    return this.shown.count > 400 ? 2.4 : 4;
  }

  dot(pen, i, radius, colour, alpha) {
    const spot = this.spot(this.of.place(i), this.shown.results[i]);
    if (!spot) return;
    pen.globalAlpha = alpha;
    pen.beginPath();
    pen.arc(...spot, radius, 0, 2 * Math.PI);
    if (HOLLOW.has(this.shown.states[i])) {
      Object.assign(pen, { strokeStyle: colour, lineWidth: 1.5 });
      pen.stroke();
    } else {
      pen.fillStyle = colour;
      pen.fill();
    }
  }

  /** The best result stays until a better one comes: a step line. */
  steps(pen, line) {
    Object.assign(pen, { strokeStyle: css("--accent"), lineWidth: 2, globalAlpha: 1 });
    pen.beginPath();
    let before = null;
    for (const [place, result] of line) {
      const spot = this.spot(place, result);
      if (!spot) continue;
      if (before) pen.lineTo(spot[0], before[1]);
      if (before) pen.lineTo(...spot);
      else pen.moveTo(...spot);
      before = spot;
    }
    if (before) pen.lineTo(this.size.width - this.room.right, before[1]);
    pen.stroke();
  }

  frames(pen) {
    const { width, height } = this.size,
      { top, bottom, left, right } = this.room,
      across = this.of.across(),
      parts = [];
    Object.assign(pen, { strokeStyle: css("--grid"), lineWidth: 1, globalAlpha: 1 });
    pen.beginPath();
    const letters = Math.max(3, Math.floor((width - left - right) / Math.max(1, across.ticks.length) / 6.6));
    for (const { at, text } of this.shown.result.ticks) {
      const y = top + (1 - at) * (height - top - bottom);
      pen.moveTo(left, y);
      pen.lineTo(width - right, y);
      parts.push(svg("text", { class: "tick", x: left - 8, y: y + 4, "text-anchor": "end" }, cut(text, 8)));
    }
    for (const { at, text } of across.ticks) {
      const x = left + at * (width - left - right);
      pen.moveTo(x, top);
      pen.lineTo(x, height - bottom);
      parts.push(
        svg("text", { class: "tick", x, y: height - bottom + 16, "text-anchor": "middle" }, cut(text, letters)),
      );
    }
    pen.stroke();
    parts.push(
      svg(
        "text",
        { class: "axis-name", x: width - right, y: height - 8, "text-anchor": "end" },
        `${across.name}${across.log ? " (log)" : ""}`,
      ),
    );
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(...parts);
  }

  nearest([x, y]) {
    let found = null,
      least = NEAR;
    for (let i = 0; i < this.shown.count; i += 1) {
      const spot = this.spot(this.of.place(i), this.shown.results[i]);
      const away = spot && this.shown.passes(i) ? Math.hypot(spot[0] - x, spot[1] - y) : Infinity;
      if (away < least) {
        least = away;
        found = i;
      }
    }
    return found;
  }
}
