// The log: its end first, followed live; earlier lines on scrolling up; search and the first error by the server.
import { signedOut, toast } from "./app.js";
import { render } from "./ansi.js";
import { follower } from "./job.js";
import { logRow } from "./log_rows.js";

const MAX_LINES = 5000,
  BESIDE = "beside"; // the choice of ranks that shows several side by side
const SEGMENT = 2 ** 21; // a place is a segment and the number of a line in it: see logs.py
const $ = (id) => document.getElementById(id);
const log = $("log"),
  base = $("log-card").dataset.path,
  note = $("log-note"),
  tail = $("log-tail");
let first = 0,
  earlier = false,
  busy = false,
  live = true,
  sticky = true,
  ranks = null,
  generation = 0;

const filters = () => {
  const given = {};
  for (const name of ["rank", "node", "attempt"]) {
    const value = $(`log-${name}`)?.value;
    if (value && value !== BESIDE) given[name] = value;
  }
  return given;
};

async function ask(what, params = {}) {
  const answer = await fetch(`${base}/${what}?${new URLSearchParams({ ...filters(), ...params })}`, {
    headers: { Accept: "application/json" },
  });
  if (answer.status === 401) {
    signedOut(log);
    throw new Error("signed out");
  }
  const body = await answer.json();
  if (!answer.ok) {
    toast(body.error?.message ?? "That did not work.", "bad");
    throw new Error(answer.status);
  }
  return body;
}

function node(line, at = null) {
  const row = logRow(line),
    time = row.firstElementChild;
  if (at !== null) {
    row.dataset.at = at;
    time.tabIndex = 0;
    time.setAttribute("role", "button");
    time.setAttribute("aria-label", `Link to this line, ${time.textContent}`);
    const link = () => choose(row, line);
    time.addEventListener("click", (event) => {
      event.stopPropagation();
      link();
    });
    time.addEventListener("keydown", (event) => {
      if (event.key === "Enter") link();
    });
  }
  return row;
}

function put(lines, where, batch, places = []) {
  const all = document.createDocumentFragment();
  lines.forEach((line, i) => all.append(Object.assign(node(line, places[i] ?? null), { batch })));
  if (where === "top") log.prepend(all);
  else log.append(all);
}

/** Marks a line; the address becomes a link to it, and its point on the curves is offered. */
function choose(row, line) {
  for (const other of log.querySelectorAll(".mark")) other.classList.remove("mark");
  row.classList.add("mark");
  history.replaceState(null, "", `${location.pathname}${location.search}#L${row.dataset.at}`);
  const curve = document.createElement("a"),
    copy = document.createElement("button");
  Object.assign(curve, { href: `${base.replace(/\/logs$/, "/metrics")}?at=${line.at}`, textContent: "On the curves" });
  Object.assign(copy, { type: "button", className: "copy", textContent: "Copy link" });
  copy.dataset.copy = location.href;
  note.replaceChildren(curve, " ", copy);
}

const say = (text) => {
  note.textContent = text;
};
const blank = (text) => {
  const p = document.createElement("p");
  p.className = "none";
  p.textContent = text;
  log.replaceChildren(p);
};

async function showEnd() {
  const mine = ++generation;
  setLive(true);
  follower.close();
  const slice = await ask("lines");
  if (mine !== generation) return;
  log.replaceChildren();
  ({ first, earlier } = slice);
  if (slice.lines.length) put(slice.lines, "end", slice.next, slice.places);
  else blank("Nothing was logged yet. Lines appear here as they arrive.");
  say("");
  toBottom();
  follower.params = filters();
  follower.restart(slice.cursor);
}

async function showEarlier() {
  if (busy || !earlier || !live) return;
  busy = true;
  try {
    const height = log.scrollHeight;
    let slice;
    do {
      slice = await ask("lines", { before: first });
      ({ first, earlier } = slice);
    } while (earlier && !slice.lines.length); // a rank that was silent for long
    put(slice.lines, "top", slice.next, slice.places);
    log.scrollTop += log.scrollHeight - height;
  } finally {
    busy = false;
  }
}

