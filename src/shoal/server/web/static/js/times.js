// Times: relative ones in the words of `ago` in core/durations.py, and clock times in the zone the person has chosen.

const STEPS = [
  ["day", 86400],
  ["h", 3600],
  ["min", 60],
  ["s", 1],
];

function coarse(seconds) {
  const [unit, size] = STEPS.find(([, least]) => seconds >= least) ?? STEPS.at(-1);
  const n = Math.floor(seconds / size);
  return `${n} ${unit}${unit === "day" && n > 1 ? "s" : ""}`;
}

/** "just now", "3 min ago", "in 8 h"; the date for times long ago. */
export function ago(iso, now = Date.now()) {
  const s = (now - Date.parse(iso)) / 1000;
  if (s < -5) return `in ${coarse(-s)}`;
  if (s < 5) return "just now";
  return s < 30 * 86400 ? `${coarse(s)} ago` : clock(Date.parse(iso)).slice(0, 10);
}

// One setting for all clock times, kept in this browser: "local" or "utc".
export function isUtc() {
  try {
    return globalThis.localStorage?.getItem("shoal-zone") === "utc";
  } catch {
    return false;
  }
}
export function setZone(zone) {
  try {
    localStorage.setItem("shoal-zone", zone);
  } catch {
    /* no storage, no memory */
  }
  dispatchEvent(new Event("shoal:zone"));
}

/** Short name of the chosen zone at a moment: "UTC", "CET", "GMT+5:30". */
export function zoneName(ms = Date.now()) {
  if (isUtc()) return "UTC";
  return (
    new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" })
      .formatToParts(ms)
      .find(({ type }) => type === "timeZoneName")?.value ?? ""
  );
}

/** A Date whose local fields are those of the chosen zone, as uPlot wants them. */
export function inZone(ms) {
  const at = new Date(ms);
  return isUtc()
    ? new Date(
        at.getUTCFullYear(),
        at.getUTCMonth(),
        at.getUTCDate(),
        at.getUTCHours(),
        at.getUTCMinutes(),
        at.getUTCSeconds(),
        at.getUTCMilliseconds(),
      )
    : at;
}

/** "2026-03-01 13:00:00 CET". */
export function clock(ms) {
  const at = inZone(ms),
    two = (n) => String(n).padStart(2, "0");
  const date = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${date} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())} ${zoneName(ms)}`;
}
