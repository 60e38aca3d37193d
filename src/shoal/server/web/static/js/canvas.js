// What plots of trials share: a canvas for what is many, one above it for what is pointed at, SVG above both for what is few.

const SVG = "http://www.w3.org/2000/svg";
export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Five colours of the theme and all between them: 0 is the worst, 1 the best. */
export function ramp() {
  const stops = [1, 2, 3, 4, 5].map((n) => css(`--s${n}`).match(/[0-9a-f]{2}/gi).map((part) => parseInt(part, 16)));
  return (place) => {
    const at = Math.min(1, Math.max(0, place)) * (stops.length - 1), i = Math.min(stops.length - 2, Math.floor(at)), part = at - i;
    return `rgb(${stops[i].map((v, c) => Math.round(v + (stops[i + 1][c] - v) * part)).join(" ")})`;
  };
}

function layer() {
  const canvas = document.createElement("canvas");
  canvas.setAttribute("aria-hidden", "true");
  return canvas;
}

/** One that draws itself anew whenever its place or the theme changes. Subclasses have `height`, `room`, `paint`, and `mark` for what is pointed at. */
export class Plot {
  constructor(box, label) {
    Object.assign(this, { box, size: null, due: false, marking: false });
    this.frame = document.createElement("div");
    this.frame.className = "plot-frame";
    this.layers = [layer(), layer()];
    this.svg = svg("svg", { role: "group", "aria-label": label });
    this.frame.append(...this.layers, this.svg);
    box.replaceChildren(this.frame);
    new ResizeObserver(() => this.draw()).observe(box);
    addEventListener("shoal:theme", () => this.draw());
  }

  draw() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => { this.due = false; this.now(); });
  }

  now() {
    const width = Math.max(this.box.clientWidth, this.least?.() ?? 0), { height } = this;
    if (!this.box.clientWidth) return;
    this.size = { width, height };
    Object.assign(this.frame.style, { width: `${width}px`, height: `${height}px` });
    this.paint(this.pen(0));
    this.mark(this.pen(1));
  }

  /** Only what is pointed at: the rest, which may be thousands of lines, stays as it is. */
  remark() {
    if (this.marking || this.due || !this.size) return;
    this.marking = true;
    requestAnimationFrame(() => { this.marking = false; this.mark(this.pen(1)); });
  }

  /** For a layer that is blank again. */
  pen(number) {
    const canvas = this.layers[number], { width, height } = this.size, dots = devicePixelRatio || 1, pen = canvas.getContext("2d");
    Object.assign(canvas, { width: width * dots, height: height * dots });
    pen.setTransform(dots, 0, 0, dots, 0, 0);
    return pen;
  }

  /** Where on the plot a pointer is. */
  where(event) {
    const { left, top } = this.svg.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  }
}

/** As much of a text as has room. */
export const cut = (text, letters) => (text.length > letters ? `${text.slice(0, Math.max(1, letters - 1))}…` : text);
