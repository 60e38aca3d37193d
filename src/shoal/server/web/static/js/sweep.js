// A sweep's page: its linked charts, updated as trials report.
import { ramp } from "./canvas.js";
import { Parallel } from "./parallel.js";
import { beside, ofNumbers, ofParameter, short, wantsLog } from "./scales.js";
import { Scatter } from "./scatter.js";

const EVERY_MS = 1500,
  MOST_AXES = 12;
const $ = (id) => document.getElementById(id);
const { path, jobs } = $("plots").dataset;
const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
document.body.append(tip);

// State shared by all charts. Positions and ranks are computed once, when trials arrive.
const shown = {
  axes: [],
  count: 0,
  order: [],
  results: [],
  states: [],
  places: [],
  ranks: [],
  brush: new Map(),
  hover: null,
  pinned: null,
  result: ofNumbers("", []),
  place: (axis, i) => shown.places[axis][i],
  colour: (i) => (shown.ranks[i] === null ? shown.none : shown.colours(shown.ranks[i])),
  passes: (i) =>
    [...shown.brush].every(([name, [low, high]]) => {
      const k = shown.axes.findIndex((axis) => axis.name === name),
        place = k < 0 ? null : shown.places[k][i];
      return k < 0 || (place !== null && place >= low - 1e-9 && place <= high + 1e-9);
    }),
};
let told = null,
  last = "",
  log = null,
  best = [],
  pinned = null,
  numbered = ofNumbers("trial", [0, 1]);
const redraw = () => {
  for (const plot of plots) plot.draw();
};
const point = () => {
  for (const plot of plots) plot.remark();
};
const tell = {
  hover: (i, event) => {
    if (event && i !== null)
      Object.assign(tip.style, {
        left: `${Math.min(event.clientX + 14, innerWidth - 260)}px`,
        top: `${event.clientY + 14}px`,
      });
    if (i === shown.hover) return;
    shown.hover = i;
    tip.hidden = i === null;
    if (i !== null) tip.replaceChildren(...about(i));
    point();
  },
  pin: (i) => {
    shown.pinned = i;
    pinned = i === null ? null : told.points.number[i];
    say();
    point();
  },
  brush: () => {
    $("clear-brush").disabled = !shown.brush.size;
    say();
    redraw();
  },
};

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function about(i) {
  const { points, sweep } = told;
  const facts = Object.entries(points.params).map(([name, values]) => `${name} ${short(values[i])}`);
  return [
    element("b", `trial ${points.number[i]}: ${short(points.result[i])}`),
    element("span", `${points.state[i]}, ${sweep.metric}`),
    ...facts.map((fact) => element("span", fact)),
  ];
}

// Below the lines: the trial that was clicked, or the number of visible trials.
function say() {
  const { points } = told,
    i = shown.pinned;
  if (i !== null) {
    const facts = Object.entries(points.params)
      .map(([name, values]) => `${name} ${short(values[i])}`)
      .join(", ");
    const link = points.job[i] ? [element("a", "Open its job", { href: `${jobs}/${points.job[i]}` })] : [];
    return $("trial-shown").replaceChildren(
      element("b", `Trial ${points.number[i]}: ${short(points.result[i])}`),
      ` ${facts} `,
      ...link,
    );
  }
  const seen = shown.order.filter(shown.passes).length,
    few =
      points.number.length < points.total
        ? `${points.number.length} of ${points.total} trials drawn, the best among them. `
        : "";
  const chosen = shown.brush.size ? `${seen} of ${shown.count} in the chosen ranges. ` : "";
  $("trial-shown").replaceChildren(`${few}${chosen}Drag along an axis to choose a range; click a line for its job.`);
}

