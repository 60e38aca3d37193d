// Live charts of a job's metrics. The server thins each to what a chart can show, so a million points cost what a thousand do.
import { Chart } from "./charts.js";
import { api, head } from "./job.js";

const POINTS = 800, EVERY_MS = 1500, AT_ONCE = 24;
const $ = (id) => document.getElementById(id);
const box = $("charts"), charts = new Map(), visible = new Set();
const kinds = { step: "number", relative: "seconds", time: "time" };
const settings = { weight: 0.6, log: false, axis: "step" };
try { Object.assign(settings, JSON.parse(localStorage.getItem("shoal-charts") ?? "{}")); } catch { /* none kept */ }

const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) visible.add(target.dataset.text); else visible.delete(target.dataset.text);
  }
  refresh();
}, { rootMargin: "300px" });

async function get(path) {
  const answer = await fetch(`${api}/${path}`);
  if (!answer.ok) throw new Error(`${answer.status}`);
  return answer.json();
}

async function names() {
  const found = await get("metric-names");
  $("no-metrics").hidden = found.length > 0;
  $("chart-tools").hidden = found.length === 0;
  for (const { name } of found.sort(order)) {
    if (charts.has(name)) continue;
    const chart = new Chart(name);
    charts.set(name, chart);
    box.append(chart.card);
    chart.card.hidden = !matches(name);
    watcher.observe(chart.card);
  }
}
// Losses first: they are what one looks for.
const rank = (name) => (/(^|[/_.])loss$/i.test(name) ? 0 : /loss|acc|perplexity/i.test(name) ? 1 : 2);
const order = (a, b) => rank(a.name) - rank(b.name) || a.name.localeCompare(b.name);

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
  const query = new URLSearchParams({ points: POINTS, axis: settings.axis });
  for (const name of wanted) query.append("name", name);
  const { metrics } = await get(`metrics?${query}`);
  for (const name of wanted) {
    const points = metrics[name] ?? [];
    const values = points.map(([, v]) => (typeof v === "number" ? v : null)); // "nan" and "inf" are gaps
    charts.get(name).update({
      x: points.map(([x]) => x), series: [{ label: name, values }],
      weight: settings.weight, log: settings.log, xKind: kinds[settings.axis], xLabel: settings.axis,
    });
  }
}

function soon() { timer ??= setTimeout(() => { timer = null; names().then(refresh); }, EVERY_MS); }
document.body.addEventListener("shoal:metrics", soon);
document.body.addEventListener("shoal:end", soon);

// Controls
const slider = $("smooth"), output = slider.parentElement.querySelector("output");
slider.value = settings.weight;
$("log-y").checked = settings.log;
for (const radio of document.querySelectorAll("[name=axis]")) radio.checked = radio.value === settings.axis;
const show = () => { output.value = Number(slider.value).toFixed(2); };
const keep = () => { try { localStorage.setItem("shoal-charts", JSON.stringify(settings)); } catch { /* as above */ } };
show();
slider.addEventListener("input", () => {
  settings.weight = Number(slider.value);
  show();
  for (const chart of charts.values()) if (chart.state.x.length) chart.update({ weight: settings.weight });
  keep();
});
$("log-y").addEventListener("change", ({ target }) => {
  settings.log = target.checked;
  for (const chart of charts.values()) if (chart.state.x.length) chart.update({ log: settings.log });
  keep();
});
for (const radio of document.querySelectorAll("[name=axis]")) radio.addEventListener("change", () => { settings.axis = radio.value; keep(); refresh(); });
const matches = (name) => name.toLowerCase().includes($("metric-search").value.toLowerCase());
$("metric-search").addEventListener("input", () => { for (const [name, chart] of charts) chart.card.hidden = !matches(name); });

names();
// Where no metric comes for a while, the stream is silent; a new one may still turn up.
setInterval(() => { if (!document.hidden && !charts.size && head.querySelector(".status.running")) names(); }, 5000);
