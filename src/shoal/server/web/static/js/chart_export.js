// A chart as a file: PNG as it is on the screen, SVG drawn from its data, CSV of its lines.
import { csv, shade } from "./lines.js";
import { css } from "./dom.js";
import { clock } from "./times.js";
import { seconds, shortNumber } from "./units.js";

const HEAD = 30,
  LINE = 18;

export function save(panel, kind) {
  const name = panel.card.dataset.text.replace(/[^\p{L}\p{N}._-]+/gu, "_").slice(0, 80) || "chart";
  const part = panel.lines.filter(({ key }) => !panel.hidden.has(key));
  if (kind === "csv") return download(new Blob([csv(panel.xLabel, part)], { type: "text/csv" }), `${name}.csv`);
  if (kind === "svg") return download(new Blob([svg(panel, part)], { type: "image/svg+xml" }), `${name}.svg`);
  png(panel, part).toBlob((blob) => download(blob, `${name}.png`));
}

function download(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function png(panel, lines) {
  const { canvas } = panel.u.ctx,
    dots = devicePixelRatio || 1,
    rows = lines.length > 1 ? Math.min(12, lines.length) : 0;
  const made = document.createElement("canvas"),
    pen = made.getContext("2d");
  made.width = canvas.width;
  made.height = canvas.height + (HEAD + rows * LINE + 8) * dots;
  pen.fillStyle = css("--surface");
  pen.fillRect(0, 0, made.width, made.height);
  pen.drawImage(canvas, 0, HEAD * dots);
  pen.font = `600 ${13 * dots}px ${css("--sans")}`;
  pen.fillStyle = css("--text");
  pen.fillText(panel.card.dataset.text, 12 * dots, 20 * dots);
  pen.font = `${11 * dots}px ${css("--sans")}`;
  lines.slice(0, rows).forEach((line, i) => {
    const y = canvas.height + (HEAD + (i + 1) * LINE - 4) * dots;
    pen.fillStyle = shade(line.colour, css);
    pen.fillRect(12 * dots, y - 6 * dots, 14 * dots, 3 * dots);
    pen.fillStyle = css("--text");
    pen.fillText(`${line.label} ${shortNumber(line.last)}`, 34 * dots, y);
  });
  return made;
}

const escape = (text) =>
  String(text).replace(/[&<>"]/g, (letter) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[letter]);
const round = (v) => Math.round(v * 100) / 100;

/** Points of a line within the plot, cut into parts where it has gaps. */
function path(u, x, values) {
  const { min, max } = u.scales.x;
  let text = "",
    isDown = false;
  x.forEach((at, i) => {
    const v = values[i];
    if (v === null || v === undefined || at < min || at > max || (u.scales.y.distr === 3 && v <= 0)) {
      if (v !== null && v !== undefined) isDown = false;
      return;
    }
    text += `${isDown ? "L" : "M"}${round(u.valToPos(at, "x"))} ${round(u.valToPos(v, "y"))}`;
    isDown = true;
  });
  return text;
}

/** An element as text, with its attributes escaped. */
function tag(name, attributes, content = "") {
  const written = Object.entries(attributes).map(
    ([key, v]) => ` ${key}="${typeof v === "number" ? round(v) : escape(v)}"`,
  );
  return `<${name}${written.join("")}>${content}</${name}>`;
}
const label = (x, y, fill, text, more = {}) => tag("text", { x, y, fill, ...more }, escape(text));

/** Values of an axis at round numbers; of a logarithmic one, at powers of ten. */
function ticks({ min, max, distr }, count) {
  if (distr === 3) {
    const first = Math.ceil(Math.log10(min));
    return Array.from({ length: Math.floor(Math.log10(max)) - first + 1 }, (_, i) => 10 ** (first + i));
  }
  const raw = (max - min) / count,
    size = 10 ** Math.floor(Math.log10(raw)),
    step = [1, 2, 5, 10].find((n) => n * size >= raw) * size,
    first = Math.ceil(min / step);
  return Array.from({ length: Math.floor(max / step) - first + 1 }, (_, i) => (first + i) * step);
}

/** Grid and labels of both axes. */
function axes(panel, plot) {
  const { u } = panel,
    stroke = css("--grid"),
    fill = css("--muted");
  const written = (v) =>
    panel.xKind === "time" ? clock(v * 1000) : panel.xKind === "seconds" ? seconds(v) : shortNumber(v);
  const rows = ticks(u.scales.y, 5).map((v) => {
    const y = round(u.valToPos(v, "y"));
    const line = tag("path", { d: `M0 ${y}H${round(plot.width)}`, stroke });
    return line + label(-8, y + 4, fill, shortNumber(v), { "text-anchor": "end" });
  });
  const columns = ticks(u.scales.x, 6).map((v) => {
    const x = round(u.valToPos(v, "x"));
    const line = tag("path", { d: `M${x} 0V${round(plot.height)}`, stroke });
    return line + label(x, plot.height + 18, fill, written(v), { "text-anchor": "middle" });
  });
  return [...rows, ...columns];
}

/** A line with its band and what it is smoothed from. */
function curve(panel, line) {
  const { u } = panel,
    stroke = shade(line.colour, css),
    parts = [];
  if (panel.banded(line)) {
    const [low, high] = panel.bandOf(line),
      up = path(u, line.x, high),
      down = path(u, [...line.x].reverse(), [...low].reverse());
    if (up && down) parts.push(tag("path", { d: `${up}L${down.slice(1)}Z`, fill: stroke, "fill-opacity": 0.15 }));
  }
  const none = { fill: "none", stroke };
  if (line.smooth) parts.push(tag("path", { d: path(u, line.x, line.mean), ...none, "stroke-opacity": 0.3 }));
  const dashes = line.attempt ? { "stroke-dasharray": "5 4" } : {};
  parts.push(tag("path", { d: path(u, line.x, line.smooth ?? line.mean), ...none, "stroke-width": 2, ...dashes }));
  return parts.join("");
}

export function svg(panel, lines) {
  const { u } = panel,
    { width } = u,
    dots = devicePixelRatio,
    plot = { width: u.bbox.width / dots, height: u.bbox.height / dots },
    place = `translate(${round(u.bbox.left / dots)} ${round(u.bbox.top / dots + HEAD)})`;
  const rows = lines.length > 1 ? lines.length : 0,
    height = u.height + HEAD + rows * LINE + 8,
    ink = css("--text");
  const legend = lines.slice(0, rows).map((line, i) => {
    const y = u.height + HEAD + i * LINE + 8;
    const swatch = tag("rect", { x: 12, y, width: 14, height: 3, fill: shade(line.colour, css) });
    return swatch + label(34, y + 5, ink, `${line.label} ${shortNumber(line.last)}`);
  });
  const parts = [
    tag("rect", { width, height, fill: css("--surface") }),
    label(12, 20, ink, panel.card.dataset.text, { "font-size": 13, "font-weight": 600 }),
    tag("g", { transform: place }, [...axes(panel, plot), ...lines.map((line) => curve(panel, line))].join("")),
    ...legend,
  ];
  const about = { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` };
  return `${tag("svg", { ...about, "font-family": "sans-serif", "font-size": 11 }, parts.join(""))}\n`;
}
