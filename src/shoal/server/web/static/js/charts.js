// uPlot in our colours: one card per chart, a faint raw line under a smoothed one, zoom by dragging, cursors in step.

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const sync = () => (window.uPlot ? window.uPlot.sync("shoal") : null);
export const colours = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8"];

export function shortNumber(v) {
  if (v === null || v === undefined || Number.isNaN(v)) return "–";
  const a = Math.abs(v);
  if (a !== 0 && (a < 1e-3 || a >= 1e6)) return v.toExponential(2);
  return String(Number(v.toPrecision(4)));
}
export function bytes(v) {
  if (v === null || v === undefined) return "–";
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) { if (Math.abs(v) < 1000) return `${Number(v.toPrecision(4))} ${unit}`; v /= 1000; }
  return `${Number(v.toPrecision(3))} PB`;
}
export function seconds(v) {
  if (v === null || v === undefined) return "–";
  if (v < 60) return `${Math.round(v)} s`;
  if (v < 3600) return `${Number((v / 60).toPrecision(3))} min`;
  return `${Number((v / 3600).toPrecision(3))} h`;
}

/** Series with an x of their own each ({label, at, values, smooth: {at, values}}) over one x for all, gaps between. */
export function align(series) {
  const x = [...new Set(series.flatMap((s) => [...s.at, ...(s.smooth?.at ?? [])]))].sort((a, b) => a - b);
  const place = new Map(x.map((v, i) => [v, i]));
  const spread = (at, values) => {
    const out = Array(x.length).fill(null);
    at.forEach((v, i) => { out[place.get(v)] = values[i]; });
    return out;
  };
  return {
    x,
    series: series.map(({ at, values, smooth, ...rest }) => ({ ...rest, values: spread(at, values), smooth: smooth ? spread(smooth.at, smooth.values) : null })),
  };
}

// Which lines there are; when that changes, the chart is built anew.
const shape = ({ log, xKind, series }) => JSON.stringify([log, xKind, series.map((s) => [s.label, s.ghost, s.colour, !s.smooth])]);

/** A line that is level needs room around it, or nothing is drawn. */
const logRange = (u, min, max) => (min === null ? [0.1, 10] : min === max ? [min / 2, max * 2] : window.uPlot.rangeLog(min, max, 10, true));

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
    this.card = document.createElement("article");
    this.card.className = "card chart";
    this.card.dataset.text = title;
    const header = document.createElement("header"), h = document.createElement("h2");
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
    addEventListener("shoal:theme", () => this.build());
  }

  size() { return { width: Math.max(200, this.plot.clientWidth - 12), height: 222 }; }

  update(next) {
    const before = this.state, state = this.state = { ...before, ...next };
    if (!this.u || shape(before) !== shape(state)) this.build(); else {
      const zoomed = this.zoomed();
      this.u.setData(this.data(), !zoomed);
      if (zoomed) this.u.redraw();
    }
    const ends = state.series.filter((s) => !s.ghost).map((s) => s.values.findLast((v) => v !== null));
    this.latest.textContent = ends.length === 1 ? this.format(ends[0]) : "";
    this.plot.setAttribute("aria-label", `${this.card.dataset.text}: ${state.x.length} points, last ${ends.map(this.format).join(", ")}`);
    this.showLegend(null);
  }

  zoomed() {
    const { min, max } = this.u.scales.x, x = this.u.data[0];
    return x.length > 1 && min !== null && (min > x[0] || max < x[x.length - 1]);
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
      if (s.ghost) return void out.push({ label: s.label, stroke: colour + "88", width: 1.25, dash: [5, 4], spanGaps: true, points: { show: false } });
      if (s.smooth) out.push({ label: `${s.label} raw`, stroke: colour + "55", width: 1, spanGaps: true, points: { show: false } });
      out.push({ label: s.label, stroke: colour, width: 2, spanGaps: true, points: { show: this.state.x.length < 3 } });
    });
    return out;
  }

  build() {
    if (!window.uPlot || !this.plot.isConnected) return;
    const { log, xKind } = this.state, text = css("--muted"), grid = { stroke: css("--grid"), width: 1 };
    const font = `11px ${css("--sans")}`;
    const ticks = xKind === "seconds" ? (u, vals) => vals.map(seconds) : xKind === "time" ? undefined : (u, vals) => vals.map((v) => shortNumber(v));
    this.u?.destroy();
    this.u = new window.uPlot({
      ...this.size(),
      scales: { x: { time: xKind === "time" }, y: log ? { distr: 3, range: logRange } : {} },
      axes: [
        { stroke: text, font, grid, ticks: grid, values: ticks, size: 30 },
        { stroke: text, font, grid, ticks: grid, size: 66, values: (u, vals) => vals.map((v) => (v === null ? "" : this.format(v))) },
      ],
      series: [{}, ...this.lines()],
      legend: { show: false },
      cursor: { sync: { key: sync()?.key ?? "shoal" }, drag: { x: true, y: false }, points: { size: 6 } },
      hooks: { setCursor: [(u) => this.showLegend(u.cursor.idx)] },
    }, this.data(), this.plot);
  }

  showLegend(index) {
    const { x, series, xKind, xLabel } = this.state;
    const at = index ?? x.length - 1;
    // Lines that have no value right here show their nearest before.
    const value = (s) => s.values.slice(0, at + 1).findLast((v) => v !== null);
    const parts = [];
    if (index !== null && x[at] !== undefined) {
      const where = document.createElement("span");
      where.textContent = xKind === "time" ? new Date(x[at] * 1000).toLocaleString() : xKind === "seconds" ? seconds(x[at]) : `${xLabel} ${shortNumber(x[at])}`;
      parts.push(where);
    }
    const lines = series.filter((s) => !s.ghost);
    lines.forEach((s, i) => {
      const item = document.createElement("span"), mark = document.createElement("i");
      item.className = `k${place(s, i) + 1}`;
      item.append(mark, `${s.label} ${index === null && lines.length === 1 ? "" : this.format(value(s))}`);
      parts.push(item);
    });
    if (index === null) {
      if (lines.length === 1 && lines[0].smooth) parts.push(hint("faint: as logged"));
      if (lines.length < series.length) parts.push(hint("dashed: overwritten by a later attempt"));
    }
    this.legend.replaceChildren(...parts);
  }
}
