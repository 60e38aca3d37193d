// The table of runs beside their charts. Menus and actions on chosen runs are loaded when they are used first.
import { call } from "./api.js";
import { toast } from "./app.js";
import { $, make } from "./dom.js";
import { colours } from "./lines.js";
import { idOf, labelOf, pathOf, Rows } from "./runs_rows.js";
import { api, base, query, readAddress, remember, remembered, state, writeAddress, writes } from "./runs_state.js";
import { Table } from "./runs_table.js";

const TYPING_MS = 250,
  EYES = 10,
  MOST_LINES = 50,
  MOST_CHOSEN = 1000,
  MOST_SWEEPS = 20;

/** Shows what the state says. `changed`: a person changed it, so the address follows and the table starts at its top. */
async function show({ changed = true } = {}) {
  if (changed) {
    state.view = "";
    writeAddress();
    remember({ columns: state.columns });
  }
  fill();
  try {
    if (!(await table.read(sweepRows(changed)))) return;
  } catch (error) {
    $("runs-error").textContent = error.message;
    return;
  }
  $("runs-error").textContent = "";
  if (changed) table.view.scrollTop = 0;
  $("runs-count").textContent = counted(table.total, state.group.length ? "group" : "run");
  automatic = new Set(table.rows.slice(0, EYES).filter(Boolean).map(idOf));
  paint();
  showChosen();
}
const counted = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

/** Fields and links that follow the state. */
function fill() {
  if ($("runs-q") !== document.activeElement) $("runs-q").value = state.q;
  const asked = query();
  $("runs-csv").href = `${api}/runs/csv?${asked}`;
  asked.set("limit", 10000);
  $("runs-json").href = `${api}/runs/query?${asked}`;
  const grouped = state.group.map((name) => (name.startsWith("-") ? `all but ${name.slice(1)}` : name));
  $("runs-group").querySelector("summary span").textContent = grouped.length ? `By ${grouped.join(", ")}` : "Group";
  $("runs-views").querySelector("summary span").textContent = state.view || "Views";
}

// Which runs are in the charts: those whose eye is on; without a choice the first ones.
let eyes = new Map(),
  automatic = new Set(),
  shades = new Map();
const isShown = (item) => eyes.get(idOf(item)) ?? automatic.has(idOf(item));
const shownItems = () => table.known().filter(isShown).slice(0, MOST_LINES);
function paint() {
  shades = colours(shownItems().map(idOf));
  table.forget();
  table.draw();
  charts?.refresh();
  compareShown();
}
function toggleEye(item) {
  if (!isShown(item) && shownItems().length >= MOST_LINES) {
    toast(`The charts show at most ${MOST_LINES} lines.`);
    return;
  }
  eyes.set(idOf(item), !isShown(item));
  paint();
}
/** Link to the comparison of what the charts show, where their samples are side by side. */
function compareShown() {
  const ids = [...new Set(shownItems().flatMap((item) => item.ids ?? [item.id]))],
    most = Number($("runs-side").dataset.most);
  $("runs-side").hidden = ids.length < 2;
  $("runs-side").href = `${base}/compare?jobs=${ids.slice(0, most).join(",")}`;
  $("runs-side").querySelector("span").textContent =
    ids.length > most ? `Compare ${most} of these ${ids.length}` : `Compare these ${ids.length}`;
}
/** Lines of the charts. A group is the mean of its runs: of the newest, if it has more than the server lists. */
function lines() {
  return shownItems().map((item) => {
    const some = item.ids && item.ids.length < item.runs ? ` (${item.ids.length} of ${item.runs} runs)` : "";
    return {
      key: idOf(item),
      ids: item.ids ?? [item.id],
      label: item.key ? labelOf(item) + some : item.title || item.name,
      colour: shades.get(idOf(item)),
      href: item.name ? pathOf(item) : null,
    };
  });
}

// Charts beside the table.
let charts = null;
async function toggleCharts(on, view = null) {
  $("runs-charts").hidden = !on;
  $("runs-toggle").setAttribute("aria-pressed", String(on));
  $("runs-layout").classList.toggle("with-charts", on);
  if (on && !charts) {
    const { Workspace } = await import("./workspace.js");
    const link = (line) => make("a", { className: "btn", href: line.run.href, text: "Open the run" });
    charts = new Workspace({
      page: "runs",
      api,
      view: view?.layout ? view : null,
      runs: lines,
      names: async () => (await call("GET", `${api}/runs/columns`)).metrics,
      offers: (line) => (line.run.href ? [make("div", { className: "row" }, link(line))] : []),
    });
    await charts.start();
  }
  table.draw();
}
$("runs-toggle").addEventListener("click", () => {
  const on = $("runs-charts").hidden;
  remember({ charts: on });
  toggleCharts(on);
});
/** What a saved view keeps of the charts. */
export const chartsOfView = () => ({
  on: !$("runs-charts").hidden,
  shown: eyes.size ? shownItems().map(idOf) : [],
  ...(charts ? { layout: charts.layout, settings: charts.settings } : {}),
});

