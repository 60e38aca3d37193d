// Text with ANSI colours → nodes. Colours become classes or a colour property; every other escape is dropped, nothing is HTML.

const ESCAPE = /\x1b(?:\[([0-9;:]*)m|\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_]|.)?/g;
const CONTROL = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/g;
const CUBE = [0, 95, 135, 175, 215, 255];

export function render(text) {
  const shown = text.includes("\r") ? text.replace(/\r+$/, "").split("\r").pop() : text;
  const out = document.createDocumentFragment();
  let style = fresh(),
    at = 0;
  for (const match of shown.matchAll(ESCAPE)) {
    add(out, shown.slice(at, match.index), style);
    at = match.index + match[0].length;
    if (match[1] !== undefined) style = apply(style, match[1]);
  }
  add(out, shown.slice(at), style);
  return out;
}

export const plain = (text) => text.replace(ESCAPE, "").replace(CONTROL, "");

const fresh = () => ({ classes: new Set(), colour: null, fg: null });

function add(out, raw, { classes, colour, fg }) {
  const text = raw.replace(CONTROL, "");
  if (!text) return;
  if (!classes.size && !colour && !fg) return void out.append(text);
  const span = document.createElement("span");
  span.textContent = text;
  span.className = [...classes, ...(fg ? [fg] : [])].join(" ");
  if (colour) span.style.color = colour;
  out.append(span);
}

function apply(style, codes) {
  let next = { classes: new Set(style.classes), colour: style.colour, fg: style.fg };
  const list = codes.split(/[;:]/).map(Number);
  for (let i = 0; i < list.length; i++) {
    const code = list[i];
    if (code === 0) next = fresh();
    else if (code >= 1 && code <= 4) next.classes.add(`a${code}`);
    else if (code === 22) {
      next.classes.delete("a1");
      next.classes.delete("a2");
    } else if (code === 23) next.classes.delete("a3");
    else if (code === 24) next.classes.delete("a4");
    else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) {
      next.fg = `a${code}`;
      next.colour = null;
    } else if (code === 39) {
      next.fg = next.colour = null;
    } else if (code === 38 && list[i + 1] === 5) {
      next.fg = null;
      Object.assign(next, indexed(list[i + 2]));
      i += 2;
    } else if (code === 38 && list[i + 1] === 2) {
      next.fg = null;
      next.colour = rgb(list.slice(i + 2, i + 5));
      i += 4;
    } else if (code === 48) i += list[i + 1] === 5 ? 2 : 4;
  }
  return next;
}

function indexed(n) {
  if (!(n >= 0 && n <= 255)) return {};
  if (n < 16) return { fg: `a${n < 8 ? 30 + n : 82 + n}`, colour: null };
  if (n >= 232) return { colour: rgb(Array(3).fill(Math.max(90, 8 + 10 * (n - 232)))) };
  const i = n - 16;
  return { colour: rgb([CUBE[Math.floor(i / 36)], CUBE[Math.floor(i / 6) % 6], CUBE[i % 6]]) };
}

// On a dark background, a colour too dark to read is lightened.
const rgb = (parts) => `rgb(${parts.map((v) => Math.min(255, Math.max(60, v | 0))).join(" ")})`;
