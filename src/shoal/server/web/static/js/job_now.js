// A job's overview: its pinned curves, or those of its losses, and the end of its log; both are live.
import { call } from "./api.js";
import { make } from "./dom.js";
import { api, follower, path } from "./job.js";
import { colourOf, byWeight, quote, unquote } from "./lines.js";
import { logRow } from "./log_rows.js";
import { Panel } from "./panel.js";

const id = api.split("/").at(-1),
  workspaceApi = api.slice(0, api.lastIndexOf("/jobs/"));
const POINTS = 400,
  PAD = 0.02,
  WITHOUT_PINS = 2,
  MOST_CHARTS = 6,
  EVERY_MS = 1500,
  LINES = 200;
const KINDS = { step: "number", relative: "seconds", time: "time" };
const panels = new Map();
let box, tail;

/** Charts that are pinned in the layout of job pages; without any, those of the first metrics. */
async function wanted() {
  const [names, layouts, defined] = await Promise.all([
    call("GET", `${api}/metric-names`),
    call("GET", `${workspaceApi}/chart-layouts/job`).catch(() => ({})),
    call("GET", `${api}/chart-definitions`).catch(() => ({ charts: [] })),
  ]);
  const known = names.map(({ name }) => name).sort(byWeight),
    { panels: laid = {}, settings = {} } = layouts.mine ?? layouts.shared ?? {};
  const pinned = Object.entries(laid)
    .filter(([, spec]) => spec.pinned && !spec.hidden)
    .map(([key, spec]) => specOf(key, spec, known, defined.charts))
    .filter(Boolean);
  const first = known.slice(0, WITHOUT_PINS).map((name) => specOf(`m:${name}`, laid[`m:${name}`] ?? {}, known, []));
  return { settings, specs: (pinned.length ? pinned : first).slice(0, MOST_CHARTS) };
}
function specOf(key, spec, known, charts) {
  const name = key.slice(2),
    chart = charts.find(({ title }) => title === name);
  if (key.startsWith("m:")) return known.includes(name) ? { key, title: name, names: [quote(name)], ...spec } : null;
  if (key.startsWith("d:")) return chart ? { key, title: name, names: chart.metrics, x: chart.x, ...spec } : null;
  return spec.names?.length ? { key, ...spec } : null;
}

async function draw() {
  const { settings, specs } = await wanted();
  for (const [key, { panel }] of panels)
    if (!specs.some((spec) => spec.key === key)) {
      panel.card.remove();
      panels.delete(key);
    }
  box.hidden = !specs.length;
  await Promise.all(specs.map((spec) => fill(shown(spec, settings))));
}
function shown(spec, settings) {
  let one = panels.get(spec.key);
  if (!one) {
    one = {};
    one.panel = new Panel(spec.title, {
      zoomed: () => fill(one),
      menu: () => location.assign(`${path}/metrics?${new URLSearchParams({ panel: spec.key })}`),
      offers: () => [],
    });
    one.panel.menu.title = one.panel.menu.ariaLabel = `${spec.title} under Metrics`;
    one.panel.menu.removeAttribute("aria-haspopup");
    panels.set(spec.key, one);
    box.append(one.panel.card);
  }
  return Object.assign(one, { spec, settings });
}

/** The points of one chart; while it is zoomed in, those of that part. */
async function fill({ panel, spec, settings }) {
  const x = [spec.x, settings.x].find((one) => KINDS[one]) ?? "step",
    { range } = panel;
  const query = new URLSearchParams({ x, points: POINTS, smoothing: settings.smooth ?? 0.6, job: id });
  for (const name of spec.names) query.append("name", name);
  if (range) {
    const pad = PAD * (range[1] - range[0]);
    query.set("from", range[0] - pad);
    query.set("to", range[1] + pad);
  }
  const { lines } = await call("GET", `${workspaceApi}/metrics/query?${query}`);
  if (range !== panel.range) return; // zoomed on meanwhile
  panel.say(lines.length ? "" : "No points here.");
  panel.update({
    lines: lines.map((line) => ({
      ...line,
      key: line.name,
      label: unquote(line.name),
      colour: spec.names.length > 1 ? spec.names.indexOf(line.name) : colourOf(id),
    })),
    xKind: KINDS[x],
    xLabel: x,
    options: {
      logX: spec.logX,
      logY: spec.logY ?? settings.logY,
      min: spec.min,
      max: spec.max,
      cut: spec.cut ?? settings.cut,
    },
  });
}

let timer = null;
const soon = () => {
  timer ??= setTimeout(() => {
    timer = null;
    if (box) draw().catch(() => {});
  }, EVERY_MS);
};
for (const news of ["shoal:metrics", "shoal:end"]) document.body.addEventListener(news, soon);

// The end of the log. Lines beyond the last few are on the page of the log.
const toEnd = () => {
  while (tail.childElementCount > LINES) tail.firstElementChild.remove();
  tail.scrollTop = tail.scrollHeight;
};
async function showTail() {
  const answer = await fetch(`${tail.dataset.path}/lines`, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error(answer.status);
  const slice = await answer.json();
  tail.replaceChildren(...slice.lines.slice(-LINES).map(logRow));
  if (!slice.lines.length)
    tail.append(make("p", { className: "none", text: "Nothing was logged yet." }));
  toEnd();
  follower.restart(slice.cursor);
}
document.body.addEventListener("shoal:log", ({ detail }) => {
  if (!tail) return;
  const atEnd = tail.scrollHeight - tail.scrollTop - tail.clientHeight < 40;
  tail.querySelector(".none")?.remove();
  tail.append(...detail.lines.map(logRow));
  if (atEnd) toEnd();
});

// The overview is loaded again when the job's state changes; what is moved in the document loses its place.
let place = 0;
document.body.addEventListener("htmx:beforeSwap", () => {
  place = tail?.scrollTop ?? 0;
});
document.body.addEventListener("htmx:afterSwap", () => {
  if (tail) tail.scrollTop = place;
});

function begin() {
  box = document.getElementById("main-charts");
  tail = document.getElementById("tail");
  if (!box) return false;
  draw().catch(() => {});
  showTail().catch(() => follower.open());
  return true;
}
if (!begin()) {
  // It has not been started yet: once it is, the page gets both.
  follower.open();
  document.body.addEventListener("htmx:afterSettle", () => {
    if (!box) begin();
  });
}
