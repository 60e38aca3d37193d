// Upload of files to a dataset. Closing the dialog cancels the upload.
import { showError, toast } from "./app.js";
import { call, receive, send, showBar, size, total } from "./transfer.js";

const form = document.querySelector("form[data-upload]");
if (form) {
  const chosen = form.querySelector("[data-chosen]"),
    bar = form.querySelector("[data-progress]"),
    base = form.dataset.upload;
  const plain = (name) =>
    name
      .replace(/\.(zip|tar|tgz|gz)+$/i, "")
      .replace(/\.[^.]*$/, "")
      .replace(/[^A-Za-z0-9._-]+/g, "-")
      .replace(/^[^A-Za-z0-9]+/, "")
      .slice(0, 63);
  let files = [],
    current = null;

  const choose = (list, title) => {
    files = list;
    chosen.textContent = files.length
      ? `${files.length} ${files.length === 1 ? "file" : "files"}, ${size(total(files))}`
      : "Nothing chosen yet";
    if (files.length && !form.elements.name.value) form.elements.name.value = plain(title);
  };
  receive(
    document.getElementById("drop"),
    ["up-files", "up-folder"].map((id) => document.getElementById(id)),
    choose,
  );

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!files.length) return showError(form, "Choose files, a folder or an archive first.");
    const stop = new AbortController(),
      button = form.querySelector(".btn.primary"),
      all = total(files);
    const options = { signal: stop.signal, place: form };
    showError(form, "");
    button.disabled = true;
    try {
      const begun = (id) => {
        current = { id, stop };
      };
      const id = await send(base, files, {
        ...options,
        purpose: "dataset",
        begun,
        progress: (done) => showBar(bar, done, all),
      });
      showBar(bar, 1, 1, "Creating a version…");
      const query = new URLSearchParams({ name: form.elements.name.value, unpack: form.elements.unpack.checked });
      const made = await call("POST", `${base}/${id}/dataset?${query}`, null, options);
      current = null;
      toast(
        made.unchanged
          ? "Identical to the newest version: no new version was created."
          : `${made.dataset.name}, version ${made.dataset.version}, is available.`,
        "ok",
      );
      form.reset();
      choose([]);
      form.closest("dialog").close();
      document.body.dispatchEvent(new CustomEvent("shoal:changed"));
    } catch (error) {
      if (!stop.signal.aborted) showError(form, error.message);
    } finally {
      button.disabled = false;
      bar.hidden = true;
    }
  });
  form.closest("dialog").addEventListener("close", () => {
    if (!current) return;
    current.stop.abort();
    fetch(`${base}/${current.id}`, { method: "DELETE" });
    current = null;
    toast("Upload cancelled.");
  });
}
