// uPlot in the console's colours: one card per chart, a faint raw line under a smoothed one, zoom by dragging, linked cursors.
import { clock, inZone, zoneName } from "./times.js";
import { seconds, shortNumber } from "./units.js";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const sync = () => (window.uPlot ? window.uPlot.sync("shoal") : null);
export const colours = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8"];

/** Merges series with separate x values ({label, at, values, smooth: {at, values}}) over one common x, with gaps. */
export function align(series) {
  const x = [...new Set(series.flatMap((s) => [...s.at, ...(s.smooth?.at ?? [])]))].sort((a, b) => a - b);
  const place = new Map(x.map((v, i) => [v, i]));
  const spread = (at, values) => {
    const out = Array(x.length).fill(null);
    at.forEach((v, i) => {
      out[place.get(v)] = values[i];
    });
    return out;
  };
  return {
    x,
    series: series.map(({ at, values, smooth, ...rest }) => ({
      ...rest,
      values: spread(at, values),
      smooth: smooth ? spread(smooth.at, smooth.values) : null,
    })),
  };
}

// Key of the set of lines; when it changes, the chart is rebuilt.
const shape = ({ log, xKind, series }) =>
  JSON.stringify([log, xKind, series.map((s) => [s.label, s.ghost, s.colour, !s.smooth])]);

/** A constant line needs a range around it, or nothing is drawn. */
const logRange = (u, min, max) =>
  min === null ? [0.1, 10] : min === max ? [min / 2, max * 2] : window.uPlot.rangeLog(min, max, 10, true);

const place = (s, i) => (s.colour ?? i) % colours.length;
function hint(text) {
  const span = document.createElement("span");
  span.textContent = text;
  return span;
}

export class Chart {
  // series: [{label, values, smooth}] over one x, in the colour of their place or of `colour`; a `ghost` is drawn dashed, as logged.
  // `smooth` comes from the server, which sees all points; smoothing the lowest and highest few drawn here would give other curves.
  // format: of values; xKind: "number" | "seconds" | "time"
  constructor(title, { format = shortNumber } = {}) {
    this.format = format;
    this.state = { x: [], series: [], log: false, xKind: "number", xLabel: "" };
    this.range = null; // [first x, last x] while zoomed
    this.zoomed = () => {}; // called when the range has changed
    this.card = document.createElement("article");
    this.card.className = "card chart";
    this.card.dataset.text = title;
    const header = document.createElement("header"),
      h = document.createElement("h2");
    h.textContent = title;
    this.latest = document.createElement("output");
    header.append(h, this.latest);
    this.plot = document.createElement("div");
    this.plot.className = "plot";
    this.plot.setAttribute("role", "img");
    this.plot.setAttribute("aria-label", title);
    this.legend = document.createElement("div");
    this.legend.className = "plot-legend";
    this.card.append(header, this.plot, this.legend);
    new ResizeObserver(() => this.u?.setSize(this.size())).observe(this.plot);
    for (const change of ["shoal:theme", "shoal:zone"]) addEventListener(change, () => this.build());
  }

  size() {
    return { width: Math.max(200, this.plot.clientWidth - 12), height: 222 };
  }

  update(next) {
    const before = this.state,
      state = (this.state = { ...before, ...next });
    if (before.xKind !== state.xKind) this.range = null;
    if (!this.u || shape(before) !== shape(state)) this.build();
    else this.show(this.data());
    const ends = state.series.filter((s) => !s.ghost).map((s) => s.values.findLast((v) => v !== null));
    this.latest.textContent = ends.length === 1 ? this.format(ends[0]) : "";
    this.plot.setAttribute(
      "aria-label",
      `${this.card.dataset.text}: ${state.x.length} points, last ${ends.map(this.format).join(", ")}`,
    );
    this.showLegend(null);
  }

  show(data) {
    const range = this.range;
    this.u.setData(data, !range);
    if (range) this.u.setScale("x", { min: range[0], max: range[1] }); // also fits the y axis to what is in the range now
  }

