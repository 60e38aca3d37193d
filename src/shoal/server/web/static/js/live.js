// Keeps list pages up to date: the server reports changes, and the parts of the page that depend on them reload.
import { ended } from "./app.js";
import { Changes } from "./sse.js";

const OVER = new Set(["succeeded", "failed", "stopped"]);
const LOOK_MS = 500,
  PROGRESS_MS = 3000,
  DATA_MS = 4000;
const told = new Set(),
  known = new Map();
let due = Infinity,
  first = true,
  fresh = [];
const want = (ms) => {
  due = Math.min(due, Date.now() + ms);
};

new Changes({
  hello: () => {
    if (!first) want(0);
    first = false;
  },
  job: ({ job, waiting, sweep }) => {
    // A new state is shown immediately; mere progress can wait a moment.
    const state = JSON.stringify([job.status, job.attempts, job.stop_requested, waiting]);
    want(known.get(job.id) === state ? PROGRESS_MS : 0);
    known.set(job.id, state);
    if (OVER.has(job.status) && !sweep) note(job); // of trials there are many: their sweep tells when all are over
  },
  sweep: (sweep) => {
    const before = known.get(sweep.id);
    want(before === sweep.status ? PROGRESS_MS : 0);
    known.set(sweep.id, sweep.status);
    if (before === "running" && sweep.status !== before) note(sweep);
  },
  swarm: () => want(PROGRESS_MS),
  gone: () => want(0),
  ping: () => want(0), // machines come and go, and clocks move on, without any job changing
}).open();

function note(job) {
  const key = `${job.id} ${job.ended_at}`;
  if (told.has(key)) return;
  told.add(key);
  fresh.push(job);
}

// Only while the page is visible, and not during an open dialog, a selection or input.
const busy = () =>
  document.hidden ||
  document.querySelector("dialog[open], :popover-open") ||
  String(getSelection()) ||
  document.activeElement?.closest?.("[hx-trigger*='shoal:tick'] form");
setInterval(() => {
  if (fresh.length) {
    ended(fresh);
    fresh = [];
  }
  // A dataset import is not a job, so no event reports it.
  if (document.querySelector("main .status.importing, main .status.uploading")) want(DATA_MS);
  if (due > Date.now() || busy()) return;
  due = Infinity;
  document.body.dispatchEvent(new CustomEvent("shoal:tick"));
}, LOOK_MS);
