// A job's page: keeps its head current, and passes events on to the other scripts of the page.
import { Follower } from "./sse.js";

const END = Number.MAX_SAFE_INTEGER; // no log lines, unless the log page asks for them
export const head = document.getElementById("job-head");
export const api = head.dataset.api;
export const path = head.dataset.path;
const tell = (name, detail) => document.body.dispatchEvent(new CustomEvent(name, { detail }));

let timer = null,
  last = null;
export const follower = new Follower(api, END, {
  job: (job) => {
    // Many events may arrive per second; the page is reloaded at most once.
    timer ??= setTimeout(
      () => {
        timer = null;
        tell("shoal:job", job);
      },
      last ? 900 : 0,
    );
    const moved = last && (last.status !== job.status || last.attempts !== job.attempts);
    last = job;
    if (moved) setTimeout(() => tell("shoal:state", job), 200);
  },
  log: (page) => tell("shoal:log", page),
  metrics: (news) => tell("shoal:metrics", news),
  end: () => {
    tell("shoal:end");
    setTimeout(() => tell("shoal:state"), 300);
  },
});
// Pages that show lines open it where their lines end.
if (!document.getElementById("log") && !document.getElementById("overview")) follower.open();
document.body.addEventListener("shoal:changed", () => follower.restart());
// A waiting job's place changes with other jobs, and no event reports that.
let asked = Date.now();
setInterval(() => {
  const every = Number(document.getElementById("why")?.dataset.every ?? Infinity);
  if (document.hidden || document.querySelector("dialog[open]") || Date.now() - asked < every * 1000) return;
  asked = Date.now();
  tell("shoal:waits");
}, 1000);
