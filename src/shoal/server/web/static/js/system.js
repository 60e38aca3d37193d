// CPU, memory, disk and GPUs of each node, one chart per kind with a line per node.
import { align, Chart } from "./charts.js";
import { bytes, shortNumber } from "./units.js";
import { path } from "./job.js";

const KINDS = [
  ["cpu", "CPU of the job's processes (%, one core = 100)", shortNumber],
  ["rss", "Memory of the job's processes", bytes],
  ["ram", "Memory in use on the machine", bytes],
  ["load", "Load of the machine", shortNumber],
  ["disk_free", "Disk free", bytes],
  ["util", "GPU use (%)", shortNumber],
  ["mem", "GPU memory", bytes],
  ["watts", "GPU power (W)", shortNumber],
  ["celsius", "GPU temperature (°C)", shortNumber],
  ["mhz", "GPU clock (MHz)", shortNumber],
  ["throttled", "GPU slowed by heat or power (1: yes)", shortNumber],
  ["ecc", "GPU uncorrectable ECC errors", shortNumber],
  ["nvlink_errors", "GPU NVLink errors", shortNumber],
];
const box = document.getElementById("charts"),
  charts = new Map();

async function load() {
  const answer = await fetch(`${path}/system.json`);
  if (!answer.ok) return;
  const { samples } = await answer.json();
  document.getElementById("no-samples").hidden = samples.length > 0;
  for (const [key, title, format] of KINDS) {
    const series = samples.flatMap((n) =>
      Object.keys(n.series)
        .filter((name) => name === key || name.match(/^gpu\d+(?:s\d+)?_(.*)/)?.[1] === key)
        .map((name) => ({
          label: `node ${n.node}${name === key ? "" : ` gpu ${name.match(/^gpu([\ds]+)/)[1].replace("s", " slice ")}`}`,
          at: n.at,
          values: n.series[name],
        })),
    );
    if (series.length) draw(key, title, format, series);
  }
}

// Nodes report at different times: one common x, with gaps.
function draw(key, title, format, series) {
  if (!charts.has(key)) {
    const chart = new Chart(title, { format });
    charts.set(key, chart);
    box.append(chart.card);
  }
  charts.get(key).update({ ...align(series), xKind: "time" });
}

load();
setInterval(() => {
  if (!document.hidden && document.querySelector("#job-head .status.running")) load();
}, 6000);
document.body.addEventListener("shoal:end", load);
