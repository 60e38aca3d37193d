// Live charts of a job's metrics. The server thins each to what a chart can show, so a million points cost what a thousand do.
import { align } from "./charts.js";
import { grid, line, lines } from "./grid.js";
import { api, head } from "./job.js";

const POINTS = 800;

async function get(path) {
  const answer = await fetch(`${api}/${path}`);
  if (!answer.ok) throw new Error(`${answer.status}`);
  return answer.json();
}

async function load(wanted, settings) {
  const query = new URLSearchParams({ points: POINTS, axis: settings.axis, ghosts: true, smoothing: settings.weight });
  for (const name of wanted) query.append("name", name);
  const { metrics, ghosts, smoothed } = await get(`metrics?${query}`);
  if (Object.keys(ghosts ?? {}).length) document.getElementById("ghosts-control").hidden = false;
  return Object.fromEntries(wanted.map((name) => {
    const lost = settings.ghosts ? ghosts?.[name] ?? [] : [];
    return [name, align([{ label: name, ...lines(metrics[name], smoothed?.[name]) }, ...overwritten(lost)])];
  }));
}

// What an attempt logged beyond the checkpoint that a later one went on from: a line for each.
function overwritten(points) {
  const attempts = new Map();
  for (const point of points) (attempts.get(point[2]) ?? attempts.set(point[2], []).get(point[2])).push(point);
  return [...attempts].map(([attempt, some]) => ({ label: `attempt ${attempt}`, ghost: true, colour: 0, ...line(some) }));
}

const { soon, isEmpty } = grid({ names: async () => (await get("metric-names")).map(({ name }) => name), load });
document.body.addEventListener("shoal:metrics", soon);
document.body.addEventListener("shoal:end", soon);
// Where no metric comes for a while, the stream is silent; a new one may still turn up.
setInterval(() => { if (!document.hidden && isEmpty() && head.querySelector(".status.running")) soon(); }, 5000);
