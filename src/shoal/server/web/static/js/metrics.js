// Live charts of one job: its metrics, what its machines did on the same axis, and marks for checkpoints, restarts and notes.
import { call } from "./api.js";
import { showError, toast } from "./app.js";
import { colourOf, stepAt } from "./lines.js";
import { api, head, path } from "./job.js";
import { make } from "./dom.js";
import { ago } from "./times.js";
import { Workspace } from "./workspace.js";

const id = api.split("/").at(-1),
  workspaceApi = api.slice(0, api.lastIndexOf("/jobs/")),
  writes = head.dataset.writes === "True";
const SYSTEM = [
  ["cpu", /^cpu$/, "CPU (%, one core = 100)"],
  ["rss", /^rss$/, "Memory of the job (GB)", 1e9],
  ["gpu", /^gpu[\ds]+_util$/, "GPU use (%)"],
  ["gpu-mem", /^gpu[\ds]+_mem$/, "GPU memory (GB)", 1e9],
  ["watts", /^gpu[\ds]+_watts$/, "GPU power (W)"],
];
let samples = [];

async function system() {
  ({ samples } = await call("GET", `${path}/system.json`));
  return SYSTEM.filter(([, pattern]) =>
    samples.some((node) => Object.keys(node.series).some((name) => pattern.test(name))),
  ).map(([key, pattern, title, unit = 1]) => ({
    id: `s:${key}`,
    title,
    section: "System",
    lines: (x, reference) => linesOf(pattern, unit, x, reference),
  }));
}

// Samples have times only; their place on another axis is that of the metrics logged then.
async function linesOf(pattern, unit, x, reference) {
  const line = x === "time" ? null : await reference();
  const place = (at) => (x === "time" ? at : line ? stepAt(line, at) : null);
  let colour = 0;
  return samples
    .flatMap((node) =>
      Object.keys(node.series)
        .filter((name) => pattern.test(name))
        .map((name) => {
          const points = node.at
            .map((at, i) => [place(at), node.series[name][i]])
            .filter(([at, v]) => at !== null && v !== null && v !== undefined);
          const label = `node ${node.node}${name.startsWith("gpu") ? ` GPU ${name.match(/^gpu([\ds]+)/)[1].replace("s", " slice ")}` : ""}`,
            values = points.map(([, v]) => v / unit);
          return {
            key: label,
            label,
            colour: colour++,
            x: points.map(([at]) => at),
            mean: values,
            last: values.at(-1),
            name,
            jobs: [id],
          };
        }),
    )
    .filter((one) => one.x.length);
}

// What a click on a point offers: the log at that moment, and a note.
function offers(line, { at, step }, panel) {
  const found = [];
  if (at)
    found.push(make("a", { className: "btn", href: `${path}/logs?at=${at.toFixed(3)}`, text: "Log at this point" }));
  if (writes && step !== null)
    found.push(
      make("button", {
        type: "button",
        className: "btn",
        text: "Write a note",
        onclick: () => {
          panel.hideTip();
          note(step);
        },
      }),
    );
  return [make("div", { className: "row" }, ...found)];
}
const form = document.getElementById("step-note-form");
/** Opens the form for a note at a step, or for a change of one. */
function note(step, known = null) {
  form.elements.step.value = step;
  form.elements.text.value = known?.text ?? "";
  form.dataset.note = known?.id ?? "";
  showError(form, "");
  form.closest("dialog").showModal();
}
form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const { step, text } = form.elements,
    wanted = { step: Number(step.value), text: text.value };
  try {
    if (form.dataset.note) await call("PUT", `${api}/notes/${form.dataset.note}`, wanted);
    else await call("POST", `${api}/notes`, wanted);
    form.closest("dialog").close();
    await again();
  } catch (error) {
    showError(form, error.message);
  }
});
document.getElementById("add-note")?.addEventListener("click", () => note(charts.reference?.x.at(-1) ?? 0));

/** All notes below the charts, where they can be changed and deleted. */
async function showNotes() {
  const notes = await call("GET", `${api}/notes`),
    card = document.getElementById("step-notes");
  card.hidden = !notes.length && !writes;
  card.querySelector("ul").replaceChildren(...notes.map(noteRow));
  card.querySelector(".none").hidden = notes.length > 0;
}
function noteRow(one) {
  const button = (text, onclick) =>
    make("button", {
      type: "button",
      className: "btn plain",
      text,
      ariaLabel: `${text} the note at step ${one.step}`,
      onclick,
    });
  const remove = async () => {
    try {
      await call("DELETE", `${api}/notes/${one.id}`);
      await again();
    } catch (error) {
      toast(error.message, "bad");
    }
  };
  return make(
    "li",
    {},
    make("b", { className: "num", text: `step ${one.step}` }),
    make("span", { className: "grow", text: one.text }),
    make("span", { className: "muted small", text: `${one.created_by}, ${ago(one.created_at)}` }),
    ...(writes ? [button("Edit", () => note(one.step, one)), button("Delete", remove)] : []),
  );
}
const again = () => Promise.all([showNotes(), charts.look().then(() => charts.refresh())]);
showNotes().catch(() => {});

async function names() {
  const known = await call("GET", `${api}/metric-names`);
  document.getElementById("from-log").hidden = !known.some(({ kind }) => kind === "log");
  return known.map(({ name }) => name);
}

const charts = new Workspace({
  page: "job",
  api: workspaceApi,
  offers,
  extra: system,
  runs: () => [{ key: id, ids: [id], label: head.dataset.name ?? id, colour: colourOf(id) }],
  names,
  marks: async () => {
    await charts.referenceFor("step").catch(() => null);
    await charts.referenceFor("relative").catch(() => null);
    return call("GET", `${api}/marks`);
  },
  definitions: () => call("GET", `${api}/chart-definitions`),
});
charts.start();
document.body.addEventListener("shoal:metrics", () => charts.soon());
document.body.addEventListener("shoal:end", () => charts.soon());
// Without metrics the stream is silent; a new metric may still appear.
setInterval(() => {
  if (!document.hidden && !charts.panels.size && head.querySelector(".status.running")) charts.soon();
}, 5000);
