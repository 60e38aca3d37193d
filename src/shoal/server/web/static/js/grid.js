// A grid of charts, one per metric, with the controls above it. Only what is in sight is asked for and drawn.
import { Chart } from "./charts.js";

const EVERY_MS = 1500, AT_ONCE = 24, SLIDING_MS = 120;
const $ = (id) => document.getElementById(id);
const kinds = { step: "number", relative: "seconds", time: "time" };

// Losses first: they are what one looks for.
const rank = (name) => (/(^|[/_.])loss$/i.test(name) ? 0 : /loss|acc|perplexity/i.test(name) ? 1 : 2);
const order = (a, b) => rank(a) - rank(b) || a.localeCompare(b);

/** `names()` tells which metrics there are; `load(wanted, settings)` gives {name: {x, series}}. Returns `soon`, for when news has come. */
export function grid({ names, load }) {
  const box = $("charts"), charts = new Map(), visible = new Set();
  const settings = { weight: 0.6, log: false, axis: "step", ghosts: true };
  try { Object.assign(settings, JSON.parse(localStorage.getItem("shoal-charts") ?? "{}")); } catch { /* none kept */ }
  const matches = (name) => name.toLowerCase().includes($("metric-search").value.toLowerCase());

  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) visible.add(target.dataset.text); else visible.delete(target.dataset.text);
    }
    refresh();
  }, { rootMargin: "300px" });

  async function look() {
    const found = await names();
    $("no-metrics").hidden = found.length > 0;
    $("chart-tools").hidden = found.length === 0;
    for (const name of [...found].sort(order)) {
      if (charts.has(name)) continue;
      const chart = new Chart(name);
      charts.set(name, chart);
      box.append(chart.card);
      chart.card.hidden = !matches(name);
      watcher.observe(chart.card);
    }
  }

  let running = false, again = false, timer = null;
  async function refresh() {
    if (running) { again = true; return; }
    running = true;
    try {
      const wanted = [...visible].slice(0, AT_ONCE * 4);
      for (let i = 0; i < wanted.length; i += AT_ONCE) await draw(wanted.slice(i, i + AT_ONCE));
    } catch { /* the stream tells when the server is back */ } finally { running = false; }
    if (again) { again = false; refresh(); }
  }

  async function draw(wanted) {
    const found = await load(wanted, settings);
    for (const name of wanted) {
      const { log, axis } = settings;
      if (found[name]) charts.get(name).update({ ...found[name], log, xKind: kinds[axis], xLabel: axis });
    }
  }

  const keep = () => { try { localStorage.setItem("shoal-charts", JSON.stringify(settings)); } catch { /* as above */ } };
  const restyle = () => {
    for (const chart of charts.values()) if (chart.state.x.length) chart.update({ log: settings.log });
    keep();
  };
  controls(settings, { restyle, reload: () => { keep(); refresh(); } });
  $("metric-search").addEventListener("input", () => { for (const [name, chart] of charts) chart.card.hidden = !matches(name); });

  look();
  return {
    soon: () => { timer ??= setTimeout(() => { timer = null; look().then(refresh, () => {}); }, EVERY_MS); },
    isEmpty: () => !charts.size,
  };
}

function controls(settings, { restyle, reload }) {
  const slider = $("smooth"), output = slider.parentElement.querySelector("output");
  const show = () => { output.value = Number(slider.value).toFixed(2); };
  slider.value = settings.weight;
  show();
  let sliding = null;
  slider.addEventListener("input", () => {
    settings.weight = Number(slider.value);
    show();
    clearTimeout(sliding);
    sliding = setTimeout(reload, SLIDING_MS);
  });
  $("log-y").checked = settings.log;
  $("log-y").addEventListener("change", ({ target }) => { settings.log = target.checked; restyle(); });
  for (const radio of document.querySelectorAll("[name=axis]")) {
    radio.checked = radio.value === settings.axis;
    radio.addEventListener("change", () => { settings.axis = radio.value; reload(); });
  }
  const ghosts = $("ghosts");
  if (!ghosts) return;
  ghosts.checked = settings.ghosts;
  ghosts.addEventListener("change", () => { settings.ghosts = ghosts.checked; reload(); });
}

/** A metric's points as the API gives them; "nan" and "inf" are gaps. */
export const line = (points) => ({ at: points.map(([x]) => x), values: points.map(([, v]) => (typeof v === "number" ? v : null)) });
/** A metric's points with the smoothed curve the server made of all of them, if it did. */
export const lines = (points = [], smoothed = null) => ({ ...line(points), smooth: smoothed ? line(smoothed) : null });
