// Scales: convert a value to its position on an axis, 0 to 1, and back; for numbers, numbers on a log scale, and words.

const WIDE = 30; // numbers whose ratio exceeds this get a log scale
const isNumber = (v) => typeof v === "number" && Number.isFinite(v);

export function short(v) {
  if (v === null || v === undefined) return "–";
  if (typeof v !== "number") return typeof v === "string" ? v : JSON.stringify(v);
  const a = Math.abs(v);
  return a !== 0 && (a < 1e-3 || a >= 1e6)
    ? String(Number(v.toPrecision(3)).toExponential())
    : String(Number(v.toPrecision(4)));
}

/** Scale of a parameter, from the sweep's search space and the values of its trials. */
export function ofParameter(name, axis, values) {
  if (axis.kind === "between") return numbers(name, [axis.low, axis.high], { log: axis.log });
  const given = axis.values ?? values;
  if (given.length > 1 && given.every(isNumber)) {
    const sorted = [...new Set(given)].sort((a, b) => a - b),
      low = sorted[0],
      high = sorted.at(-1);
    return numbers(name, [low, high], { log: low > 0 && (high / low >= WIDE || isGeometric(sorted)), marks: sorted });
  }
  return words(name, given);
}

/** Whether values are a geometric sequence, such as 64, 128, 256. */
function isGeometric(sorted) {
  const pairs = sorted.slice(1).map((v, i) => [v, sorted[i]]),
    spread = (values) => Math.max(...values) / Math.min(...values);
  return pairs.length > 1 && spread(pairs.map(([b, a]) => b / a)) < 1.25 && spread(pairs.map(([b, a]) => b - a)) > 1.8;
}

/** Scale of the given numbers, with `room` around them. */
export function ofNumbers(name, values, { log = false, room = 0 } = {}) {
  const seen = values.filter((v) => isNumber(v) && (!log || v > 0));
  if (!seen.length) return numbers(name, [0, 1], { log: false });
  const low = seen.reduce((a, b) => Math.min(a, b)),
    high = seen.reduce((a, b) => Math.max(a, b)),
    span = log ? (high / low) ** room : (high - low) * room;
  return numbers(name, log ? [low / span, high * span] : [low - span, high + span], { log });
}

/** Small offset for values that many trials share; always the same for a trial. */
export function beside(scale, value, number) {
  const place = scale.at(value);
  return place === null || !scale.spread
    ? place
    : Math.min(1, Math.max(0, place + (((number * 0.618034) % 1) - 0.5) * scale.spread));
}

/** Whether most values would be crowded at one end of a linear scale. */
export function wantsLog(values) {
  const seen = values.filter(isNumber).sort((a, b) => a - b);
  return seen.length > 4 && seen[0] > 0 && seen.at(-1) / seen[Math.floor(seen.length / 4)] >= WIDE;
}

function numbers(name, [low, high], { log, marks = null }) {
  if (low === high) {
    [low, high] = log ? [low / 2, high * 2] : [low - Math.abs(low || 1) / 2, high + Math.abs(high || 1) / 2];
  }
  const to = log ? Math.log10 : (v) => v,
    from = log ? (v) => 10 ** v : (v) => v;
  const start = to(low),
    size = to(high) - start;
  const at = (v) => (isNumber(v) && (!log || v > 0) ? (to(v) - start) / size : null);
  const few = marks && marks.length <= 8;
  const ticks = (few ? [...marks] : log ? magnitudes(low, high) : steps(low, high)).map((v) => ({
    at: at(v),
    text: short(v),
  }));
  return { name, log, at, value: (place) => from(start + place * size), ticks, step: 0.02, spread: marks ? 0.03 : 0 };
}

function words(name, given) {
  const texts = [...new Set(given.map(short))],
    place = new Map(texts.map((text, i) => [text, (i + 0.5) / texts.length]));
  const every = Math.ceil(texts.length / 12);
  const ticks = texts.filter((_, i) => i % every === 0).map((text) => ({ at: place.get(text), text }));
  const value = (at) => texts[Math.min(texts.length - 1, Math.max(0, Math.floor(at * texts.length)))];
  return {
    name,
    log: false,
    at: (v) => place.get(short(v)) ?? null,
    value,
    ticks,
    step: 1 / texts.length,
    spread: 0.45 / texts.length,
    isWords: true,
  };
}

function steps(low, high) {
  const rough = (high - low) / 5,
    power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((n) => n * power >= rough);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) found.push(n * step);
  return found;
}

function magnitudes(low, high) {
  const from = Math.floor(Math.log10(low)),
    to = Math.ceil(Math.log10(high)),
    every = Math.max(1, Math.ceil((to - from) / 6));
  const found = [];
  for (let power = from; power <= to; power += every)
    for (const n of to - from <= 2 ? [1, 2, 5] : [1]) found.push(n * 10 ** power);
  const inside = found.filter((v) => v >= low * 0.999 && v <= high * 1.001);
  return inside.length > 1 ? inside : [low, high];
}
