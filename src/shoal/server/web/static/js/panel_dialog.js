// Options of one panel: title, lines, axes, size, place, export; and the panel in full screen.
import { toast } from "./app.js";
import { make } from "./dom.js";

const number = (text) => (text.trim() === "" ? undefined : Number(text));

function field(label, control, hint = "") {
  const id = `panel-${control.name}`;
  control.id = id;
  return make(
    "div",
    {},
    make("label", { text: label, htmlFor: id }),
    control,
    hint ? make("p", { className: "hint", text: hint }) : null,
  );
}
const check = (name, text, checked) =>
  make("label", { className: "check" }, make("input", { type: "checkbox", name, checked }), text);

/** Opens the options of a panel; without `panel` a new one is made. */
export function panelDialog(workspace, id, panel) {
  document.getElementById("panel-dialog")?.remove();
  const spec = workspace.specified?.get(id) ?? { names: [], title: "" },
    o = workspace.optionsOf(spec),
    isNew = !panel;
  const lines = make("textarea", {
    name: "names",
    rows: 3,
    spellcheck: false,
    value: spec.names.join("\n"),
    required: true,
  });
  const x = make(
    "select",
    { name: "x" },
    ...[
      ["", "As on the page"],
      ["step", "Step"],
      ["relative", "Run time"],
      ["time", "Clock"],
      ...workspace.known.map((n) => [n, n]),
    ].map(([value, text]) => new Option(text, value)),
  );
  x.value = spec.x ?? "";
  const text = (name, value, more = {}) =>
    make("input", { type: "text", name, value: value ?? "", autocomplete: "off", ...more });
  const number_ = (name, value) => text(name, value, { inputMode: "decimal" });
  const known = make(
    "select",
    { ariaLabel: "Add a metric" },
    new Option("Add a metric", ""),
    ...workspace.known.map((n) => new Option(n, n)),
  );
  known.addEventListener("change", async () => {
    const { quote } = await import("./lines.js");
    if (known.value) lines.value = [...lines.value.split("\n").filter(Boolean), quote(known.value)].join("\n");
    known.value = "";
  });
  const error = make("p", { className: "form-error" });
  error.setAttribute("role", "alert");
  const act = (label, work) => make("button", { type: "button", className: "btn", text: label, onclick: work });
  const form = make(
    "form",
    { method: "dialog" },
    make(
      "div",
      { className: "body" },
      make("h2", { text: isNew ? "Add a chart" : spec.title, id: "panel-dialog-title" }),
      isNew
        ? null
        : make(
            "div",
            { className: "row" },
            act(spec.pinned ? "Unpin" : "Pin", () => {
              workspace.change(id, { pinned: spec.pinned ? undefined : true });
              dialog.close();
            }),
            act("Full screen", () => {
              dialog.close();
              openFull(workspace, id);
            }),
            act("Left", () => workspace.move(id, -1)),
            act("Right", () => workspace.move(id, 1)),
            ...["PNG", "SVG", "CSV"].map((kind) =>
              act(kind, async () => {
                try {
                  (await import("./chart_export.js")).save(panel, kind.toLowerCase());
                } catch (problem) {
                  toast(problem.message, "bad");
                }
              }),
            ),
          ),
      field("Title", text("title", isNew ? "" : spec.title, { placeholder: "As its lines" })),
      spec.isExtra
        ? null
        : make(
            "div",
            {},
            field(
              "Metrics or expressions, one per line",
              lines,
              "Such as eval/loss - loss. Names with spaces stand in double quotes.",
            ),
            known,
          ),
      make(
        "div",
        { className: "fields inline" },
        spec.isExtra ? null : field("X axis", x),
        field("Section", text("section", spec.section ?? "")),
      ),
      make(
        "div",
        { className: "fields inline" },
        field("Y from", number_("min", spec.min)),
        field("Y to", number_("max", spec.max)),
        field("Width (1 to 3)", number_("span", spec.span)),
        field("Height (px)", number_("height", spec.height)),
      ),
      make(
        "div",
        { className: "row" },
        check("logX", "Log x", Boolean(o.logX)),
        check("logY", "Log y", Boolean(o.logY)),
        check("cut", "Cut outliers", Boolean(o.cut)),
        check("band", "Lowest to highest", o.band !== false),
      ),
      error,
    ),
    make(
      "div",
      { className: "foot" },
      isNew
        ? null
        : make("button", {
            type: "button",
            className: "btn danger",
            text: id.startsWith("c:") ? "Delete" : "Hide",
            onclick: () => {
              if (id.startsWith("c:")) {
                delete workspace.layout.panels[id];
                workspace.keep();
                workspace.arrange();
              } else workspace.change(id, { hidden: true });
              dialog.close();
            },
          }),
      make("button", { type: "button", className: "btn", text: "Cancel", onclick: () => dialog.close() }),
      make("button", { className: "btn primary", text: "Save" }),
    ),
  );
  const dialog = make("dialog", { id: "panel-dialog", className: "wide" }, form);
  dialog.setAttribute("aria-labelledby", "panel-dialog-title");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const { elements: e } = form,
      numbers = Object.fromEntries(["min", "max", "span", "height"].map((name) => [name, number(e[name].value)]));
    const wrong = Object.entries(numbers).find(([, v]) => v !== undefined && !Number.isFinite(v));
    if (wrong) {
      error.textContent = `"${e[wrong[0]].value}" is not a number.`;
      return;
    }
    if (numbers.min !== undefined && numbers.max !== undefined && numbers.min >= numbers.max) {
      error.textContent = "Y from must be below Y to.";
      return;
    }
    const names = spec.isExtra
      ? []
      : [
          ...new Set(
            e.names.value
              .split("\n")
              .map((line) => line.trim())
              .filter(Boolean),
          ),
        ];
    if (!spec.isExtra && !names.length) {
      error.textContent = "Add a metric.";
      return;
    }
    const size = {
      span: numbers.span && Math.min(3, Math.max(1, Math.round(numbers.span))),
      height: numbers.height && Math.min(900, Math.max(140, Math.round(numbers.height))),
    };
    const s = workspace.settings;
    workspace.change(id, {
      ...numbers,
      ...size,
      title: e.title.value.trim() || names.join(", ") || spec.title,
      ...(spec.isExtra ? {} : { names, x: e.x.value || undefined }),
      section: e.section.value.trim() || (isNew ? "Charts" : undefined),
      logX: e.logX.checked || undefined,
      logY: e.logY.checked === Boolean(s.logY) ? undefined : e.logY.checked,
      cut: e.cut.checked === Boolean(s.cut) ? undefined : e.cut.checked,
      band: e.band.checked ? undefined : false,
    });
    const made = workspace.panels.get(id);
    if (made) {
      made.range = null;
      made.u?.destroy();
      made.u = null;
    }
    dialog.close();
    workspace.refresh();
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

/** Shows one panel on the whole screen; Escape brings it back. */
export function openFull(workspace, id) {
  const panel = workspace.panels.get(id);
  if (!panel) return;
  const mark = make("span", { hidden: true }),
    dialog = make("dialog", { className: "full" });
  dialog.setAttribute("aria-label", panel.card.dataset.text);
  const close = make("button", { type: "button", className: "btn", text: "Close", onclick: () => dialog.close() });
  panel.card.before(mark);
  const height = panel.plot.style.height;
  panel.plot.style.height = "";
  dialog.append(make("div", { className: "row right-row" }, close), panel.card);
  document.body.append(dialog);
  dialog.showModal();
  workspace.opened = id;
  workspace.address();
  workspace.visible.add(id);
  workspace.refresh();
  dialog.addEventListener("close", () => {
    panel.hideTip();
    panel.plot.style.height = height;
    mark.replaceWith(panel.card);
    dialog.remove();
    workspace.opened = null;
    workspace.address();
  });
}