function take(found) {
  told = found;
  const { points, sweep } = found,
    { space } = sweep.spec;
  const names = Object.keys(space).filter((name) => space[name].kind === "between" || space[name].values.length > 1);
  const most = [...names].sort((a, b) => (sweep.importance[b] ?? 0) - (sweep.importance[a] ?? 0)).slice(0, MOST_AXES);
  Object.assign(shown, {
    count: points.number.length,
    results: points.result,
    states: points.state,
    names: names.filter((name) => most.includes(name)),
  });
  const at = points.number.indexOf(pinned);
  Object.assign(shown, { pinned: at < 0 ? null : at, hover: null });
  tip.hidden = true;
  const ranked = points.result
    .map((v, i) => [v, i])
    .filter(([v]) => v !== null)
    .sort(([a], [b]) => (sweep.direction === "min" ? b - a : a - b));
  shown.ranks = Array(shown.count).fill(null);
  ranked.forEach(([, i], place) => {
    shown.ranks[i] = ranked.length > 1 ? place / (ranked.length - 1) : 1;
  });
  shown.order = [...Array(shown.count).keys()].sort((a, b) => (shown.ranks[a] ?? -1) - (shown.ranks[b] ?? -1));
  best = points.best;
  numbered = ofNumbers("trial", [0, Math.max(1, points.number.at(-1) ?? 0)]);
  $("log-result").disabled = points.result.some((v) => v !== null && v <= 0);
  log ??= wantsLog(points.result) || null;
  $("log-result").checked = Boolean(log) && !$("log-result").disabled;
  $("plots").hidden = $("more-plots").hidden = !ranked.length;
  $("no-results").hidden = ranked.length > 0;
  fillChoice();
  measure();
}

function measure() {
  const { points, sweep } = told;
  shown.result = ofNumbers(sweep.metric, points.result, { log: $("log-result").checked, room: 0.03 });
  shown.axes = [
    ...shown.names.map((name) => ofParameter(name, sweep.spec.space[name], points.params[name])),
    shown.result,
  ];
  shown.places = shown.axes.map((axis, k) =>
    (k < shown.names.length ? points.params[axis.name] : points.result).map((value, i) =>
      beside(axis, value, points.number[i]),
    ),
  );
  recolour();
  say();
}

function recolour() {
  Object.assign(shown, {
    colours: ramp(),
    none: getComputedStyle(document.documentElement).getPropertyValue("--line-strong"),
  });
  redraw();
}

function fillChoice() {
  const choice = $("scatter-x"),
    wanted = choice.value;
  if ([...choice.options].map(({ value }) => value).join("\n") === shown.names.join("\n")) return;
  choice.replaceChildren(...shown.names.map((name) => element("option", name, { value: name })));
  const { importance } = told.sweep,
    first = [...shown.names].sort((a, b) => (importance[b] ?? 0) - (importance[a] ?? 0))[0];
  choice.value = shown.names.includes(wanted) ? wanted : (first ?? "");
}

const chosen = () => shown.axes.find(({ name }) => name === $("scatter-x").value) ?? shown.result;
const plots = [
  new Parallel($("parallel"), shown, tell),
  new Scatter($("scatter"), "Results by the value of a parameter; the table below has the same data", shown, tell, {
    across: chosen,
    place: (i) => shown.place(shown.axes.indexOf(chosen()), i),
  }),
  new Scatter(
    $("best-so-far"),
    "Results in order of trials, and the best so far; the table below has the same data",
    shown,
    tell,
    {
      across: () => numbered,
      place: (i) => numbered.at(told.points.number[i]),
      line: () => best.map(([number, result]) => [numbered.at(number), result]),
    },
  ),
];

let timer = null;
async function load() {
  const answer = await fetch(`${path}.json`);
  if (!answer.ok) return;
  const text = await answer.text(),
    found = JSON.parse(text),
    key = JSON.stringify([found.points, found.sweep.importance]);
  if (key === last) return;
  last = key;
  take(found);
}
const soon = () => {
  timer ??= setTimeout(() => {
    timer = null;
    load().catch(() => {});
  }, EVERY_MS);
};

$("scatter-x").addEventListener("change", redraw);
$("log-result").addEventListener("change", ({ target }) => {
  log = target.checked;
  measure();
});
$("clear-brush").addEventListener("click", () => {
  shown.brush.clear();
  tell.brush();
});
addEventListener("shoal:theme", recolour);
for (const kind of ["shoal:tick", "shoal:changed"]) document.body.addEventListener(kind, soon);
load().catch(() => {});
