// Media of several runs side by side: a row for each name, a column for each run, and one step for all.
import { shortNumber } from "./units.js";
import { make } from "./dom.js";
import { prepareAll } from "./tables.js";
import { call } from "./api.js";

const MOST_ROWS = 100,
  MOST_NAMES = 50,
  SLIDING_MS = 60;
const jobs = [...document.querySelectorAll("[data-series]")].map(({ dataset }) => ({
  name: dataset.name,
  api: dataset.api,
}));
const box = document.getElementById("media"),
  slider = document.getElementById("media-step"),
  output = box.querySelector("output");
const SVG = "http://www.w3.org/2000/svg";
let steps = [];

async function contents(address) {
  try {
    return await call("GET", address);
  } catch {
    return null;
  }
}
function bars({ edges, counts }) {
  const svg = document.createElementNS(SVG, "svg"),
    most = Math.max(1, ...counts),
    span = edges.at(-1) - edges[0];
  svg.setAttribute("class", "histogram");
  svg.setAttribute("viewBox", "0 0 1000 300");
  svg.setAttribute("preserveAspectRatio", "none");
  counts.forEach((n, i) => {
    const bar = document.createElementNS(SVG, "rect"),
      at = {
        x: (1000 * (edges[i] - edges[0])) / span,
        y: 300 - (300 * n) / most,
        width: (1000 * (edges[i + 1] - edges[i])) / span,
        height: (300 * n) / most,
      };
    for (const [name, v] of Object.entries(at)) bar.setAttribute(name, v.toFixed(2));
    svg.append(bar);
  });
  return svg;
}
/** One medium as an element. Scripts wrote them, so all of it is shown as text or as a picture. */
async function shown(job, medium) {
  const address = `${job.api}/media/${medium.id}`;
  if (medium.mime.startsWith("image/"))
    return make(
      "a",
      { href: address, target: "_blank", rel: "noopener" },
      make("img", { src: address, loading: "lazy", alt: `${medium.name} of ${job.name} at step ${medium.step}` }),
    );
  const found = /json/.test(medium.mime) ? await contents(address) : null;
  if (Array.isArray(found?.texts))
    return make(
      "div",
      { className: "texts tall" },
      ...found.texts.slice(0, MOST_ROWS).map((text) => make("pre", { text: String(text) })),
    );
  if (Array.isArray(found?.counts) && Array.isArray(found?.edges))
    return make(
      "div",
      {},
      bars(found),
      make("p", {
        className: "muted small",
        text: `${shortNumber(found.edges[0])} to ${shortNumber(found.edges.at(-1))}`,
      }),
    );
  if (Array.isArray(found?.columns) && Array.isArray(found?.rows)) {
    return make(
      "div",
      { className: "scroll tall" },
      make(
        "table",
        { className: "sortable" },
        make("thead", {}, make("tr", {}, ...found.columns.map((name) => make("th", { text: String(name) })))),
        make(
          "tbody",
          {},
          ...found.rows
            .slice(0, MOST_ROWS)
            .map((row) => make("tr", {}, ...row.map((v) => make("td", { text: v === null ? "" : String(v) })))),
        ),
      ),
    );
  }
  return make("a", { href: address, text: medium.file, download: medium.file });
}

/** The newest of a name at or before a step. */
const at = (list, step) => list.findLast((medium) => medium.step <= step) ?? null;
let generation = 0;
async function draw() {
  const mine = ++generation,
    step = steps[Number(slider.value)] ?? Infinity;
  output.value = `step ${shortNumber(step)}`;
  await Promise.all(
    [...box.querySelectorAll("td[data-job]")].map(async (cell) => {
      const job = jobs[cell.dataset.job],
        medium = at(job.media.get(cell.dataset.key) ?? [], step);
      if (cell.dataset.shown === (medium?.id ?? "none")) return;
      const made = medium ? await shown(job, medium) : make("span", { className: "muted", text: "–" });
      if (mine !== generation) return;
      cell.dataset.shown = medium?.id ?? "none";
      cell.replaceChildren(
        made,
        ...(medium ? [make("p", { className: "muted small", text: `step ${medium.step}` })] : []),
      );
    }),
  );
  prepareAll(box);
}

async function start() {
  await Promise.all(
    jobs.map(async (job) => {
      job.media = new Map();
      for (const medium of (await contents(`${job.api}/media`)) ?? []) {
        const key = JSON.stringify([medium.name, medium.type]);
        (job.media.get(key) ?? job.media.set(key, []).get(key)).push(medium);
      }
    }),
  );
  const keys = [...new Set(jobs.flatMap(({ media }) => [...media.keys()]))]
    .sort(
      (a, b) =>
        jobs.filter(({ media }) => media.has(b)).length - jobs.filter(({ media }) => media.has(a)).length ||
        a.localeCompare(b),
    )
    .slice(0, MOST_NAMES);
  if (!keys.length) return;
  steps = [...new Set(jobs.flatMap(({ media }) => [...media.values()].flat().map(({ step }) => step)))].sort(
    (a, b) => a - b,
  );
  Object.assign(slider, { max: steps.length - 1, value: steps.length - 1 });
  box
    .querySelector("thead")
    .replaceChildren(
      make(
        "tr",
        {},
        make("th", {}, make("span", { className: "sr", text: "Name" })),
        ...jobs.map(({ name }) => make("th", { text: name })),
      ),
    );
  box
    .querySelector("tbody")
    .replaceChildren(
      ...keys.map((key) =>
        make(
          "tr",
          {},
          make("th", { scope: "row", text: JSON.parse(key)[0] }),
          ...jobs.map((job, i) => make("td", { data: { job: i, key } })),
        ),
      ),
    );
  box.hidden = false;
  await draw();
}
let timer = null;
slider.addEventListener("input", () => {
  output.value = `step ${shortNumber(steps[Number(slider.value)])}`;
  clearTimeout(timer);
  timer = setTimeout(draw, SLIDING_MS);
});
start();
