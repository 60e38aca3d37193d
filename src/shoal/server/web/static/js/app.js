// Functions of every page: copy buttons, confirmations, notices, relative times that stay current.
import { ago, clock } from "./times.js";

const $ = (id) => document.getElementById(id);

// Copy buttons, dialogs, filters: one listener for all, so that what htmx swaps in works too.
document.addEventListener("click", (event) => {
  const target = event.target instanceof Element ? event.target : null;
  const copy = target?.closest("[data-copy]");
  if (copy) return void copyText(copy);
  const open = target?.closest("[data-open]");
  if (open) return openDialog(open);
  if (target?.closest("[data-close]")) target.closest("dialog")?.close();
  if (target?.closest("[data-palette]")) import("./palette.js").then((palette) => palette.showPalette());
  if (target?.closest("#menu")) toggleMenu();
  else if (document.body.classList.contains("menu-open") && !target?.closest("#side")) toggleMenu(false);
  if (target?.closest("#theme")) window.shoalTheme();
  closeMenus(target);
});

/** Closes the menus of the page, but for the one that holds an element. */
function closeMenus(target = null) {
  for (const menu of document.querySelectorAll("details.switcher[open], details.menu[open]")) {
    if (menu.contains(target)) continue;
    if (menu.contains(document.activeElement)) menu.querySelector("summary").focus();
    menu.open = false;
  }
}

const PLACES = {
  h: "/",
  r: "/runs",
  j: "/jobs",
  s: "/sweeps",
  d: "/datasets",
  c: "/checkpoints",
  m: "/machines",
  q: "/queue",
};
let going = 0;
function shortcut({ key, ctrlKey, metaKey, altKey, target }) {
  if ((ctrlKey || metaKey) && key.toLowerCase() === "k")
    return import("./palette.js").then((palette) => palette.showPalette());
  if (ctrlKey || metaKey || altKey || target.closest?.("input, textarea, select, dialog, [contenteditable]"))
    return null;
  const links = [...document.querySelectorAll(".side li a")].map((link) => link.getAttribute("href")),
    jobs = links.find((href) => href.endsWith("/jobs"));
  if (key === "?") return import("./palette.js").then((palette) => palette.showKeys());
  if (key === "t" && Date.now() - going > 1000) return window.shoalTheme?.() ?? true;
  if (key === "n" && jobs) return location.assign(`${jobs}/new`) ?? true;
  if (key === "g") {
    going = Date.now();
    return true;
  }
  const place = Date.now() - going < 1000 && PLACES[key],
    found = place && links.find((href) => (place === "/" ? href === "/" : href.endsWith(place)));
  return found ? (location.assign(found) ?? true) : null;
}
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    toggleMenu(false);
    closeMenus();
  }
  if (document.querySelector(".side") && shortcut(event)) event.preventDefault();
  if (event.key === "/" && !event.target.closest?.("input, textarea, select, dialog")) {
    const search = document.querySelector("main input[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  }
});

document.addEventListener("input", (event) => {
  const items = event.target.dataset?.filter;
  if (!items) return;
  const wanted = event.target.value.toLowerCase();
  for (const item of document.querySelectorAll(items)) item.hidden = !item.dataset.text.toLowerCase().includes(wanted);
});

