// A shared job: draws the charts when they become visible, writes the log, and offers smoothing, scales and themes.
import { align, Chart } from "./charts.js";
import { clock } from "./times.js";
import { render } from "./ansi.js";

addEventListener("DOMContentLoaded", () => {
  const $ = (id) => document.getElementById(id);
  const { metrics, smoothed, log } = JSON.parse($("data").textContent);
  const drawn = new Map(),
    settings = { log: false };
  const level = () => Number(document.querySelector("[name=smooth]:checked")?.value ?? -1);
  const rank = (name) => (/(^|[/_.])loss$/i.test(name) ? 0 : /loss|acc|perplexity/i.test(name) ? 1 : 2);
  const names = Object.keys(metrics).sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));

  function draw(name) {
    const points = metrics[name],
      curves = smoothed[name],
      chosen = level();
    const smooth = curves && chosen >= 0 ? { at: curves.x, values: curves.levels[chosen] } : null;
    const values = points.map(([, v]) => (typeof v === "number" ? v : null));
    drawn
      .get(name)
      .update({ ...align([{ label: name, at: points.map(([x]) => x), values, smooth }]), xLabel: "step", ...settings });
  }
  const watcher = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries)
        if (isIntersecting) {
          watcher.unobserve(target);
          draw(target.dataset.text);
        }
    },
    { rootMargin: "400px" },
  );
  for (const name of names) {
    const chart = new Chart(name);
    drawn.set(name, chart);
    $("charts").append(chart.card);
    watcher.observe(chart.card);
  }

  const restyle = () => {
    for (const [name, chart] of drawn) if (chart.state.x.length) draw(name);
  };
  for (const radio of document.querySelectorAll("[name=smooth]")) radio.addEventListener("change", restyle);
  $("log-y")?.addEventListener("change", ({ target }) => {
    settings.log = target.checked;
    restyle();
  });
  $("theme").addEventListener("click", () => window.shoalTheme());

  for (const [at, who, stream, text] of log) {
    const row = document.createElement("div"),
      time = document.createElement("time");
    const rankOf = document.createElement("span"),
      tx = document.createElement("span");
    row.className = `ln ${stream === "err" ? "err" : stream === "sys" ? "sys" : ""}`;
    time.title = clock(at * 1000);
    time.textContent = time.title.slice(11, 19);
    rankOf.className = "who";
    rankOf.textContent = who === null ? "shoal" : `rank ${who}`;
    tx.className = "tx";
    tx.append(render(text));
    row.append(time, rankOf, tx);
    $("log").append(row);
  }
  if ($("log")) $("log").scrollTop = $("log").scrollHeight;
});
