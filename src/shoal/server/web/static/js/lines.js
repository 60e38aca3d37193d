// Data of the chart workspace, without a page: lines as `metrics/query` gives them, colours, ranges, names, CSV.

/** A metric's name as it is written in an expression; the same rule as `quote` in core/metric_expr.py. */
const PLAIN = /^[\p{L}_][\p{L}\p{N}_/.@%:]*(?:-[\p{L}\p{N}_/.@%:]+)*$/u,
  FUNCTIONS = new Set(["abs", "exp", "log", "log2", "log10", "sqrt", "min", "max"]);
export const quote = (name) =>
  PLAIN.test(name) && !FUNCTIONS.has(name) ? name : `"${name.replace(/[\\"]/g, "\\$&")}"`;

/** The name that an expression of one quoted name stands for. */
export const unquote = (text) =>
  /^"(?:[^"\\]|\\.)*"$/s.test(text) ? text.slice(1, -1).replace(/\\(.)/gs, "$1") : text;

const HUES = 8;
export const SHADES = 3 * HUES;

/** Number of a colour for a run: the same on every page and visit, as it comes from the run's id alone. */
export function colourOf(id) {
  let hash = 2166136261;
  for (const letter of id) hash = Math.imul(hash ^ letter.codePointAt(0), 16777619);
  return (hash >>> 0) % HUES;
}

/** Numbers of colours for several runs: each its own, unless a run before it has that; then the next free hue, and last lighter and darker ones. */
export function colours(ids) {
  const taken = new Set(),
    found = new Map();
  for (const id of ids) {
    if (taken.size === SHADES) taken.clear();
    const own = colourOf(id);
    let colour = own;
    for (let n = 0; taken.has(colour); n++) colour = ((own + 3 * n) % HUES) + HUES * Math.floor(n / HUES);
    taken.add(colour);
    found.set(id, colour);
  }
  return found;
}

/** Shade as CSS: eight hues of the theme, then lighter and darker ones of them. */
export function shade(number, css) {
  const hue = css(`--c${(number % 8) + 1}`),
    step = Math.floor(number / 8) % 3;
  if (!step) return hue;
  const parts = hue.match(/[0-9a-f]{2}/gi).map((part) => parseInt(part, 16)),
    to = step === 1 ? 255 : 0;
  return `#${parts
    .map((v) =>
      Math.round(v + (to - v) * 0.35)
        .toString(16)
        .padStart(2, "0"),
    )
    .join("")}`;
}

/** Index of the value nearest to x in a rising list; -1 in an empty one. */
export function nearest(list, x) {
  let low = 0,
    high = list.length - 1;
  if (high < 0) return -1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (list[middle] <= x) low = middle;
    else high = middle;
  }
  return Math.abs(list[high] - x) < Math.abs(list[low] - x) ? high : low;
}

/** Puts columns of several lines over one common x, with gaps: [{x, columns: [values, …]}] → [x, ...columns]. */
export function align(parts) {
  if (!parts.length) return [[]];
  const first = parts[0].x;
  const same = parts.every(({ x }) => x === first || (x.length === first.length && x.every((v, i) => v === first[i])));
  if (same) return [first, ...parts.flatMap(({ columns }) => columns)];
  const x = Float64Array.from(new Set(parts.flatMap((part) => part.x))).sort(),
    place = new Map();
  x.forEach((v, i) => place.set(v, i));
  const spread = (at, values) => {
    const out = Array(x.length).fill(null);
    for (let i = 0; i < at.length; i++) out[place.get(at[i])] = values[i];
    return out;
  };
  return [Array.from(x), ...parts.flatMap((part) => part.columns.map((values) => spread(part.x, values)))];
}

/** Range of the y axis without outliers: from the 2nd to the 98th hundredth of each line's values, and a little more. */
export function withoutOutliers(lists) {
  let low = Infinity,
    high = -Infinity;
  for (const list of lists) {
    const all = Float64Array.from(list.filter((v) => v !== null)).sort(),
      rest = Math.floor(0.02 * all.length);
    if (!all.length) continue;
    low = Math.min(low, all[rest]);
    high = Math.max(high, all[all.length - 1 - rest]);
  }
  return high > low ? [low - 0.08 * (high - low), high + 0.08 * (high - low)] : null;
}

/** Section of a metric: what stands before its last slash. */
export const sectionOf = (name) => (name.includes("/") ? name.slice(0, name.lastIndexOf("/")) : "");

// Losses first: they matter most.
const rank = (name) => (/(^|[/_.])loss$/i.test(name) ? 0 : /loss|acc|perplexity/i.test(name) ? 1 : 2);
export const byWeight = (a, b) => rank(a) - rank(b) || a.localeCompare(b);

/** Lines of a chart as CSV: one row per x, one column per line, with low and high where they are shown. */
export function csv(xLabel, lines) {
  const safe = (v) =>
    v === null || v === undefined ? "" : typeof v === "string" && /^[=+@\t\r-]/.test(v) ? `'${v}` : String(v); // no spreadsheet takes it for a formula
  const cell = (v) => (/[",\n]/.test(safe(v)) ? `"${safe(v).replaceAll('"', '""')}"` : safe(v));
  const parts = lines.map(({ label, x, mean, smooth, low, high }) => ({
    x,
    columns: [mean, smooth, low, high].filter(Boolean),
    names: [label, smooth && `${label} smoothed`, low && `${label} low`, high && `${label} high`].filter(Boolean),
  }));
  const [x, ...columns] = align(parts);
  const head = [xLabel, ...parts.flatMap(({ names }) => names)];
  return `${[head, ...x.map((v, i) => [v, ...columns.map((values) => values[i])])].map((row) => row.map(cell).join(",")).join("\n")}\n`;
}

/** True if a metric matches a pattern of `run.define_metric`: a name, or one with `*`. */
export function matches(pattern, name) {
  return new RegExp(
    `^${pattern
      .split("*")
      .map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"))
      .join(".*")}$`,
    "u",
  ).test(name);
}

/** Step at a time, between two points of a line with times; null outside. */
export function stepAt(line, at) {
  if (!line?.at?.length || at < line.at[0] || at > line.at.at(-1)) return null;
  let i = line.at.findIndex((t) => t >= at);
  if (i <= 0) return line.x[0];
  const part = (at - line.at[i - 1]) / (line.at[i] - line.at[i - 1] || 1);
  return line.x[i - 1] + part * (line.x[i] - line.x[i - 1]);
}
