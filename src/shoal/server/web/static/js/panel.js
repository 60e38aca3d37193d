// One panel of the chart workspace: lines of one or many runs with uPlot, bands, marks, a tooltip, a legend that hides and isolates.
import { css, icon, make } from "./dom.js";
import { align, nearest, shade, withoutOutliers } from "./lines.js";
import { clock, inZone, zoneName } from "./times.js";
import { seconds, shortNumber } from "./units.js";

const MANY = 12,
  TIP_LINES = 18,
  DOUBLE_MS = 220;
const SYMBOLS = { checkpoint: "◆", restart: "↻", resume: "▶", preempted: "⏸", stalled: "⏳", failed: "✕", note: "✎" };

/** Text of a position on the x axis. */
export function whereText(x, kind, label) {
  return kind === "time" ? clock(x * 1000) : kind === "seconds" ? seconds(x) : `${label} ${shortNumber(x)}`;
}

const logRange = (u, min, max) =>
  min === null ? [0.1, 10] : min === max ? [min / 2, max * 2] : window.uPlot.rangeLog(min, max, 10, true);

export class Panel {
  /** `options`: logX, logY, min, max, cut (outliers), band. `on`: zoomed(range), menu(panel, button), picked(panel, x, line). */
  constructor(title, on) {
    Object.assign(this, {
      on,
      lines: [],
      marks: [],
      options: {},
      xKind: "number",
      xLabel: "step",
      range: null,
      hidden: new Set(),
      height: 222,
      picked: null,
      highlight: null,
    });
    this.card = make("article", { className: "card chart", data: { text: title } });
    this.title = make("h2", { text: title });
    this.latest = make("output");
    this.menu = make(
      "button",
      {
        type: "button",
        className: "btn plain icon-only",
        title: "Options of this chart",
        ariaLabel: `Options of ${title}`,
        ariaHasPopup: "dialog",
        onclick: () => {
          this.hideTip();
          on.menu(this, this.menu);
        },
      },
      icon("more"),
    );
    this.plot = make("div", { className: "plot", role: "img", ariaLabel: title });
    this.plot.setAttribute("role", "img");
    this.legend = make("div", { className: "plot-legend" });
    this.note = make("p", { className: "muted small plot-note", hidden: true });
    this.grip = make("div", { className: "grip", title: "Drag to resize" });
    this.grip.setAttribute("aria-hidden", "true");
    this.card.append(
      make("header", {}, this.title, this.latest, this.menu),
      this.plot,
      this.note,
      this.legend,
      this.grip,
    );
    new ResizeObserver(() => this.u?.setSize(this.size())).observe(this.plot);
    for (const change of ["shoal:theme", "shoal:zone"]) addEventListener(change, () => this.build());
    this.plot.addEventListener("mouseleave", () => {
      if (!this.picked) this.hideTip();
    });
  }

  size() {
    return {
      width: Math.max(200, this.plot.clientWidth - 12),
      height: this.plot.clientHeight > 60 ? this.plot.clientHeight - 6 : this.height,
    };
  }

  /** `lines`: [{key, label, colour, x, mean, low, high, smooth, std, runs, at, attempt, href}] */
  update({ lines = this.lines, options = this.options, xKind = this.xKind, xLabel = this.xLabel, marks = this.marks }) {
    if (xKind !== this.xKind || xLabel !== this.xLabel) {
      this.range = null;
      this.card.classList.remove("zoomed");
    }
    const same = this.u && lines.length && JSON.stringify([options, xKind, lines.map(shape)]) === this.shape;
    Object.assign(this, { lines, options, xKind, xLabel, marks, all: this.range ? this.all : lines });
    this.plot.classList.toggle("none", !lines.length);
    if (!lines.length) {
      this.u?.destroy();
      this.u = null;
    }
    this.shape = JSON.stringify([options, xKind, lines.map(shape)]);
    if (same) this.show(this.data());
    else this.build();
    this.describe();
  }

  describe() {
    const shown = this.shown().filter(({ attempt }) => !attempt),
      ends = shown.map((line) => line.last);
    this.latest.textContent = ends.length === 1 ? shortNumber(ends[0]) : "";
    const points = this.u?.data[0].length ?? 0;
    this.plot.setAttribute(
      "aria-label",
      `${this.card.dataset.text}: ${points} points, ${ends.length > 8 ? `${ends.length} lines` : `last ${ends.map(shortNumber).join(", ")}`}`,
    );
    this.showLegend();
  }

  say(text) {
    this.note.hidden = !text;
    this.note.textContent = text;
  }
  shown() {
    return this.lines.filter(({ key }) => !this.hidden.has(key));
  }
  banded(line) {
    return (
      Boolean(line.low) && !line.attempt && (line.std || (this.options.band !== false && this.shown().length <= MANY))
    );
  }

