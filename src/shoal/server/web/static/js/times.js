// Relative times: the same words as `ago` in core/durations.py, which writes them first.

const STEPS = [["day", 86400], ["h", 3600], ["min", 60], ["s", 1]];

function coarse(seconds) {
  const [unit, size] = STEPS.find(([, least]) => seconds >= least) ?? STEPS.at(-1);
  const n = Math.floor(seconds / size);
  return `${n} ${unit}${unit === "day" && n > 1 ? "s" : ""}`;
}

/** "just now", "3 min ago", "in 8 h"; the date of what is long over. */
export function ago(iso, now = Date.now()) {
  const s = (now - Date.parse(iso)) / 1000;
  if (s < -5) return `in ${coarse(-s)}`;
  if (s < 5) return "just now";
  return s < 30 * 86400 ? `${coarse(s)} ago` : iso.slice(0, 10);
}
