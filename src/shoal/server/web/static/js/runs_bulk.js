// Actions on chosen runs: tags, stars, archive, stop, delete, compare. Loaded when a run is chosen first.
import { call } from "./api.js";
import { showError, toast } from "./app.js";
import { $ } from "./dom.js";
import { chooseNone, chosen, reload, showOnlyChosen } from "./runs.js";
import { api, base, writes } from "./runs_state.js";

const AT_ONCE = 4;
const counted = (n) => `${n} ${n === 1 ? "run" : "runs"}`;

export function showChosen() {
  const most = Number($("runs-compare").dataset.most);
  $("runs-bulk").hidden = !chosen.size;
  for (const part of document.querySelectorAll("#runs-bulk [data-writes]")) part.hidden = !writes;
  $("runs-chosen").textContent = `${chosen.size} chosen`;
  $("runs-compare").disabled = chosen.size < 2;
  $("runs-compare").querySelector("span").textContent = chosen.size > most ? `Compare the first ${most}` : "Compare";
}

/** Changes what people write about runs; returns true if the server has done it. */
export async function change(jobs, fields, place = null) {
  try {
    await call("PATCH", `${api}/runs`, { jobs, ...fields });
    toast(`${jobs.length === 1 ? "Run" : counted(jobs.length)} changed.`, "ok", 2500);
    await reload();
    return true;
  } catch (error) {
    if (place) showError(place, error.message);
    else toast(error.message, "bad");
    return false;
  }
}

/** One request per run, a few at a time; says how many could not be done, and why the first of them. */
async function each(verb, method, path) {
  const waiting = [...chosen.keys()],
    wrong = [];
  let done = 0;
  const work = async () => {
    while (waiting.length) {
      const id = waiting.shift();
      try {
        await call(method, `${api}/jobs/${id}${path}`);
        chosen.delete(id);
        done++;
      } catch (error) {
        wrong.push(error.message);
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  const not = wrong.length ? ` ${wrong.length} not: ${wrong[0]}` : "";
  toast(`${counted(done)} ${verb}.${not}`, wrong.length ? "bad" : "ok", 8000);
  await reload();
}

$("runs-compare").addEventListener("click", ({ currentTarget }) => {
  const ids = [...chosen.keys()].slice(0, Number(currentTarget.dataset.most));
  location.assign(`${base}/compare?jobs=${ids.join(",")}`);
});
$("runs-none").addEventListener("click", chooseNone);
$("runs-only").addEventListener("click", showOnlyChosen);
for (const button of document.querySelectorAll("[data-bulk]")) {
  button.addEventListener("click", async () => {
    const name = button.dataset.bulk;
    if ((await change([...chosen.keys()], { [name]: true })) && name === "archived") chooseNone();
  });
}
const ASKED = {
  stop: ["Stop", "They save a checkpoint, if they can, and end.", () => each("stopped", "POST", "/stop")],
  delete: [
    "Delete",
    "Their logs, metrics and code are deleted for good; checkpoints stay. Runs that are still active are left.",
    () => each("deleted", "DELETE", ""),
  ],
};
for (const button of document.querySelectorAll("[data-each]")) {
  button.addEventListener("click", () => {
    const dialog = $("each-run"),
      [title, detail, work] = ASKED[button.dataset.each],
      yes = dialog.querySelector("[data-yes]");
    $("each-run-title").textContent = `${title} ${counted(chosen.size)}?`;
    $("each-run-detail").textContent = detail;
    yes.textContent = title;
    yes.onclick = () => {
      dialog.close();
      work();
    };
    dialog.showModal();
  });
}
$("tag-runs-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target,
    tag = form.elements.tag.value.trim(),
    fields = event.submitter?.value === "remove" ? { remove_tags: [tag] } : { add_tags: [tag] };
  if (!(await change([...chosen.keys()], fields, form))) return;
  form.reset();
  form.closest("dialog").close();
});
