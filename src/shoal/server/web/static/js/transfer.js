// Files from a person's disk to the server, in parts, several at once. A part that fails is sent again.
import { signedOut } from "./app.js";
import { bytes } from "./units.js";

export const size = (count) => bytes(count);
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
  drop.addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", async (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    // Entries include folders; without entries, use files.
    const plain = [...event.dataTransfer.files].map((file) => ({ file, path: file.name }));
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
    const found = entries.length ? [] : plain;
    for (const entry of entries) await walk(entry, entries.length === 1 && entry.isDirectory ? null : "", found);
    if (found.length) take(found, (entries[0] ?? found[0].file).name);
  });
}

// Folders that are never code; store/ignore.py ignores them too, but here they need not be sent.
const NEVER = new Set([".git", "__pycache__", ".venv", "venv", "node_modules", ".ipynb_checkpoints"]);
const OUTPUT = new Set(["shoal-runs", "wandb", "mlruns", "lightning_logs"]);
const LARGE = 20e6;

/** The files that are code, and those of them that are probably data. */
export function code(files) {
  const folders = new Set(),
    paths = new Set(files.map(({ path }) => path));
  for (const { path } of files) {
    const environment = path.match(/^(.+)\/(?:pyvenv\.cfg|conda-meta\/.*)$/);
    if (environment) folders.add(environment[1]);
  }
  const asked = files.some(
    ({ path }) => path.split("/").pop() === ".shoalignore" || path.split("/").pop() === ".gitignore",
  );
  const isOut = (path) =>
    path
      .split("/")
      .slice(0, -1)
      .some((name, i, parts) => {
        const here = parts.slice(0, i + 1).join("/");
        // An ignore file may re-include such a folder; the server reads it.
        return (
          NEVER.has(name) || folders.has(here) || (OUTPUT.has(name) && !asked && !paths.has(`${here}/__init__.py`))
        );
      });
  const taken = files.filter(({ path }) => !isOut(path));
  return {
    files: taken,
    large: taken.filter(({ file }) => file.size > LARGE).sort((a, b) => b.file.size - a.file.size),
  };
}

const AT_ONCE = 4;
const leaving = (event) => event.preventDefault();

// Sends the files and returns the upload's id: several parts at once, and after an interruption only those that are missing.
// `begun` is called with the id, `progress` with the bytes sent. Before leaving the page, the browser asks.
export async function send(base, files, { purpose, signal, place, begun, progress }) {
  const failed = new AbortController(),
    options = { signal: AbortSignal.any([signal, failed.signal]), place };
  const key = `shoal-upload ${base} ${purpose} ${await fingerprint(files)}`;
  addEventListener("beforeunload", leaving);
  try {
    const {
      id,
      part,
      done = {},
    } = (await resumed(base, key, options)) ??
    (await call("POST", `${base}?${new URLSearchParams({ size: total(files), purpose })}`, null, options));
    remember(key, id);
    begun(id);
    const parts = missing(files, part, done);
    let sent = total(files) - parts.reduce((sum, { end, start }) => sum + end - start, 0);
    progress(sent);
    const work = async () => {
      for (let next; (next = parts.shift());) {
        const { path, file, start, end } = next;
        await call(
          "PUT",
          `${base}/${id}?${new URLSearchParams({ path, offset: start })}`,
          file.slice(start, end),
          options,
        );
        progress((sent += end - start));
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    remember(key, null);
    return id;
  } catch (error) {
    failed.abort(); // the other parts under way
    throw error;
  } finally {
    removeEventListener("beforeunload", leaving);
  }
}

/** The parts that have not arrived: `done` maps a path to [start, end] of the bytes that have. */
export function missing(files, part, done) {
  return files.flatMap(({ path, file }) => {
    const spans = done[path] ?? [],
      found = [];
    for (let start = 0; start < file.size || start === 0; start += part) {
      const end = Math.min(start + part, file.size);
      if (!spans.some(([from, to]) => from <= start && end <= to)) found.push({ path, file, start, end });
    }
    return found;
  });
}

async function resumed(base, key, options) {
  let id = null;
  try {
    id = localStorage.getItem(key);
  } catch {
    /* no storage, no memory */
  }
  if (!id) return null;
  try {
    return await call("GET", `${base}/${id}`, null, options);
  } catch (error) {
    if (error.final) return null;
    throw error;
  }
}

function remember(key, id) {
  try {
    if (id) localStorage.setItem(key, id);
    else localStorage.removeItem(key);
  } catch {
    /* as above */
  }
}

// The same files, unchanged, are the same upload.
async function fingerprint(files) {
  const told = files
    .map(({ path, file }) => `${path} ${file.size} ${file.lastModified}`)
    .sort()
    .join("\n");
  let hash = 0xcbf29ce484222325n; // FNV-1a; crypto.subtle needs https
  for (const byte of new TextEncoder().encode(told)) hash = BigInt.asUintN(64, (hash ^ BigInt(byte)) * 0x100000001b3n);
  return hash.toString(16);
}

export async function call(method, url, body, { signal, place }) {
  for (let attempt = 0; ; attempt++) {
    try {
      const answer = await fetch(url, { method, body, signal, headers: { Accept: "application/json" } });
      if (answer.status === 401) signedOut(place);
      const text = await answer.text(),
        json = text ? JSON.parse(text) : {};
      if (answer.ok) return json;
      if (answer.status < 500)
        throw Object.assign(new Error(json.error?.message ?? `The server answered ${answer.status}.`), { final: true });
      throw new Error(json.error?.message);
    } catch (error) {
      if (error.final || signal.aborted || attempt >= 5) throw error;
      await new Promise((ok) => setTimeout(ok, 500 * 2 ** attempt));
    }
  }
}

// Progress bar with `done` of `all` bytes, or with a given text.
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
