// What the table of runs shows: query, sort, columns, groups, or a saved view. The address holds it, so that it can be shared.
import { call } from "./api.js";
import { $ } from "./dom.js";

const box = $("runs");
export const { api, base } = box.dataset;
export const writes = box.dataset.writes === "True";
export const state = { q: "", sort: "", columns: [], group: [], view: "" };

const OWN = ["q", "sort", "column", "group", "view"];
const KEPT = `shoal-runs ${base}`;
const kept = recall();

/** What this browser keeps for the next visit: columns, and whether the charts are shown. */
function recall() {
  try {
    const found = JSON.parse(localStorage.getItem(KEPT) ?? "{}");
    return Array.isArray(found) ? { columns: found } : found;
  } catch {
    return {};
  }
}
export const remembered = (name) => kept[name];
export function remember(fields) {
  Object.assign(kept, fields);
  try {
    localStorage.setItem(KEPT, JSON.stringify(kept));
  } catch {
    /* no storage, no memory */
  }
}

/** Reads the address; returns the saved view that it names, if any. */
export async function readAddress() {
  const given = new URLSearchParams(location.search);
  Object.assign(state, {
    q: given.get("q") ?? "",
    sort: given.get("sort") ?? "",
    columns: given.getAll("column"),
    group: given.getAll("group"),
    view: given.get("view") ?? "",
  });
  if (state.view) return load(state.view);
  if (!OWN.some((name) => given.has(name))) state.columns = kept.columns ?? [];
  return null;
}
async function load(name) {
  const view = await call("GET", `${api}/run-views/${encodeURIComponent(name)}`);
  Object.assign(state, { q: view.q, sort: view.sort, columns: view.columns, group: view.group, view: name });
  return view;
}

/** The query of the API for what is shown. */
export function query() {
  const made = new URLSearchParams();
  if (state.q) made.set("q", state.q);
  if (state.sort) made.set("sort", state.sort);
  for (const name of state.columns) made.append("column", name);
  for (const name of state.group) made.append("group", name);
  return made;
}

/** Writes the address. A view is named as long as nothing in it was changed; settings of the charts stay. */
export function writeAddress() {
  const others = new URLSearchParams(location.search);
  for (const name of OWN) others.delete(name);
  const own = state.view ? new URLSearchParams({ view: state.view }) : query();
  const all = [own, others].map(String).filter(Boolean).join("&");
  history.replaceState(null, "", `${location.pathname}${all ? `?${all}` : ""}`);
}

/** A value as it is written in a query: quoted where it contains what would separate it. */
export function quoted(value) {
  const text = String(value);
  return /^[^\s":=!<>~,-][^\s":=!<>~,]*$/.test(text) ? text : `"${text.replace(/[\\"]/g, "\\$&")}"`;
}
