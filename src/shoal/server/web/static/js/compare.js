// Charts of several jobs: one line per job in each, in the colour the job has on every page.
import { call } from "./api.js";
import { colours, shade } from "./lines.js";
import { css } from "./dom.js";
import { Workspace } from "./workspace.js";

const heads = () => [...document.querySelectorAll("[data-series]")];
const shades = colours(heads().map(({ dataset }) => dataset.series));
const jobs = heads().map(({ dataset }) => ({
  key: dataset.series,
  ids: [dataset.series],
  label: dataset.name,
  api: dataset.api,
  colour: shades.get(dataset.series),
}));

/** The heads of the tables have the colours of the lines; the first table is loaded again while jobs run. */
function paint() {
  for (const head of document.querySelectorAll("[data-colour-of]")) {
    head.querySelector(".plot-legend i").style.background = shade(shades.get(head.dataset.colourOf) ?? 0, css);
  }
}
paint();
document.addEventListener("htmx:afterSwap", paint);
addEventListener("shoal:theme", paint);

const charts = new Workspace({
  page: "compare",
  api: jobs[0].api.slice(0, jobs[0].api.lastIndexOf("/jobs/")),
  runs: () => jobs,
  names: async () => {
    const found = await Promise.allSettled(
      jobs.map(async (job) => (await call("GET", `${job.api}/metric-names`)).map(({ name }) => name)),
    );
    return found.flatMap(({ value }) => value ?? []);
  },
});
charts.start();
document.body.addEventListener("shoal:tick", () => charts.soon());
