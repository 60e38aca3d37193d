// The new-job form: code by drag and drop, rows that can be added and removed, and a draft that survives the end of a session.
import { showError, toast } from "./app.js";
import { call, code, receive, send, showBar, size, total } from "./transfer.js";

const draft = document.getElementById("draft"),
  { path, uploads } = draft.dataset,
  keep = draft.dataset.keep + location.search;
const form = () => document.getElementById("new-job");
const WAIT_MS = 250;
let timer = null,
  upload = null,
  sent = false;

// After every change the preview is updated and the draft is saved, both with a short delay.
function changed() {
  clearTimeout(timer);
  timer = setTimeout(() => {
    save();
    document.body.dispatchEvent(new CustomEvent("shoal:draft"));
  }, WAIT_MS);
}
for (const kind of ["input", "change"]) {
  draft.addEventListener(kind, ({ target }) => {
    if (target.type === "file") return;
    if (target.id === "j-name") target.dataset.typed = "";
    if (kind === "change" && target.id === "entry" && target.value.endsWith(".ipynb")) convert();
    if (target.closest("#args-rows")) form().elements.edited.value = "rows";
    if (target.id === "args-line") form().elements.edited.value = "line";
    changed();
  });
}

draft.addEventListener("click", ({ target }) => {
  const add = target.closest("[data-add-row]"),
    gone = target.closest("[data-drop-row]")?.closest(".fill-row");
  if (add) {
    const rows = document.getElementById(add.dataset.addRow);
    rows.append(document.getElementById(add.dataset.template).content.cloneNode(true));
    rows.lastElementChild.querySelector("input").focus();
  }
  if (gone) {
    const { parentElement: rows, nextElementSibling, previousElementSibling } = gone;
    gone.remove();
    (nextElementSibling ?? previousElementSibling)?.querySelector("input").focus();
    if (rows.id === "args-rows") form().elements.edited.value = "rows";
    changed();
  }
});

// The part that is updated is not replaced while the user is in it.
document.addEventListener("htmx:oobBeforeSwap", (event) => {
  if (event.detail.target.contains(document.activeElement)) event.detail.shouldSwap = false;
});
document.addEventListener("htmx:afterSwap", ({ detail: { target } }) => {
  if (target.id === "source") named();
});

function named() {
  const name = document.getElementById("j-name"),
    suggested = form().elements.source_id?.dataset.suggested;
  if (suggested && (!name.value || !("typed" in name.dataset))) name.value = suggested;
  changed();
}

// Code
function takeCode() {
  const inputs = ["code-files", "code-folder"].map((id) => document.getElementById(id));
  receive(document.getElementById("drop"), inputs, bring);
}

async function bring(chosen, title) {
  const { files, large } = code(chosen);
  const place = form().querySelector("[data-errors]"),
    bar = place.querySelector("[data-progress]"),
    all = total(files);
  for (const { path, file } of large.slice(0, 5))
    toast(
      `${path} (${size(file.size)}) is sent with the code. To leave it out, list it in .shoalignore; put data into a dataset.`,
      "",
      15000,
    );
  upload?.abort();
  const stop = (upload = new AbortController()),
    options = { signal: stop.signal, place };
  showError(place, "");
  try {
    const id = await send(uploads, files, {
      ...options,
      purpose: "source",
      begun: () => {},
      progress: (done) => showBar(bar, done, all),
    });
    showBar(bar, 1, 1, "Looking for scripts…");
    const made = await call("POST", `${uploads}/${id}/source?${new URLSearchParams({ title })}`, null, options);
    for (const note of made.notes.slice(0, 3)) toast(`Skipped: ${note}`, "", 12000);
    const query = new URLSearchParams({
      source: made.source.id,
      entry: form().elements.entry?.value ?? "",
      part: "source",
    });
    await window.htmx.ajax("GET", `${path}?${query}`, { target: "#source", swap: "innerHTML" });
  } catch (error) {
    if (!stop.signal.aborted) showError(place, error.message || "The upload failed. Try again.");
  } finally {
    if (upload === stop) bar.hidden = true;
  }
}

// A notebook among the files has to become a script first.
function convert() {
  window.htmx.ajax("POST", `${path}/notebook`, {
    source: "#entry",
    values: { code: "upload" },
    target: "#source",
    swap: "innerHTML",
  });
}

// Files that miss the box must not make the browser leave the page.
for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault());

// The draft stays in this tab until the job is started: it is restored after signing in again.
const fields = () =>
  new URLSearchParams(
    [...new FormData(form())].filter(([name, value]) => typeof value === "string" && name !== "notebook_token"),
  ).toString();
const blank = fields();
function save() {
  if (!sent)
    try {
      sessionStorage.setItem(keep, fields());
    } catch {
      /* no storage, no memory */
    }
}
function forget() {
  try {
    sessionStorage.removeItem(keep);
  } catch {
    /* as above */
  }
}
async function restore() {
  let kept = null;
  try {
    kept = sessionStorage.getItem(keep);
  } catch {
    /* as above */
  }
  if (!kept || kept === blank) return;
  const answer = await fetch(draft.dataset.restore, {
    method: "POST",
    body: kept,
    headers: { "HX-Request": "true", "Content-Type": "application/x-www-form-urlencoded" },
  });
  if (!answer.ok) return;
  draft.innerHTML = await answer.text();
  window.htmx.process(draft);
  takeCode();
  document.getElementById("restored").hidden = false;
  document.getElementById("j-name").dataset.typed = "";
  document.body.dispatchEvent(new CustomEvent("shoal:draft"));
}
// The new-sweep form takes over the draft of this form.
document.getElementById("to-sweep")?.addEventListener("click", ({ currentTarget: { dataset } }) => {
  try {
    sessionStorage.setItem(dataset.keep, `${fields()}&param_name=&param_values=`);
  } catch {
    /* as above */
  }
  location.assign(dataset.path);
});
document.getElementById("afresh").addEventListener("click", () => {
  sent = true;
  forget();
  location.reload();
});
document.addEventListener("htmx:beforeOnLoad", ({ detail: { xhr } }) => {
  const { status } = xhr;
  if ((status === 204 && xhr.getResponseHeader("HX-Redirect")) || (status === 201 && xhr.getResponseHeader("HX-Retarget"))) {
    sent = true;
    clearTimeout(timer);
    forget();
  }
});

window.addEventListener("pageshow", (event) => {
  if (event.persisted) sent = false;
}); // back from the job's page

takeCode();
restore();
