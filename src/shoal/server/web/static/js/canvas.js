// Base of the trial plots: a canvas for the many lines or dots, one above it for the highlighted one, SVG above both for axes and labels.

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
  const stops = [1, 2, 3, 4, 5].map((n) =>
    css(`--s${n}`)
      .match(/[0-9a-f]{2}/gi)
      .map((part) => parseInt(part, 16)),
  );
  return (place) => {
    const at = Math.min(1, Math.max(0, place)) * (stops.length - 1),
      i = Math.min(stops.length - 2, Math.floor(at)),
      part = at - i;
    return `rgb(${stops[i].map((v, c) => Math.round(v + (stops[i + 1][c] - v) * part)).join(" ")})`;
  };
}

function layer() {
  const canvas = document.createElement("canvas");
  canvas.setAttribute("aria-hidden", "true");
  return canvas;
}

/** A plot that redraws itself when its size or the theme changes. Subclasses have `height`, `room`, `paint`, and `mark` for the highlighted item. */
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
    requestAnimationFrame(() => {
      this.due = false;
      this.now();
    });
  }

  now() {
    const width = Math.max(this.box.clientWidth, this.least?.() ?? 0),
      { height } = this;
    if (!this.box.clientWidth) return;
    this.size = { width, height };
    Object.assign(this.frame.style, { width: `${width}px`, height: `${height}px` });
    this.paint(this.pen(0));
    this.mark(this.pen(1));
  }

  /** Redraws only the highlighted item, not the thousands of other lines. */
  remark() {
    if (this.marking || this.due || !this.size) return;
    this.marking = true;
    requestAnimationFrame(() => {
      this.marking = false;
      this.mark(this.pen(1));
    });
  }

  /** Clears a layer. */
  pen(number) {
    const canvas = this.layers[number],
      { width, height } = this.size,
      dots = devicePixelRatio || 1,
      pen = canvas.getContext("2d");
    Object.assign(canvas, { width: width * dots, height: height * dots });
    pen.setTransform(dots, 0, 0, dots, 0, 0);
    return pen;
  }

  /** Position of a pointer on the plot. */
  where(event) {
    const { left, top } = this.svg.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  }
}

/** Text shortened to the available width. */
export const cut = (text, letters) => (text.length > letters ? `${text.slice(0, Math.max(1, letters - 1))}…` : text);