function setLive(on) {
  ranks = null;
  log.classList.remove("beside");
  live = sticky = on;
  tail.setAttribute("aria-pressed", String(on));
}
// Lines are removed at the top in the blocks in which they came, so that scrolling up can restore them.
function trim() {
  while (log.childElementCount > MAX_LINES && log.firstElementChild.batch !== log.lastElementChild.batch) {
    const { batch } = log.firstElementChild;
    while (log.firstElementChild.batch === batch) log.firstElementChild.remove();
    first = batch;
    earlier = true;
  }
}
const toBottom = () => {
  log.scrollTop = log.scrollHeight;
};

document.body.addEventListener("shoal:log", ({ detail }) => {
  ranks?.soon();
  if (!live) return;
  log.querySelector(".none")?.remove();
  put(detail.lines, "end", (detail.cursor + 1) * SEGMENT);
  if (sticky) trim();
  if (sticky) toBottom();
});
document.body.addEventListener("shoal:end", () => say("The job has ended; this is the end of the log."));

log.addEventListener("scroll", () => {
  if (!live) return;
  sticky = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  tail.setAttribute("aria-pressed", String(sticky));
  if (log.scrollTop < 200) showEarlier();
});
tail.addEventListener("click", () => (live ? (setLive(true), toBottom()) : (($("log-search").value = ""), showEnd())));

// Search: lists matching lines; a click shows the lines around one.
let typing = null;
$("log-search").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(search, 300);
});
$("log-tools").addEventListener("submit", (event) => {
  event.preventDefault();
  search();
});
$("log-tools").addEventListener("change", (event) => {
  if (!event.target.matches("select")) return;
  $("log-download").href = `${base}/download?${new URLSearchParams(filters())}`;
  if ($("log-search").value) search();
  else if ($("log-rank").value === BESIDE) showRanks();
  else showEnd();
});

/** Shows several ranks side by side. */
async function showRanks() {
  const mine = ++generation,
    { Ranks } = await import("./log_ranks.js");
  if (mine !== generation) return;
  setLive(false);
  follower.close();
  ranks = new Ranks(log, { ask, row: node, count: Number($("log-card").dataset.ranks) });
  const cursor = await ranks.start();
  if (mine !== generation) return;
  say("Scroll one to bring the others to the same time.");
  follower.params = filters();
  follower.restart(cursor);
}

async function search() {
  const q = $("log-search").value;
  worker?.terminate();
  if (!q) return showEnd();
  const mine = ++generation;
  setLive(false);
  follower.close();
  blank("Searching…");
  if ($("log-regex").checked) return searchRegex(q, mine);
  let after = 0,
    found = 0,
    more = true;
  while (more && found < 500 && mine === generation) {
    const page = await ask("search", { q, after });
    if (mine !== generation) return;
    if (!found && page.hits.length) log.replaceChildren();
    for (const hit of page.hits) addHit(hit);
    found += page.hits.length;
    ({ cursor: after, more } = page);
    say(`${found}${more ? " so far" : ""} ${found === 1 ? "line" : "lines"}`);
  }
  if (!found) blank("No line contains that.");
}

