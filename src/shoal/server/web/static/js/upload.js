// Files → parts → a dataset. A part that fails is sent again; closing the dialog gives the upload up.
import { showError, signedOut, toast } from "./app.js";

const form = document.querySelector("form[data-upload]");
if (form) {
  const drop = document.getElementById("drop"), chosen = form.querySelector("[data-chosen]"), bar = form.querySelector("[data-progress]");
  const size = (n) => (n > 1e9 ? `${(n / 1e9).toFixed(1)} GB` : n > 1e6 ? `${(n / 1e6).toFixed(1)} MB` : `${Math.ceil(n / 1e3)} kB`);
  let files = [], current = null;

  const choose = (list) => {
    files = list;
    const total = files.reduce((sum, f) => sum + f.file.size, 0);
    chosen.textContent = files.length ? `${files.length} ${files.length === 1 ? "file" : "files"}, ${size(total)}` : "Nothing chosen yet";
    const name = form.elements.name;
    if (files.length && !name.value) name.value = files[0].path.split("/")[0].replace(/\.(zip|tar|tgz|gz)+$/i, "").replace(/\.[^.]*$/, "").replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[^A-Za-z0-9]+/, "").slice(0, 63);
  };
  // A chosen folder's own name is not part of the paths inside.
  const inside = (path) => (path.includes("/") ? path.slice(path.indexOf("/") + 1) : path);
  for (const id of ["up-files", "up-folder"]) {
    document.getElementById(id).addEventListener("change", ({ target }) => choose([...target.files].map((file) => ({ file, path: inside(file.webkitRelativePath || file.name) }))));
  }
  drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", async (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
    const found = [];
    for (const entry of entries) await walk(entry, entries.length === 1 && entry.isDirectory ? null : "", found);
    choose(found);
  });

  async function walk(entry, prefix, found) {
    const path = prefix === null ? "" : prefix + entry.name;
    if (entry.isFile) found.push({ path, file: await new Promise((ok, no) => entry.file(ok, no)) });
    else {
      const reader = entry.createReader();
      for (let batch; (batch = await new Promise((ok, no) => reader.readEntries(ok, no))).length;) {
        for (const child of batch) await walk(child, path ? `${path}/` : "", found);
      }
    }
  }

  async function call(method, url, body, signal) {
    for (let attempt = 0; ; attempt++) {
      try {
        const answer = await fetch(url, { method, body, signal, headers: { Accept: "application/json" } });
        if (answer.status === 401) signedOut(form);
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

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!files.length) return showError(form, "Choose files, a folder or an archive first.");
    const stop = new AbortController(), button = form.querySelector(".btn.primary"), total = files.reduce((sum, f) => sum + f.file.size, 0);
    const base = form.dataset.upload;
    let done = 0;
    const show = (text) => { bar.hidden = false; bar.querySelector("progress").value = total ? done / total : 1; bar.querySelector("span").textContent = text ?? `${size(done)} of ${size(total)}`; };
    showError(form, "");
    button.disabled = true;
    try {
      const { id, part } = await call("POST", `${base}?size=${total}`, null, stop.signal);
      current = { id, stop };
      show();
      for (const { path, file } of files) {
        for (let offset = 0; offset < file.size || offset === 0; offset += part) {
          const piece = file.slice(offset, offset + part);
          await call("PUT", `${base}/${id}?${new URLSearchParams({ path, offset })}`, piece, stop.signal);
          done += piece.size;
          show();
        }
      }
      show("Making a version…");
      const unpack = form.elements.unpack.checked;
      const made = await call("POST", `${base}/${id}/dataset?${new URLSearchParams({ name: form.elements.name.value, unpack })}`, null, stop.signal);
      current = null;
      toast(made.unchanged ? "Equal to the newest version: none was made." : `${made.dataset.name}, version ${made.dataset.version}, is available.`, "ok");
      form.reset();
      choose([]);
      form.closest("dialog").close();
      document.body.dispatchEvent(new CustomEvent("shoal:changed"));
    } catch (error) {
      if (!stop.signal.aborted) showError(form, error.message);
    } finally { button.disabled = false; bar.hidden = true; }
  });
  form.closest("dialog").addEventListener("close", () => {
    if (!current) return;
    current.stop.abort();
    fetch(`${form.dataset.upload}/${current.id}`, { method: "DELETE" });
    current = null;
    toast("Upload given up.");
  });
}