  /** Lower and upper edge of a line's band: lowest and highest, or the mean of a group ± its standard deviation. */
  bandOf(line) {
    if (!line.std) return [line.low, line.high];
    return [-1, 1].map((sign) => line.mean.map((v, i) => (v === null ? null : v + sign * (line.std[i] ?? 0))));
  }

  /** Columns of each line in the order of the series that `series` makes. */
  data() {
    const clean = (values) => (this.options.logY ? values.map((v) => (v > 0 ? v : null)) : values);
    const parts = this.shown().map((line) => {
      const x = this.options.logX ? line.x.map((v) => (v > 0 ? v : null)) : line.x,
        keep = this.options.logX ? x.map((v, i) => i).filter((i) => x[i] !== null) : null;
      const pick = (values) => clean(keep ? keep.map((i) => values[i]) : values);
      const columns = [];
      if (this.banded(line)) {
        const [low, high] = this.bandOf(line);
        columns.push(pick(high), pick(low));
      }
      if (line.smooth && this.shown().length <= MANY) columns.push(pick(line.mean));
      columns.push(pick(line.smooth ?? line.mean));
      return { x: keep ? keep.map((i) => x[i]) : x, columns };
    });
    return align(parts);
  }

  series() {
    const made = [{}],
      bands = [],
      many = this.shown().length > MANY,
      few = (line) => line.x.length < 3;
    for (const line of this.shown()) {
      const colour = shade(line.colour, css),
        base = { spanGaps: true, points: { show: false } };
      if (line.attempt) {
        made.push({ ...base, stroke: `${colour}88`, width: 1.25, dash: [5, 4] });
        continue;
      }
      if (this.banded(line)) {
        bands.push({ series: [made.length, made.length + 1], fill: `${colour}24` });
        made.push({ ...base, stroke: `${colour}00`, width: 0 }, { ...base, stroke: `${colour}00`, width: 0 });
      }
      if (line.smooth && !many) made.push({ ...base, stroke: `${colour}4d`, width: 1 });
      const bold = this.highlight === line.key;
      made.push({
        ...base,
        stroke: this.highlight && !bold ? `${colour}55` : colour,
        width: bold ? 3 : many ? 1.25 : 2,
        points: { show: few(line) },
      });
    }
    return { made, bands };
  }

  build() {
    if (!window.uPlot || !this.plot.isConnected || !this.lines.length) return;
    const { logX, logY, min, max, cut } = this.options,
      text = css("--muted"),
      grid = { stroke: css("--grid"), width: 1 },
      font = `11px ${css("--sans")}`;
    const ticks =
      this.xKind === "seconds"
        ? (u, values) => values.map(seconds)
        : this.xKind === "time"
          ? undefined
          : (u, values) => values.map((v) => (v === null ? "" : shortNumber(v)));
    const { made, bands } = this.series();
    const fixed = (low, high) => {
      const trimmed = cut ? withoutOutliers(this.shown().map((line) => inRange(line, this.range))) : null;
      const [a, b] = [min ?? trimmed?.[0] ?? low, max ?? trimmed?.[1] ?? high];
      return a < b ? [a, b] : [low, high];
    };
    const y = logY
      ? {
          distr: 3,
          range: (u, low, high) => {
            const [a, b] = fixed(low, high);
            return min !== undefined || max !== undefined || cut ? [a > 0 ? a : low, b] : logRange(u, a, b);
          },
        }
      : {
          range: (u, low, high) => {
            const [a, b] = fixed(low, high),
              auto = window.uPlot.rangeNum(a ?? 0, b ?? 1, 0.08, true);
            return [min ?? (cut && b > a ? a : auto[0]), max ?? (cut && b > a ? b : auto[1])];
          },
        };
    this.u?.destroy();
    this.u = new window.uPlot(
      {
        ...this.size(),
        tzDate: (at) => inZone(at * 1000),
        scales: { x: { time: this.xKind === "time", ...(logX ? { distr: 3 } : {}) }, y },
        axes: [
          { stroke: text, font, grid, ticks: grid, values: ticks, size: this.xKind === "time" ? 46 : 30 },
          {
            stroke: text,
            font,
            grid,
            ticks: grid,
            size: 66,
            values: (u, values) => values.map((v) => (v === null ? "" : shortNumber(v))),
          },
        ],
        series: made,
        bands,
        legend: { show: false },
        cursor: {
          bind: {
            dblclick: () => () => {
              clearTimeout(this.picking);
              this.hideTip();
              this.zoom(null);
              this.on.zoomed(this, null);
            },
          },
          sync: { key: window.uPlot.sync("shoal").key },
          drag: { x: true, y: false },
          points: { show: made.length < 8, size: 6 },
        },
        hooks: {
          setCursor: [
            (u) => {
              this.cursor = u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : null;
              this.showTip();
            },
          ],
          setScale: [
            (u, key) => {
              if (key === "x" && u === this.u) this.scaled(u);
            },
          ],
          draw: [(u) => this.drawMarks(u)],
        },
      },
      this.data(),
      this.plot,
    );
    let down = 0;
    this.u.over.addEventListener("mousedown", ({ clientX }) => {
      down = clientX;
      this.hideTip();
    });
    this.u.over.addEventListener("click", ({ clientX, detail }) => {
      if (detail === 1 && Math.abs(clientX - down) < 4) this.picking = setTimeout(() => this.pick(), DOUBLE_MS);
    });
    if (this.range) this.show(this.data());
  }

