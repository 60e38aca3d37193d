// A swarm's page: charts of its rounds, updated as rounds end.
import { Chart } from "./charts.js";
import { bytes, seconds, shortNumber } from "./units.js";

const KINDS = [
  ["loss", "Loss", shortNumber],
  ["performance", "Samples per second, all peers", shortNumber],
  ["alive", "Peers", shortNumber],
  ["seconds", "Time of a round", seconds],
  ["bytes", "Sent in a round, all peers", bytes],
  ["averaged", "Share of updates averaged", (v) => (v === null || v === undefined ? "–" : `${shortNumber(100 * v)} %`)],
];
const EVERY_MS = 1500;
const box = document.getElementById("charts"),
  none = document.getElementById("no-rounds"),
  charts = new Map();
let last = "",
  due = false;

async function load() {
  const answer = await fetch(`${box.dataset.path}.json`);
  if (!answer.ok) return;
  const { rounds } = await answer.json(),
    told = JSON.stringify(rounds);
  none.hidden = rounds.round.length > 0;
  if (told === last) return;
  last = told;
  for (const [key, title, format] of KINDS) if (rounds[key].some((v) => v !== null)) draw(key, title, format, rounds);
}

function draw(key, title, format, rounds) {
  if (!charts.has(key)) {
    const chart = new Chart(title, { format });
    charts.set(key, chart);
    box.append(chart.card);
  }
  charts.get(key).update({ x: rounds.round, series: [{ label: title, values: rounds[key] }], xLabel: "round" });
}

load();
for (const news of ["shoal:tick", "shoal:changed"])
  document.body.addEventListener(news, () => {
    due = true;
  });
setInterval(() => {
  if (due && !document.hidden) {
    due = false;
    load();
  }
}, EVERY_MS);
