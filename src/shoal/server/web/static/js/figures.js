// Figures of a job: draws plots from data, and loads new figures for sliders that are at the newest.
import { align, Chart } from "./charts.js";
import { api } from "./job.js";

const EVERY_MS = 2000;

function draw(root) {
  for (const place of root.querySelectorAll("[data-plot]")) {
    const { title, x_title: xTitle, y_title: yTitle, traces } = JSON.parse(place.dataset.plot);
    place.removeAttribute("data-plot");
    const chart = new Chart([title, yTitle].filter(Boolean).join(" · "));
    place.append(chart.card);
    chart.update({ ...align(traces.map((t) => ({ label: t.label, at: t.x, values: t.y }))), xLabel: xTitle });
  }
}

async function look() {
  const answer = await fetch(`${api}/media`);
  if (!answer.ok) return;
  const counts = new Map();
  const key = (name, type) => JSON.stringify([name, type]);
  for (const { name, type } of await answer.json()) counts.set(key(name, type), (counts.get(key(name, type)) ?? 0) + 1);
  const cards = [...document.querySelectorAll("#figures .figure")];
  const known = new Set(cards.map(({ dataset }) => key(dataset.text, dataset.type)));
  if ([...counts.keys()].some((name) => !known.has(name)))
    return void document.body.dispatchEvent(new CustomEvent("shoal:figures"));
  for (const card of cards) {
    const count = counts.get(key(card.dataset.text, card.dataset.type)),
      slider = card.querySelector(".slide input");
    if (count === Number(card.dataset.count)) continue;
    card.dataset.count = count;
    if (!slider || slider.value === slider.max) window.htmx.trigger(card, "shoal:newest");
    else slider.max = count - 1;
  }
}

// One slider for all: each shows its newest figure at or before the step.
function scrub() {
  const all = document.getElementById("all-steps"),
    output = all?.parentElement.querySelector("output");
  if (!all) return;
  const sliders = () => [...document.querySelectorAll("#figures .slide input")],
    stepsOf = (slider) => slider.dataset.steps.split(",").map(Number);
  const steps = [...new Set(sliders().flatMap(stepsOf))].sort((a, b) => a - b);
  Object.assign(all, { max: steps.length - 1, value: steps.length - 1 });
  all.addEventListener("input", () => {
    const step = steps[Number(all.value)];
    output.value = `step ${step}`;
    for (const slider of sliders()) {
      const at = Math.max(
        0,
        stepsOf(slider).findLastIndex((one) => one <= step),
      );
      if (Number(slider.value) === at) continue;
      slider.value = at;
      slider.dispatchEvent(new Event("input", { bubbles: true }));
    }
  });
}
scrub();

let timer = null;
const soon = () => {
  timer ??= setTimeout(() => {
    timer = null;
    if (!document.hidden) look().catch(() => {});
  }, EVERY_MS);
};
document.body.addEventListener("shoal:metrics", soon);
document.body.addEventListener("shoal:end", soon);
document.addEventListener("htmx:afterSwap", ({ detail: { target } }) => draw(target.isConnected ? target : document));
addEventListener("DOMContentLoaded", () => draw(document));