// Trials are folded below their sweep, which stands above the runs.
const opened = new Map();
let sweeps = [];
async function sweepRows(again) {
  if (state.group.length || /[:<>=~]/.test(state.q)) return [];
  if (again || !sweeps.length) {
    try {
      sweeps = (await call("GET", `${api}/sweeps`)).slice(0, MOST_SWEEPS);
    } catch {
      sweeps = [];
    }
  }
  const words = state.q.toLowerCase().split(/\s+/).filter(Boolean),
    wanted = sweeps.filter(({ name }) => words.every((word) => name.toLowerCase().includes(word)));
  return wanted.flatMap((sweep) => [{ make: () => rows.sweep(sweep) }, ...trialRows(sweep)]);
}
function trialRows(sweep) {
  const trials = opened.get(sweep.id);
  if (trials && !trials.length) {
    const text = "No trial of it has a job.";
    return [{ make: () => make("tr", { className: "trial" }, make("td", { colSpan: 40, className: "muted", text })) }];
  }
  return (trials ?? []).map((item) => ({ item, make: () => rows.run(item, { isTrial: true }) }));
}
async function fold(sweep) {
  if (opened.has(sweep.id)) opened.delete(sweep.id);
  else {
    const q = `kind:trial sweep:"${sweep.id}","${sweep.name}"`,
      asked = new URLSearchParams({ q, limit: 500, sort: state.sort });
    for (const name of state.columns) asked.append("column", name);
    try {
      opened.set(sweep.id, (await call("GET", `${api}/runs/query?${asked}`)).rows);
    } catch (error) {
      toast(error.message, "bad");
    }
  }
  table.heads = await sweepRows(false);
  paint();
}

// Chosen runs, and what can be done with them.
export const chosen = new Map();
const bulk = () => import("./runs_bulk.js");
function showChosen() {
  if (chosen.size || !$("runs-bulk").hidden) bulk().then((module) => module.showChosen());
}
async function chooseAll(on) {
  chosen.clear();
  if (on) {
    const asked = query();
    asked.set("limit", MOST_CHOSEN);
    for (const row of (await call("GET", `${api}/runs/query?${asked}`)).rows) chosen.set(row.id, row);
    if (table.total > MOST_CHOSEN) toast(`The first ${MOST_CHOSEN} of ${table.total} runs are chosen.`);
  }
  paint();
  showChosen();
}
export function showOnlyChosen() {
  for (const item of table.known()) eyes.set(idOf(item), chosen.has(item.id));
  if ($("runs-charts").hidden) toggleCharts(true);
  paint();
}
export async function chooseNone() {
  chosen.clear();
  paint();
  showChosen();
}
export const reload = () => show({ changed: false });

const keys = () => [...new Set(table.rows.filter(Boolean).flatMap((group) => Object.keys(group.key)))];
const others = () => state.columns.filter((name) => !keys().includes(name));
function set(fields) {
  Object.assign(state, fields);
  return show();
}
const rows = new Rows({
  sort: (sort) => set({ sort }),
  remove: (name) => set({ columns: state.columns.filter((one) => one !== name) }),
  ungroup: (name) => set({ group: state.group.filter((one) => one !== name) }),
  narrow: (term) => set({ q: [state.q, term].filter(Boolean).join(" ") }),
  eye: toggleEye,
  isShown,
  colour: (item) => shades.get(idOf(item)) ?? 0,
  star: async (row) => (await bulk()).change([row.id], { starred: !row.starred }),
  tick: (row, on) => {
    if (on) chosen.set(row.id, row);
    else chosen.delete(row.id);
    showChosen();
  },
  tickAll: chooseAll,
  isChosen: (row) => chosen.has(row.id),
  allChosen: () => chosen.size > 0 && chosen.size >= table.total,
  fold,
  folded: (sweep) => opened.has(sweep.id),
});
const table = new Table({
  row: (item) => (item.key ? rows.group(item, keys(), others()) : rows.run(item)),
  head: () => (state.group.length ? rows.groupHead(keys(), others()) : rows.head()),
  empty: () => {
    $("runs-empty").hidden = Boolean(state.q);
    return state.q ? ["No run matches."] : ["No runs yet."];
  },
});

// Menus: columns, groups, views.
export { show, state, writes };
for (const id of ["runs-columns", "runs-group", "runs-views"]) {
  const menu = $(id);
  menu.addEventListener("toggle", async () => {
    if (menu.open) (await import("./runs_menus.js")).fill(id);
  });
}
let typing = null;
$("runs-q").addEventListener("input", ({ target }) => {
  clearTimeout(typing);
  typing = setTimeout(() => set({ q: target.value.trim() }), TYPING_MS);
});
$("runs-form").addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(typing);
  set({ q: $("runs-q").value.trim() });
});

document.body.addEventListener("shoal:tick", () => {
  show({ changed: false });
  charts?.soon();
});
addEventListener("shoal:theme", paint);
addEventListener("popstate", begin);

/** Shows a saved view, or what the address says. */
export async function begin() {
  let view = null;
  try {
    view = await readAddress();
  } catch (error) {
    toast(error.message, "bad");
  }
  eyes = new Map();
  const { charts: saved = {} } = view ?? {};
  await show({ changed: false });
  if (saved.shown?.length) {
    for (const item of table.known()) eyes.set(idOf(item), saved.shown.includes(idOf(item)));
    paint();
  }
  if (charts && saved.layout) charts.use(saved);
  await toggleCharts(saved.on ?? remembered("charts") ?? innerWidth >= 1200, saved);
}

const field = $("runs-q"),
  early = field.value === field.defaultValue ? null : field.value.trim(); // typed before this script was loaded
begin().then(() => early !== null && set({ q: early }));
