// The log: its end first, followed live; earlier lines on scrolling up; search and the first error by the server.
import { signedOut, toast } from "./app.js";
import { render } from "./ansi.js";
import { follower } from "./job.js";

const MAX_LINES = 5000;
const SEGMENT = 2 ** 21; // a place is a segment and the number of a line in it: see logs.py
const $ = (id) => document.getElementById(id);
const log = $("log"), base = $("log-card").dataset.path, note = $("log-note"), tail = $("log-tail");
let first = 0, earlier = false, busy = false, live = true, sticky = true, generation = 0;

const filters = () => {
  const given = {};
  for (const name of ["rank", "node", "attempt"]) {
    const value = $(`log-${name}`)?.value;
    if (value) given[name] = value;
  }
  return given;
};

async function ask(what, params = {}) {
  const answer = await fetch(`${base}/${what}?${new URLSearchParams({ ...filters(), ...params })}`, { headers: { Accept: "application/json" } });
  if (answer.status === 401) { signedOut(log); throw new Error("signed out"); }
  const body = await answer.json();
  if (!answer.ok) { toast(body.error?.message ?? "That did not work.", "bad"); throw new Error(answer.status); }
  return body;
}

function node(line) {
  const row = document.createElement("div"), time = document.createElement("time"), who = document.createElement("span"), text = document.createElement("span");
  row.className = `ln ${line.stream === "out" ? "" : line.stream}`;
  const at = new Date(line.at * 1000);
  time.dateTime = at.toISOString();
  time.title = at.toISOString();
  time.textContent = at.toTimeString().slice(0, 8);
  who.className = "who";
  who.textContent = line.rank === null ? "shoal" : `rank ${line.rank}`;
  who.title = `attempt ${line.attempt}, node ${line.node}`;
  text.className = "tx";
  text.append(render(line.text));
  row.append(time, who, text);
  return row;
}

function put(lines, where, batch) {
  const all = document.createDocumentFragment();
  for (const line of lines) all.append(Object.assign(node(line), { batch }));
  if (where === "top") log.prepend(all); else log.append(all);
}

const say = (text) => { note.textContent = text; };
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
  if (slice.lines.length) put(slice.lines, "end", slice.next); else blank("Nothing was logged yet. Lines show up here as they come.");
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
    put(slice.lines, "top", slice.next);
    log.scrollTop += log.scrollHeight - height;
  } finally { busy = false; }
}

function setLive(on) {
  live = sticky = on;
  tail.setAttribute("aria-pressed", String(on));
}
// What leaves at the top goes as it came, so that scrolling up can bring it back whole.
function trim() {
  while (log.childElementCount > MAX_LINES && log.firstElementChild.batch !== log.lastElementChild.batch) {
    const { batch } = log.firstElementChild;
    while (log.firstElementChild.batch === batch) log.firstElementChild.remove();
    first = batch;
    earlier = true;
  }
}
const toBottom = () => { log.scrollTop = log.scrollHeight; };

document.body.addEventListener("shoal:log", ({ detail }) => {
  if (!live) return;
  log.querySelector(".none")?.remove();
  put(detail.lines, "end", (detail.cursor + 1) * SEGMENT);
  if (sticky) trim();
  if (sticky) toBottom();
});
document.body.addEventListener("shoal:end", () => say("The job is over; this is all."));

log.addEventListener("scroll", () => {
  if (!live) return;
  sticky = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  tail.setAttribute("aria-pressed", String(sticky));
  if (log.scrollTop < 200) showEarlier();
});
tail.addEventListener("click", () => (live ? (setLive(true), toBottom()) : ($("log-search").value = "", showEnd())));

// Search: matching lines first; a click shows one among its neighbours.
let typing = null;
$("log-search").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(search, 300); });
$("log-tools").addEventListener("submit", (event) => { event.preventDefault(); search(); });
$("log-tools").addEventListener("change", (event) => {
  if (!event.target.matches("select")) return;
  $("log-download").href = `${base}/download?${new URLSearchParams(filters())}`;
  if ($("log-search").value) search(); else showEnd();
});

async function search() {
  const q = $("log-search").value;
  if (!q) return showEnd();
  const mine = ++generation;
  setLive(false);
  follower.close();
  blank("Searching…");
  let after = 0, found = 0, more = true;
  while (more && found < 500 && mine === generation) {
    const page = await ask("search", { q, after });
    if (mine !== generation) return;
    if (!found && page.hits.length) log.replaceChildren();
    for (const hit of page.hits) addHit(hit);
    found += page.hits.length;
    ({ cursor: after, more } = page);
    say(`${found}${more ? " so far" : ""} ${found === 1 ? "line" : "lines"}`);
  }
  if (!found) blank("No line holds that.");
}

function addHit(hit) {
  const row = node(hit.line);
  row.tabIndex = 0;
  row.title = "Show it among its neighbours";
  const open = () => showAround(hit);
  row.addEventListener("click", open);
  row.addEventListener("keydown", (event) => { if (event.key === "Enter") open(); });
  log.append(row);
}

async function showAround(hit) {
  const mine = ++generation;
  setLive(false);
  const slice = await ask("lines", { around: hit.at });
  if (mine !== generation) return;
  log.replaceChildren();
  put(slice.lines);
  const at = slice.lines.findIndex((l) => l.at === hit.line.at && l.text === hit.line.text && l.rank === hit.line.rank);
  const row = log.children[at];
  row?.classList.add("mark");
  row?.scrollIntoView({ block: "center" });
  if (slice.later) log.append(moreButton(slice.next));
}

function moreButton(after) {
  const gap = document.createElement("div"), button = document.createElement("button");
  gap.className = "gap";
  button.type = "button";
  button.textContent = "Show what follows";
  button.addEventListener("click", async () => {
    const slice = await ask("lines", { after });
    gap.remove();
    put(slice.lines);
    if (slice.later) log.append(moreButton(slice.next));
  });
  gap.append(button);
  return gap;
}

async function firstError() {
  say("Looking…");
  let after = 0, more = true;
  while (more) {
    const page = await ask("first-error", { after });
    if (page.hits.length) { say("The first line that looks like an error"); return showAround(page.hits[0]); }
    ({ cursor: after, more } = page);
  }
  say("");
  toast("No line looks like an error.", "ok");
}
$("log-error").addEventListener("click", firstError);

if (location.hash === "#first-error") firstError(); else showEnd();