async function copyText(button) {
  const text = button.dataset.copy;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // not a secure context
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const use = button.querySelector("use"),
    before = use?.getAttribute("href");
  use?.setAttribute("href", before.replace(/#.*/, "#check"));
  setTimeout(() => use?.setAttribute("href", before), 1200);
  toast("Copied.", "ok", 1500);
}

function openDialog(button) {
  const dialog = $(button.dataset.open);
  if (!dialog) return;
  const form = dialog.querySelector("form");
  for (const field of dialog.querySelectorAll("[data-fill]")) {
    const value = button.dataset[field.dataset.fill] ?? "";
    if ("value" in field) field.value = value;
    else field.textContent = value;
  }
  if (form && button.dataset.action) {
    form.action = button.dataset.action;
    form.setAttribute("hx-post", button.dataset.action);
    window.htmx?.process(form);
  }
  showError(form, "");
  dialog.showModal();
}

function toggleMenu(open = !document.body.classList.contains("menu-open")) {
  document.body.classList.toggle("menu-open", open);
  $("menu")?.setAttribute("aria-expanded", String(open));
}

export function toast(text, kind = "", ms = 6000) {
  const box = document.createElement("div");
  box.className = `toast ${kind}`;
  const p = document.createElement("p");
  p.textContent = text;
  box.append(p);
  $("toasts").append(box);
  setTimeout(() => box.remove(), ms);
}

// Confirmation: replaces htmx's confirm with our dialog. The element must stay in the page meanwhile: htmx sends nothing for a removed one.
let askedBy = null,
  isStale = false;
document.addEventListener("htmx:beforeSwap", ({ detail }) => {
  if (!askedBy || !detail.target?.contains(askedBy)) return;
  detail.shouldSwap = false;
  isStale = true;
});
document.addEventListener("htmx:confirm", (event) => {
  if (!event.detail.question) return;
  event.preventDefault();
  const { dataset } = event.detail.elt,
    ask = $("ask"),
    yes = ask.querySelector("[data-answer=yes]");
  $("ask-title").textContent = event.detail.question;
  $("ask-detail").textContent = dataset.confirmDetail || "";
  yes.textContent = dataset.confirmYes || "Yes";
  yes.classList.toggle("danger", "confirmDanger" in dataset);
  ask.onclick = (click) => {
    const answer = click.target.closest("[data-answer]")?.dataset.answer;
    if (!answer) return;
    ask.close();
    isStale &&= answer !== "yes"; // what is done now brings its own news
    if (answer === "yes") event.detail.issueRequest(true);
  };
  ask.onclose = () => {
    askedBy = null;
    if (isStale) document.body.dispatchEvent(new CustomEvent("shoal:changed", { bubbles: true }));
    isStale = false;
  };
  askedBy = event.detail.elt;
  ask.showModal();
});

// Messages from the server.
document.addEventListener("shoal:toast", (event) => toast(event.detail.text, "ok"));
document.addEventListener("htmx:responseError", ({ detail: { xhr, elt } }) => {
  if (xhr.status === 401) return signedOut(elt);
  let text = `The server answered ${xhr.status}.`;
  try {
    const { error } = JSON.parse(xhr.responseText);
    text = error.hint ? `${error.message} (${error.hint})` : error.message;
  } catch {
    /* not ours */
  }
  const place = elt.closest("[data-errors], form");
  if (place && "resetOnError" in place.dataset) place.reset();
  if (errorSlot(place)) showError(place, text);
  else if (xhr.status !== 404 || !elt.matches("[hx-trigger*='shoal:']")) toast(text, "bad");
  else gone();
});
document.addEventListener("htmx:sendError", () => offline(true));
document.addEventListener("htmx:afterRequest", ({ detail: { elt, successful } }) => {
  if (!successful) return;
  offline(false);
  if (!(elt instanceof HTMLFormElement)) return;
  showError(elt, "");
  if ("reset" in elt.dataset) elt.reset();
  if ("closeOnSuccess" in elt.dataset || elt.closest("dialog:not(#ask)")) elt.closest("dialog")?.close();
  if ("closeOnSuccess" in elt.dataset) document.body.dispatchEvent(new CustomEvent("shoal:changed", { bubbles: true }));
});

export function showError(place, text) {
  const slot = errorSlot(place);
  if (slot) slot.textContent = text;
}
// A form may say where its errors go; a part of it marked `data-errors` keeps its own.
function errorSlot(place) {
  return place?.dataset.error ? $(place.dataset.error) : place?.querySelector(".form-error");
}

let told = false;
export function signedOut(elt) {
  // A refresh that fails is reported once; a form that fails is reported each time, and keeps what was typed.
  const isForm = elt instanceof Element && elt.closest("form");
  if (told && !isForm) return;
  told = true;
  for (const dialog of document.querySelectorAll("dialog[open]")) if (!dialog.contains(elt)) dialog.close();
  if (!$("signed-out").open) $("signed-out").showModal();
}

function gone() {
  if (told) return;
  told = true;
  toast("This no longer exists: it was deleted elsewhere.", "bad", 15000);
}

export function offline(is) {
  const sign = $("offline");
  if (sign) sign.hidden = !is;
}

// A request without an answer is no error of the page: its stream shows that the server is unreachable, and what is new when it is back.
addEventListener("unhandledrejection", (event) => {
  if (event.reason instanceof TypeError && /fetch|load failed/i.test(event.reason.message)) event.preventDefault();
});

// Jobs that ended while the page was open; several at once are reported in one notice.
const KIND = { succeeded: "ok", finished: "ok", failed: "bad" };
export function ended(jobs) {
  if (jobs.length > 3) {
    const failed = jobs.filter((job) => job.status === "failed").length;
    toast(`${jobs.length} jobs ended${failed ? `, ${failed} of them failed` : ""}.`, failed ? "bad" : "ok", 10000);
  } else for (const { name, status } of jobs) toast(`${name} ${status}.`, KIND[status], 10000);
}
const ACTIVE = new Set(["queued", "starting", "running"]);
const statuses = (root) =>
  new Map([...root.querySelectorAll("[data-job]")].map((row) => [row.dataset.job, row.dataset]));
const seen = new Map();
document.addEventListener("htmx:beforeSwap", ({ detail: { target } }) => {
  if (target?.dataset && "watch" in target.dataset)
    for (const [id, data] of statuses(target)) seen.set(id, data.status);
});
document.addEventListener("htmx:afterSwap", ({ detail: { target } }) => {
  freshen();
  if (!(target?.dataset && "watch" in target.dataset)) return;
  for (const [id, { status, name }] of statuses(target)) {
    const before = seen.get(id);
    if (before && ACTIVE.has(before) && !ACTIVE.has(status)) ended([{ id, name, status }]);
    seen.set(id, status);
  }
});

function freshen() {
  for (const time of document.querySelectorAll("time[data-ago]")) time.textContent = ago(time.dateTime);
  for (const time of document.querySelectorAll("time[data-ago], time[data-clock]")) {
    const text = clock(Date.parse(time.dateTime));
    time.title = text;
    if ("clock" in time.dataset) time.textContent = text;
  }
}
freshen();
setInterval(freshen, 10000);
addEventListener("shoal:zone", freshen);

// On a narrow screen the current tab may be out of view.
for (const here of document.querySelectorAll(".tabs [aria-current]")) {
  const { parentElement: tabs } = here;
  tabs.scrollLeft = here.offsetLeft - tabs.offsetLeft - (tabs.clientWidth - here.offsetWidth) / 2;
}