  show(data) {
    const range = this.range;
    this.u.setData(data, !range);
    if (range) this.u.setScale("x", { min: range[0], max: range[1] });
  }

  zoom(range) {
    this.range = range;
    this.card.classList.toggle("zoomed", Boolean(range));
    if (!this.u) return;
    if (!range && this.all) this.lines = this.all; // seen at once, until the server has answered
    this.silent = true;
    if (range) this.u.setScale("x", { min: range[0], max: range[1] });
    else this.u.setData(this.data(), true);
    this.silent = false;
  }

  scaled(u) {
    const { min, max } = u.scales.x,
      x = u.data[0];
    if (min === null || x.length < 2 || this.silent) return;
    const [first, last] = this.whole ?? [x[0], x[x.length - 1]];
    const range = min > first || max < last ? [min, max] : null;
    if (String(range) === String(this.range)) return;
    this.range = range;
    this.card.classList.toggle("zoomed", Boolean(range));
    this.on.zoomed(this, range);
  }

  /** Vertical lines with a sign for checkpoints, restarts and the like; a point that was linked to. */
  drawMarks(u) {
    const { ctx, bbox } = u,
      dots = devicePixelRatio || 1;
    this.placed = [];
    for (const mark of this.marks) {
      const at = mark.x;
      if (at === null || at === undefined || at < u.scales.x.min || at > u.scales.x.max) continue;
      const left = u.valToPos(at, "x", true),
        colour = css(
          { failed: "--bad", stalled: "--bad", preempted: "--warn", restart: "--warn", note: "--c3", here: "--accent" }[
            mark.kind
          ] ?? "--ok",
        );
      ctx.save();
      ctx.strokeStyle = colour;
      ctx.fillStyle = colour;
      ctx.globalAlpha = mark.kind === "checkpoint" ? 0.45 : 0.85;
      ctx.setLineDash(mark.kind === "here" ? [] : [3 * dots, 3 * dots]);
      ctx.lineWidth = dots;
      ctx.beginPath();
      ctx.moveTo(left, bbox.top);
      ctx.lineTo(left, bbox.top + bbox.height);
      ctx.stroke();
      ctx.globalAlpha = 1;
      ctx.font = `${11 * dots}px sans-serif`;
      ctx.textAlign = "center";
      ctx.fillText(SYMBOLS[mark.kind] ?? "", left, bbox.top + 10 * dots);
      ctx.restore();
      this.placed.push({ left: left / dots - u.bbox.left / dots, mark });
    }
  }

  /** A click keeps the tooltip and offers what can be done at this point. */
  pick() {
    if (this.cursor === null || this.cursor === undefined) return;
    this.picked = this.cursor;
    this.showTip(true);
  }

  /** Lines at x, the highest first: [{line, index}]. */
  at(x) {
    const found = [];
    for (const line of this.shown()) {
      const index = nearest(line.x, x);
      if (index < 0 || x < line.x[0] - gap(line) || x > line.x.at(-1) + gap(line)) continue;
      const value = (line.smooth ?? line.mean)[index];
      if (value !== null && value !== undefined) found.push({ line, index, value });
    }
    return found.sort((a, b) => b.value - a.value);
  }

