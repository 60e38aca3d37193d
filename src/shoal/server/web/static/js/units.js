// Sizes, durations and money: the same words as `filesize` in web/format.py and `duration` in core/durations.py.

export function bytes(v) {
  if (v === null || v === undefined) return "–";
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (v < 1000) return unit === "B" ? `${v.toFixed(0)} B` : `${v.toFixed(1)} ${unit}`;
    v /= 1000;
  }
  return `${v.toFixed(1)} TB`;
}

const LENGTHS = [
  ["d", 86400],
  ["h", 3600],
  ["min", 60],
  ["s", 1],
];

/** "0.4 s", "12 s", "3 min 20 s", "2 h 5 min", "3 d 4 h". */
export function seconds(v) {
  if (v === null || v === undefined) return "–";
  if (v < 9.95) return `${Math.max(0, v).toFixed(1)} s`;
  const whole = Math.round(v),
    at = LENGTHS.findIndex(([, size]) => whole >= size);
  const [unit, size] = LENGTHS[at],
    [below, part] = LENGTHS[at + 1] ?? ["", 0];
  const rest = part ? Math.floor((whole % size) / part) : 0;
  return `${Math.floor(whole / size)} ${unit}${rest ? ` ${rest} ${below}` : ""}`;
}

/** A number with four digits, or as a power of ten if it is very small or large. */
export function shortNumber(v) {
  if (v === null || v === undefined || Number.isNaN(v)) return "–";
  const a = Math.abs(v);
  if (a !== 0 && (a < 1e-3 || a >= 1e6)) return v.toExponential(2);
  return String(Number(v.toPrecision(4)));
}

/** "1,234.50", and four decimals below 0.1. */
export function money(v) {
  return v.toLocaleString("en-GB", { minimumFractionDigits: 2, maximumFractionDigits: v < 0.1 ? 4 : 2 });
}