  scaled(u) {
    const { min, max } = u.scales.x,
      x = u.data[0];
    if (min === null || x.length < 2) return;
    const range = min > x[0] || max < x[x.length - 1] ? [min, max] : null;
    if (String(range) === String(this.range)) return;
    this.range = range;
    this.card.classList.toggle("zoomed", Boolean(range));
    this.zoomed();
  }

  data() {
    const { x, series, log } = this.state;
    const clean = (values) => (log ? values.map((v) => (v > 0 ? v : null)) : values);
    const lines = [];
    for (const s of series) {
      lines.push(clean(s.values));
      if (s.smooth) lines.push(clean(s.smooth));
    }
    return [x, ...lines];
  }

  lines() {
    const out = [];
    this.state.series.forEach((s, i) => {
      const colour = css(colours[place(s, i)]);
      if (s.ghost)
        return void out.push({
          label: s.label,
          stroke: colour + "88",
          width: 1.25,
          dash: [5, 4],
          spanGaps: true,
          points: { show: false },
        });
      if (s.smooth)
        out.push({ label: `${s.label} raw`, stroke: colour + "55", width: 1, spanGaps: true, points: { show: false } });
      out.push({ label: s.label, stroke: colour, width: 2, spanGaps: true, points: { show: this.state.x.length < 3 } });
    });
    return out;
  }

  build() {
    if (!window.uPlot || !this.plot.isConnected) return;
    const { log, xKind } = this.state,
      text = css("--muted"),
      grid = { stroke: css("--grid"), width: 1 };
    const font = `11px ${css("--sans")}`;
    const ticks =
      xKind === "seconds"
        ? (u, vals) => vals.map(seconds)
        : xKind === "time"
          ? undefined
          : (u, vals) => vals.map((v) => shortNumber(v));
    this.u?.destroy();
    this.u = new window.uPlot(
      {
        ...this.size(),
        tzDate: (at) => inZone(at * 1000),
        scales: { x: { time: xKind === "time" }, y: log ? { distr: 3, range: logRange } : {} },
        axes: [
          { stroke: text, font, grid, ticks: grid, values: ticks, size: xKind === "time" ? 46 : 30 },
          {
            stroke: text,
            font,
            grid,
            ticks: grid,
            size: 66,
            values: (u, vals) => vals.map((v) => (v === null ? "" : this.format(v))),
          },
        ],
        series: [{}, ...this.lines()],
        legend: { show: false },
        cursor: { sync: { key: sync()?.key ?? "shoal" }, drag: { x: true, y: false }, points: { size: 6 } },
        hooks: {
          setCursor: [(u) => this.showLegend(u.cursor.idx)],
          setScale: [
            (u, key) => {
              if (key === "x" && u === this.u) this.scaled(u);
            },
          ],
        },
      },
      this.data(),
      this.plot,
    );
    if (this.range) this.show(this.data());
  }

  showLegend(index) {
    const { x, series, xKind, xLabel } = this.state;
    const at = index ?? x.length - 1;
    // Lines without a value at this x show the nearest earlier one.
    const value = (s) => s.values.slice(0, at + 1).findLast((v) => v !== null);
    const parts = [];
    if (index !== null && x[at] !== undefined) {
      const where = document.createElement("span");
      where.textContent =
        xKind === "time"
          ? clock(x[at] * 1000)
          : xKind === "seconds"
            ? seconds(x[at])
            : `${xLabel} ${shortNumber(x[at])}`;
      parts.push(where);
    }
    const lines = series.filter((s) => !s.ghost);
    lines.forEach((s, i) => {
      const item = document.createElement("span"),
        mark = document.createElement("i");
      item.className = `k${place(s, i) + 1}`;
      item.append(mark, `${s.label} ${index === null && lines.length === 1 ? "" : this.format(value(s))}`);
      parts.push(item);
    });
    if (index === null) {
      if (xKind === "time" && x.length) parts.push(hint(zoneName(x.at(-1) * 1000)));
      if (lines.length === 1 && lines[0].smooth) parts.push(hint("faint: as logged"));
      if (lines.length < series.length) parts.push(hint("dashed: overwritten by a later attempt"));
    }
    this.legend.replaceChildren(...parts);
  }
}