let worker = null;
function searchRegex(pattern, mine) {
  try {
    new RegExp(pattern);
  } catch (error) {
    say("");
    return blank(error.message);
  }
  let found = 0;
  worker = new Worker("/static/js/log_worker.js", { type: "module" });
  worker.onmessage = ({ data }) => {
    if (mine !== generation) return worker.terminate();
    if (data.done) {
      say(`${found}${data.more ? " or more" : ""} ${found === 1 && !data.more ? "line" : "lines"}`);
      if (!found) blank("No line matches.");
      return;
    }
    if (!found && data.hits.length) log.replaceChildren();
    for (const [at, text] of data.hits) addFound(at, text);
    found += data.hits.length;
    say(`${found} in ${data.read} lines so far`);
  };
  worker.postMessage({ address: `${base}/download?${new URLSearchParams({ ...filters(), places: true })}`, pattern });
}
function addFound(at, text) {
  const row = document.createElement("div"),
    shown = document.createElement("span");
  row.className = "ln";
  shown.className = "tx";
  shown.append(render(text));
  row.append(document.createElement("span"), document.createElement("span"), shown);
  Object.assign(row, { tabIndex: 0, title: "Show the lines around it" });
  row.addEventListener("click", () => showPlace({ around: at }, at));
  row.addEventListener("keydown", (event) => {
    if (event.key === "Enter") showPlace({ around: at }, at);
  });
  log.append(row);
}

function addHit(hit) {
  const row = node(hit.line);
  row.tabIndex = 0;
  row.title = "Show the lines around it";
  const open = () => showAround(hit);
  row.addEventListener("click", open);
  row.addEventListener("keydown", (event) => {
    if (event.key === "Enter") open();
  });
  log.append(row);
}

const showAround = (hit) => showPlace({ around: hit.at }, hit.at);
/** Shows the lines around a position or a time, with the line there marked. */
async function showPlace(where, at = null) {
  const mine = ++generation;
  setLive(false);
  follower.close();
  const slice = await ask("lines", where);
  if (mine !== generation) return;
  log.replaceChildren();
  if (!slice.lines.length) return blank("Nothing was logged then.");
  put(slice.lines, "end", slice.next, slice.places);
  let index = at === null ? slice.lines.findIndex((line) => line.at >= where.time) : slice.places.indexOf(at);
  if (index < 0 && at === null) index = slice.lines.length - 1;
  const row = log.children[index];
  if (row) choose(row, slice.lines[index]);
  row?.scrollIntoView({ block: "center" });
  if (slice.earlier) log.prepend(lessButton(slice.first));
  if (slice.later) log.append(moreButton(slice.next));
}
function lessButton(before) {
  const gap = document.createElement("div"),
    button = document.createElement("button");
  gap.className = "gap";
  Object.assign(button, { type: "button", textContent: "Show the lines before" });
  button.addEventListener("click", async () => {
    const slice = await ask("lines", { before }),
      height = log.scrollHeight;
    gap.remove();
    put(slice.lines, "top", slice.next, slice.places);
    if (slice.earlier) log.prepend(lessButton(slice.first));
    log.scrollTop += log.scrollHeight - height;
  });
  gap.append(button);
  return gap;
}

function moreButton(after) {
  const gap = document.createElement("div"),
    button = document.createElement("button");
  gap.className = "gap";
  button.type = "button";
  button.textContent = "Show the next lines";
  button.addEventListener("click", async () => {
    const slice = await ask("lines", { after });
    gap.remove();
    put(slice.lines, "end", slice.next, slice.places);
    if (slice.later) log.append(moreButton(slice.next));
  });
  gap.append(button);
  return gap;
}

async function firstError() {
  say("Looking…");
  let after = 0,
    more = true;
  while (more) {
    const page = await ask("first-error", { after });
    if (page.hits.length) {
      say("The first line that looks like an error");
      return showAround(page.hits[0]);
    }
    ({ cursor: after, more } = page);
  }
  say("");
  toast("No line looks like an error.", "ok");
}
$("log-error").addEventListener("click", firstError);

$("log-regex").addEventListener("change", () => {
  if ($("log-search").value) search();
});
const wanted = location.hash.match(/^#L(\d+)$/),
  moment = new URLSearchParams(location.search).get("at");
if (wanted) showPlace({ around: wanted[1] }, Number(wanted[1]));
else if (moment) showPlace({ time: moment });
else if (location.hash === "#first-error") firstError();
else showEnd();