  showTip(isKept = false) {
    const { u } = this,
      x = isKept ? this.picked : this.cursor;
    if (this.picked !== null && !isKept) return;
    if (x === null || x === undefined || (!isKept && !this.plot.matches(":hover"))) return void this.hideTip();
    const found = this.at(x),
      tip = (Panel.tip ??= document.body.appendChild(make("div", { className: "tip chart-tip" })));
    const y = u.posToVal(u.cursor.top, "y"),
      near = found.reduce(
        (best, one) => (!best || Math.abs(one.value - y) < Math.abs(best.value - y) ? one : best),
        null,
      );
    const first = Math.max(0, Math.min(found.indexOf(near) - TIP_LINES / 2, found.length - TIP_LINES));
    const rows = found.slice(first, first + TIP_LINES).map(({ line, index, value }) => {
      const swatch = make("i");
      swatch.style.background = shade(line.colour, css);
      const spread =
        line.std?.[index] !== null && line.std?.[index] !== undefined
          ? ` ± ${shortNumber(line.std[index])}`
          : line.low && !line.std
            ? ` (${shortNumber(line.low[index])} to ${shortNumber(line.high[index])})`
            : "";
      return make(
        "div",
        { className: line === near?.line ? "row near" : "row" },
        swatch,
        make("b", { text: shortNumber(value) }),
        make("span", { text: `${spread} ${line.label}${line.attempt ? `, attempt ${line.attempt}` : ""}` }),
      );
    });
    if (found.length > TIP_LINES) rows.push(make("span", { text: `and ${found.length - TIP_LINES} more` }));
    const place = near ? near.line.x[near.index] : x;
    const marks = (this.placed ?? [])
      .filter(({ left }) => Math.abs(left - u.cursor.left) < 5)
      .slice(0, 4)
      .map(({ mark }) => make("span", { text: `${SYMBOLS[mark.kind] ?? ""} ${mark.text}` }));
    tip.replaceChildren(make("b", { text: whereText(place, this.xKind, this.xLabel) }), ...marks, ...rows);
    tip.classList.toggle("kept", isKept);
    if (isKept && near) tip.append(...this.on.offers(this, near.line, near.index));
    tip.hidden = !found.length && !marks.length;
    Panel.tipOf = this;
    tip.style.left = "0"; // its width is measured where it has room
    const box = u.over.getBoundingClientRect(),
      left = box.left + (isKept ? u.valToPos(x, "x") : u.cursor.left);
    tip.style.left = `${Math.max(8, left + 14 + tip.offsetWidth > innerWidth ? left - tip.offsetWidth - 14 : left + 14)}px`;
    tip.style.top = `${Math.max(8, Math.min(box.top + 10, innerHeight - tip.offsetHeight - 8))}px`;
  }

  hideTip() {
    this.picked = null;
    if (Panel.tip && Panel.tipOf === this) Panel.tip.hidden = true;
  }

  /** A click on a legend entry hides its line or shows it again; with Alt or Shift, or a double-click, it is shown alone. */
  showLegend() {
    const lines = this.lines.filter(({ attempt }) => !attempt),
      hints = [];
    const some = lines.slice(0, 24);
    const items =
      lines.length < 2
        ? []
        : some.map((line) => {
            const swatch = make("i"),
              off = this.hidden.has(line.key);
            swatch.style.background = shade(line.colour, css);
            const made = make(
              "button",
              {
                type: "button",
                className: off ? "key off" : "key",
                title: "Click: hide or show. Double-click: show alone.",
                ariaPressed: String(!off),
              },
              swatch,
              make("span", { text: `${line.label} ${shortNumber(line.last)}` }),
            );
            made.addEventListener("click", (event) =>
              event.altKey || event.shiftKey ? this.isolate(line.key) : this.toggle(line.key),
            );
            made.addEventListener("dblclick", () => this.isolate(line.key));
            made.addEventListener("mouseenter", () => this.emphasise(line.key));
            made.addEventListener("mouseleave", () => this.emphasise(null));
            return made;
          });
    if (lines.length > some.length) hints.push(`and ${lines.length - some.length} more`);
    if (this.xKind === "time" && this.u?.data[0].length) hints.push(zoneName(this.u.data[0].at(-1) * 1000));
    if (lines.length === 1 && lines[0].smooth) hints.push("faint: not smoothed");
    if (this.shown().some((line) => this.banded(line)))
      hints.push(lines.some(({ std }) => std) ? "band: ± standard deviation" : "band: lowest to highest");
    if (this.lines.length > lines.length) hints.push("dashed: overwritten");
    this.legend.replaceChildren(...items, ...hints.map((text) => make("span", { text })));
  }
  toggle(key) {
    if (this.hidden.has(key)) this.hidden.delete(key);
    else this.hidden.add(key);
    this.redraw();
  }
  isolate(key) {
    const others = this.lines.filter((line) => line.key !== key).map((line) => line.key),
      alone = others.every((other) => this.hidden.has(other)) && !this.hidden.has(key);
    this.hidden = new Set(alone ? [] : others);
    this.redraw();
  }
  emphasise(key) {
    if (this.highlight === key || this.shown().length < 3) return;
    this.highlight = key;
    this.build();
  }
  redraw() {
    this.build();
    this.describe();
  }
}

const shape = ({ key, colour, low, smooth, std, attempt, x }) => [
  key,
  colour,
  !low,
  !smooth,
  !std,
  attempt,
  x.length < 3,
];
const gap = (line) => (line.x.length > 1 ? (line.x.at(-1) - line.x[0]) / line.x.length : 1);
const inRange = (line, range) =>
  range ? line.mean.filter((v, i) => line.x[i] >= range[0] && line.x[i] <= range[1]) : line.mean;
