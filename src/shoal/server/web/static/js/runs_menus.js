// Menus of the table of runs: columns, groups, saved views. Loaded when one of them is opened first.
import { call } from "./api.js";
import { showError, toast } from "./app.js";
import { $, icon, make } from "./dom.js";
import { begin, chartsOfView, show, state, writes } from "./runs.js";
import { api } from "./runs_state.js";

const MOST = 200;
const OF_JOBS = ["duration", "cost", "slot_hours", "device", "nodes", "attempts", "note"];
const OF_METRICS = ["last", "min", "max"];
const body = (id) => $(id).querySelector(".menu-body");

export function fill(id) {
  ({ "runs-columns": columns, "runs-group": groups, "runs-views": views })[id]();
}

/** A list with a field above it that narrows it; `sections`: [title, [item element, …]]. */
function list(id, sections, ...after) {
  const search = make("input", { type: "search", placeholder: "Find", ariaLabel: "Find in this list" }),
    box = make("div", { className: "menu-list" });
  const draw = () => {
    const wanted = search.value.toLowerCase();
    box.replaceChildren(
      ...sections.flatMap(([title, items]) => {
        const fit = items.filter((item) => item.dataset.text.toLowerCase().includes(wanted)).slice(0, MOST);
        return fit.length ? [...(title ? [make("h3", { text: title })] : []), ...fit] : [];
      }),
    );
    if (!box.children.length) box.append(make("p", { className: "muted small", text: "Nothing has this name." }));
  };
  search.addEventListener("input", draw);
  draw();
  const long = sections.reduce((sum, [, items]) => sum + items.length, 0) > 8;
  body(id).replaceChildren(...(long ? [search] : []), box, ...after);
  if (long) search.focus();
}
function check(name, text, checked, onchange) {
  const input = make("input", { type: "checkbox", checked, value: name, onchange: () => onchange(input.checked) });
  return make("label", { className: "check" }, input, text);
}

async function columns() {
  const known = await call("GET", `${api}/runs/columns`);
  const row = (name) => {
    const box = check(name, name.replaceAll("_", " "), state.columns.includes(name), (on) => column(name, on));
    return withText(box, name);
  };
  const metric = (name) => {
    const parts = OF_METRICS.map((end) => {
      const whole = `${name}.${end}`,
        box = check(whole, end, state.columns.includes(whole), (on) => column(whole, on));
      box.querySelector("input").setAttribute("aria-label", whole);
      return box;
    });
    return withText(
      make("div", { className: "menu-row" }, make("span", { className: "grow", text: name }), ...parts),
      name,
    );
  };
  const other = make("input", {
      type: "text",
      placeholder: "loss@500",
      ariaLabel: "Another column",
      autocomplete: "off",
    }),
    add = make("button", { className: "btn", text: "Add" });
  const form = make("form", { className: "menu-row" }, other, add);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (other.value.trim()) column(other.value.trim(), true);
    other.value = "";
  });
  const hint = "A metric at a step (loss@500), or with .step or .count; any argument or value of the configuration.";
  list(
    "runs-columns",
    [
      ["Metrics", known.metrics.map(metric)],
      ["Parameters", known.params.map(row)],
      ["Job", OF_JOBS.map(row)],
    ],
    form,
    make("p", { className: "hint", text: hint }),
  );
}
function withText(element, text) {
  element.dataset.text = text;
  return element;
}
function column(name, on) {
  if (on === state.columns.includes(name)) return;
  state.columns = on ? [...state.columns, name] : state.columns.filter((one) => one !== name);
  show();
}

async function groups() {
  const known = await call("GET", `${api}/runs/columns`);
  const item = (name, text) =>
    withText(
      check(name, text, state.group.includes(name), (on) => group(name, on)),
      text,
    );
  list("runs-group", [
    ["", [item("-seed", "All but the seed"), item("status", "Status"), item("user", "Person")]],
    ["Parameters", known.params.map((name) => item(name, name))],
  ]);
}
function group(name, on) {
  state.group = on ? [...state.group, name] : state.group.filter((one) => one !== name);
  if (!state.group.length || (on && state.group.length === 1)) state.sort = "";
  show();
}

async function views() {
  const found = await call("GET", `${api}/run-views`);
  const row = ({ name, q, created_by: by }) => {
    const link = make("a", {
      href: `?view=${encodeURIComponent(name)}`,
      text: name,
      title: `${q || "All runs"}, by ${by}`,
    });
    if (name === state.view) link.setAttribute("aria-current", "true");
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      history.pushState(null, "", link.href);
      $("runs-views").open = false;
      begin();
    });
    const off = make(
      "button",
      {
        type: "button",
        className: "btn plain icon-only",
        title: "Delete",
        ariaLabel: `Delete the view ${name}`,
        onclick: () => remove(name),
      },
      icon("trash"),
    );
    return withText(
      make("div", { className: "menu-row" }, make("span", { className: "grow" }, link), ...(writes ? [off] : [])),
      name,
    );
  };
  const save = make("button", { type: "button", className: "btn wide", text: "Save this view" });
  save.addEventListener("click", () => {
    $("runs-views").open = false;
    $("save-view-form").elements.name.value = state.view;
    showError($("save-view-form"), "");
    $("save-view").showModal();
  });
  const none = make("p", { className: "muted small", text: "No saved views yet." });
  if (found.length) list("runs-views", [["", found.map(row)]], ...(writes ? [save] : []));
  else body("runs-views").replaceChildren(none, ...(writes ? [save] : []));
}
async function remove(name) {
  try {
    await call("DELETE", `${api}/run-views/${encodeURIComponent(name)}`);
    toast(`The view ${name} is deleted.`, "ok");
  } catch (error) {
    toast(error.message, "bad");
  }
  views();
}
$("save-view-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target,
    name = form.elements.name.value,
    { q, sort, columns: shown, group: by } = state;
  try {
    const view = { q, sort, columns: shown, group: by, charts: chartsOfView() };
    await call("PUT", `${api}/run-views/${encodeURIComponent(name)}`, view);
    form.closest("dialog").close();
    history.pushState(null, "", `?view=${encodeURIComponent(name)}`);
    toast(`Saved as ${name}. Its address can be shared.`, "ok");
    await begin();
  } catch (error) {
    showError(form, error.message);
  }
});
