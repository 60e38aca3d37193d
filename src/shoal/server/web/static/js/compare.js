// Charts of several jobs laid over each other: one line and one colour per job.
import { align } from "./charts.js";
import { grid, lines } from "./grid.js";

const POINTS = 600;
const jobs = [...document.querySelectorAll("[data-series]")].map(({ dataset }, colour) => ({ name: dataset.name, api: dataset.api, colour, has: new Set() }));

async function get(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${answer.status}`);
  return answer.json();
}

async function names() {
  const found = await Promise.allSettled(jobs.map(async (job) => {
    job.has = new Set((await get(`${job.api}/metric-names`)).map(({ name }) => name));
    return [...job.has];
  }));
  return [...new Set(found.flatMap(({ value }) => value ?? []))];
}

async function load(wanted, { axis, weight }) {
  const found = await Promise.all(jobs.map(async ({ api, has }) => {
    const mine = wanted.filter((name) => has.has(name));
    if (!mine.length) return {};
    const query = new URLSearchParams({ points: POINTS, axis, smoothing: weight });
    for (const name of mine) query.append("name", name);
    const { metrics, smoothed } = await get(`${api}/metrics?${query}`);
    return Object.fromEntries(Object.entries(metrics).map(([name, points]) => [name, lines(points, smoothed?.[name])]));
  }));
  return Object.fromEntries(wanted.map((name) => [name, align(jobs.flatMap(({ name: label, colour }, i) => (found[i][name] ? [{ label, colour, ...found[i][name] }] : [])))]));
}

const { soon } = grid({ names, load });
document.body.addEventListener("shoal:tick", soon);
