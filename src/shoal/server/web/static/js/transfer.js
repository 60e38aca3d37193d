// Files from a person's disk to the server, in parts. A part that fails is sent again.
import { signedOut } from "./app.js";

export const size = (n) => (n > 1e9 ? `${(n / 1e9).toFixed(1)} GB` : n > 1e6 ? `${(n / 1e6).toFixed(1)} MB` : `${Math.ceil(n / 1e3)} kB`);
export const total = (files) => files.reduce((sum, f) => sum + f.file.size, 0);

// Calls `take` with [{path, file}] and the name of what was dropped on `drop` or chosen with one of the inputs.
export function receive(drop, inputs, take) {
  for (const input of inputs) {
    input.addEventListener("change", () => {
      const chosen = [...input.files].map((file) => ({ file, path: inside(file.webkitRelativePath || file.name) }));
      if (chosen.length) take(chosen, (chosen[0].file.webkitRelativePath || chosen[0].file.name).split("/")[0]);
      input.value = ""; // the same file, changed, may be chosen again
    });
  }
  drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", async (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    // Entries know folders; where there are none, files do.
    const plain = [...event.dataTransfer.files].map((file) => ({ file, path: file.name }));
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
    const found = entries.length ? [] : plain;
    for (const entry of entries) await walk(entry, entries.length === 1 && entry.isDirectory ? null : "", found);
    if (found.length) take(found, (entries[0] ?? found[0].file).name);
  });
}

// Folders that are never code, as store/ignore.py leaves them out; here it saves sending them.
const NEVER = new Set([".git", "__pycache__", ".venv", "venv", "node_modules", ".ipynb_checkpoints"]);
const OUTPUT = new Set(["shoal-runs", "wandb", "mlruns", "lightning_logs"]);
const LARGE = 20e6;

/** The files that are code, and those of them that are probably data. */
export function code(files) {
  const folders = new Set(), paths = new Set(files.map(({ path }) => path));
  for (const { path } of files) {
    const environment = path.match(/^(.+)\/(?:pyvenv\.cfg|conda-meta\/.*)$/);
    if (environment) folders.add(environment[1]);
  }
  const asked = files.some(({ path }) => path.split("/").pop() === ".shoalignore" || path.split("/").pop() === ".gitignore");
  const isOut = (path) => path.split("/").slice(0, -1).some((name, i, parts) => {
    const here = parts.slice(0, i + 1).join("/");
    // Where there are ignore files, one may ask for such a folder; the server reads them.
    return NEVER.has(name) || folders.has(here) || (OUTPUT.has(name) && !asked && !paths.has(`${here}/__init__.py`));
  });
  const taken = files.filter(({ path }) => !isOut(path));
  return { files: taken, large: taken.filter(({ file }) => file.size > LARGE).sort((a, b) => b.file.size - a.file.size) };
}

// Sends them; returns the upload's id. `begun` is told the id as soon as there is one, `progress` the bytes sent.
export async function send(base, files, { purpose, signal, place, begun, progress }) {
  const { id, part } = await call("POST", `${base}?${new URLSearchParams({ size: total(files), purpose })}`, null, { signal, place });
  begun(id);
  let done = 0;
  progress(done);
  for (const { path, file } of files) {
    for (let offset = 0; offset < file.size || offset === 0; offset += part) {
      const piece = file.slice(offset, offset + part);
      await call("PUT", `${base}/${id}?${new URLSearchParams({ path, offset })}`, piece, { signal, place });
      progress(done += piece.size);
    }
  }
  return id;
}

export async function call(method, url, body, { signal, place }) {
  for (let attempt = 0; ; attempt++) {
    try {
      const answer = await fetch(url, { method, body, signal, headers: { Accept: "application/json" } });
      if (answer.status === 401) signedOut(place);
      const text = await answer.text(), json = text ? JSON.parse(text) : {};
      if (answer.ok) return json;
      if (answer.status < 500) throw Object.assign(new Error(json.error?.message ?? `The server answered ${answer.status}.`), { final: true });
      throw new Error(json.error?.message);
    } catch (error) {
      if (error.final || signal.aborted || attempt >= 5) throw error;
      await new Promise((ok) => setTimeout(ok, 500 * 2 ** attempt));
    }
  }
}

// A bar of `done` of `all` bytes, or with a text of its own.
export function showBar(bar, done, all, text) {
  bar.hidden = false;
  bar.querySelector("progress").value = all ? done / all : 1;
  bar.querySelector("span").textContent = text ?? `${size(done)} of ${size(all)}`;
}

// A chosen folder's own name is not part of the paths inside.
const inside = (path) => (path.includes("/") ? path.slice(path.indexOf("/") + 1) : path);

async function walk(entry, prefix, found) {
  const path = prefix === null ? "" : prefix + entry.name;
  if (entry.isFile) return void found.push({ path, file: await new Promise((ok, no) => entry.file(ok, no)) });
  const reader = entry.createReader();
  for (let batch; (batch = await new Promise((ok, no) => reader.readEntries(ok, no))).length;) {
    for (const child of batch) await walk(child, path ? `${path}/` : "", found);
  }
}
