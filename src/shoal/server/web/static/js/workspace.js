// The chart workspace of a job, a comparison and the table of runs: sections that fold, panels that can be moved, resized, pinned and
// opened full screen. Settings are in the address and in a layout that the server keeps per person and workspace.
import { call } from "./api.js";
import { toast } from "./app.js";
import { $, icon, make } from "./dom.js";
import { byWeight, matches, quote, sectionOf, stepAt, unquote } from "./lines.js";
import { Panel } from "./panel.js";
// Loaded when a chart's options are opened.
const panelDialog = async (...given) => (await import("./panel_dialog.js")).panelDialog(...given);
const openFull = async (...given) => (await import("./panel_dialog.js")).openFull(...given);

const EVERY_MS = 1500,
  AT_ONCE = 30,
  SLIDING_MS = 120,
  ZOOM_MS = 50,
  SAVE_MS = 1200,
  POINTS = 400,
  PAD = 0.02;
const KINDS = { step: "number", relative: "seconds", time: "time" },
  PINNED = "Pinned",
  BOXES = [
    ["log-y", "logY"],
    ["cut", "cut"],
    ["ghosts", "ghosts"],
    ["show-marks", "marks"],
  ],
  SYSTEM = "System";

/** `given`: page (whose layout), api (of the workspace), runs() → [{key, ids, label, colour, href}], names() → metrics,
    extra() → panels from elsewhere [{id, title, section, lines(x)}], marks() → [{kind, step, at, text}], offers(line, point) → elements. */
export class Workspace {
  constructor(given) {
    Object.assign(this, {
      extra: async () => [],
      marks: async () => [],
      definitions: async () => ({ metrics: {}, charts: [] }),
      offers: () => [],
      ...given,
    });
    Object.assign(this, {
      box: $("charts"),
      panels: new Map(),
      visible: new Set(),
      sections: new Map(),
      known: [],
      shownMarks: [],
      defined: { metrics: {}, charts: [] },
      layout: { panels: {}, folded: [], order: {} },
      extras: new Map(),
      generation: 0,
    });
    this.settings = { x: "step", smooth: 0.6, logY: false, cut: false, ghosts: true, marks: true };
    this.watcher = new IntersectionObserver(
      (entries) => {
        for (const { target, isIntersecting } of entries) {
          if (isIntersecting) this.visible.add(target.dataset.id);
          else this.visible.delete(target.dataset.id);
        }
        this.refresh();
      },
      { rootMargin: "300px" },
    );
  }

  async start() {
    if (this.view) this.take(this.view);
    else {
      try {
        const { mine, shared } = await call("GET", `${this.api}/chart-layouts/${this.page}`);
        Object.assign(this.layout, mine ?? shared ?? {});
        Object.assign(this.settings, this.layout.settings ?? {});
      } catch {
        /* shown without a layout */
      }
    }
    this.readAddress();
    this.controls();
    await this.look();
    if (this.opened) openFull(this, this.opened);
    return this;
  }

  /** Takes layout and settings from a saved view. One's own layout stays as it is. */
  take({ layout, settings }) {
    Object.assign(this.layout, layout);
    Object.assign(this.settings, settings);
    this.isOfView = true;
  }
  use(view) {
    this.take(view);
    this.showSettings();
    this.arrange();
    this.refresh();
  }

  // The address: what differs from the layout, so that a link shows the same charts.
  readAddress() {
    const told = new URLSearchParams(location.search),
      s = this.settings;
    if (told.has("x")) s.x = told.get("x");
    if (told.has("smooth")) s.smooth = Math.min(0.99, Math.max(0, Number(told.get("smooth")) || 0));
    for (const [key, name] of [
      ["logY", "logy"],
      ["cut", "cut"],
    ])
      if (told.has(name)) s[key] = told.get(name) === "1";
    const range = told.get("range")?.split(",").map(Number);
    this.range = range?.length === 2 && range.every(Number.isFinite) && range[0] < range[1] ? range : null;
    this.opened = told.get("panel");
    this.here = told.has("at") ? Number(told.get("at")) : null;
    $("metric-search").value = told.get("metric") ?? "";
  }
  address() {
    const told = new URLSearchParams(location.search),
      s = this.settings,
      set = (name, value) => (value === null || value === "" ? told.delete(name) : told.set(name, value));
    set("x", s.x === "step" ? null : s.x);
    set("smooth", s.smooth === 0.6 ? null : s.smooth);
    set("logy", s.logY ? "1" : null);
    set("cut", s.cut ? "1" : null);
    set("range", this.range ? this.range.map((v) => Number(v.toPrecision(13))).join(",") : null);
    set("panel", this.opened ?? null);
    set("metric", $("metric-search").value || null);
    history.replaceState(null, "", `${location.pathname}${String(told) ? `?${told}` : ""}`);
  }
  keep() {
    this.layout.settings = this.settings;
    this.address();
    if (this.isOfView) return; // kept with the view, when that is saved
    clearTimeout(this.saving);
    this.saving = setTimeout(
      () => call("PUT", `${this.api}/chart-layouts/${this.page}`, { layout: this.layout }).catch(() => {}),
      SAVE_MS,
    );
  }

  // Which panels there are: one per metric, those the script defined, and those people have made.
  specs() {
    const made = new Map(),
      { panels } = this.layout,
      add = (id, spec) => made.set(id, { id, ...spec, ...panels[id] });
    for (const chart of this.defined.charts)
      add(`d:${chart.title}`, {
        title: chart.title,
        names: chart.metrics,
        x: chart.x === "step" ? undefined : chart.x,
        section: chart.section ?? "Charts",
        logX: chart.log_x,
        logY: chart.log_y,
      });
    for (const [id, spec] of Object.entries(panels)) if (id.startsWith("c:")) add(id, spec);
    const many = new Map();
    for (const name of this.known) many.set(sectionOf(name), (many.get(sectionOf(name)) ?? 0) + 1);
    for (const name of this.known) {
      const told = Object.entries(this.defined.metrics)
        .filter(([pattern]) => matches(pattern, name))
        .reduce((all, [, one]) => ({ ...all, ...one }), {});
      if (!told.hidden)
        add(`m:${name}`, {
          title: name,
          names: [quote(name)],
          section: many.get(sectionOf(name)) > 1 ? sectionOf(name) : "",
          x: told.step,
          isAuto: true,
        });
    }
    for (const [id, one] of this.extras) add(id, { ...one, names: [], isExtra: true });
    return made;
  }
  /** The x axis of a panel; a metric that these runs do not have is none. */
  xOf(spec) {
    return [spec?.x, this.settings.x].find((x) => x && (KINDS[x] || this.known.includes(x))) ?? "step";
  }

  async look() {
    const [names, marks, defined, extras] = await Promise.all([
      this.names(),
      this.marks().catch(() => []),
      this.definitions().catch(() => this.defined),
      this.extra().catch(() => []),
    ]);
    this.known = [...new Set(names)].sort(byWeight);
    Object.assign(this, { shownMarks: marks, defined, extras: new Map(extras.map((one) => [one.id, one])) });
    this.fillX();
    this.arrange();
    $("no-metrics").hidden = this.panels.size > 0;
    $("chart-tools").hidden = this.panels.size === 0 && !this.known.length;
  }

  arrange() {
    const specs = this.specs(),
      wanted = $("metric-search").value.toLowerCase(),
      places = new Map();
    for (const spec of specs.values()) {
      if (spec.hidden) continue;
      const section = spec.pinned ? PINNED : (spec.section ?? "");
      (places.get(section) ?? places.set(section, []).get(section)).push(spec);
    }
    for (const [id, panel] of this.panels)
      if (!specs.has(id) || specs.get(id).hidden) {
        this.watcher.unobserve(panel.card);
        panel.card.remove();
        this.panels.delete(id);
        this.visible.delete(id);
      }
    const order = [...places.keys()].sort(
      (a, b) =>
        (a === PINNED ? -2 : a === SYSTEM ? 2 : a === "Charts" ? -1 : 0) -
        (b === PINNED ? -2 : b === SYSTEM ? 2 : b === "Charts" ? -1 : 0),
    );
    const rank = new Map(
      order.map((name) => [
        name,
        Math.min(
          ...places.get(name).map(({ id }) => {
            const at = this.known.indexOf(id.slice(2));
            return at < 0 ? 1e9 : at;
          }),
        ),
      ]),
    );
    order.sort(
      (a, b) =>
        ([PINNED, "Charts"].indexOf(b) - [PINNED, "Charts"].indexOf(a) &&
          (a === PINNED ? -1 : b === PINNED ? 1 : a === "Charts" ? -1 : b === "Charts" ? 1 : 0)) ||
        (a === SYSTEM) - (b === SYSTEM) ||
        rank.get(a) - rank.get(b),
    );
    for (const [name, section] of this.sections)
      if (!places.has(name)) {
        section.remove();
        this.sections.delete(name);
      }
    order.forEach((name, place) => {
      const section = this.section(name),
        grid = section.querySelector(".charts"),
        list = this.ordered(name, places.get(name));
      section.querySelector(".count").textContent = list.length;
      list.forEach((spec, at) => {
        const { card } = this.panel(spec);
        card.hidden = !spec.title.toLowerCase().includes(wanted);
        if (grid.children[at] !== card) grid.insertBefore(card, grid.children[at] ?? null);
      });
      section.hidden = Boolean(wanted) && !list.some((spec) => spec.title.toLowerCase().includes(wanted));
      section.querySelector("summary").hidden = order.length === 1 && !name;
      if (this.box.children[place] !== section) this.box.insertBefore(section, this.box.children[place] ?? null);
    });
    this.specified = specs;
  }
  ordered(section, list) {
    const order = this.layout.order[section] ?? [];
    const at = ({ id }) => {
      const i = order.indexOf(id);
      return i < 0 ? 1e6 : i;
    };
    return list
      .map((spec, i) => [spec, at(spec) * 1e6 + i])
      .sort((a, b) => a[1] - b[1])
      .map(([spec]) => spec);
  }
  section(name) {
    if (this.sections.has(name)) return this.sections.get(name);
    const made = make(
      "details",
      { className: "chart-section", open: !this.layout.folded.includes(name), data: { section: name } },
      make(
        "summary",
        {},
        icon("chevron"),
        make("h2", { text: name || "Metrics" }),
        make("span", { className: "count muted" }),
      ),
      make("div", { className: "charts" }),
    );
    made.addEventListener("toggle", () => {
      this.layout.folded = [...this.layout.folded.filter((other) => other !== name), ...(made.open ? [] : [name])];
      if (this.settled) this.keep();
    });
    setTimeout(() => {
      this.settled = true;
    }, 500);
    this.sections.set(name, made);
    return made;
  }
  panel(spec) {
    let panel = this.panels.get(spec.id);
    if (!panel) {
      panel = new Panel(spec.title, {
        zoomed: (from, range) => this.zoom(from, range),
        menu: (from) => panelDialog(this, spec.id, from),
        offers: (from, line, index) =>
          this.offers(
            line,
            {
              x: line.x[index],
              at: line.at?.[index],
              step: this.xOf(this.specified.get(spec.id)) === "step" ? Math.round(line.x[index]) : null,
            },
            from,
          ),
      });
      panel.card.dataset.id = spec.id;
      this.panels.set(spec.id, panel);
      this.movable(panel);
      this.watcher.observe(panel.card);
    }
    if (panel.card.dataset.text !== spec.title) {
      panel.card.dataset.text = spec.title;
      panel.title.textContent = spec.title;
    }
    panel.card.dataset.span = spec.span ?? 1;
    panel.plot.style.height = spec.height ? `${spec.height}px` : "";
    panel.card.classList.toggle("pinned", Boolean(spec.pinned));
    return panel;
  }
  /** Changes settings of a panel in the layout. */
  change(id, fields) {
    this.layout.panels[id] = { ...this.layout.panels[id], ...fields };
    for (const [key, value] of Object.entries(this.layout.panels[id]))
      if (value === undefined || value === null || value === "") delete this.layout.panels[id][key];
    this.keep();
    this.arrange();
    this.refresh();
  }
  move(id, steps) {
    const spec = this.specified.get(id),
      section = spec.pinned ? PINNED : (spec.section ?? ""),
      grid = this.panels.get(id).card.parentElement;
    const ids = [...grid.children].map((card) => card.dataset.id),
      at = ids.indexOf(id);
    ids.splice(at, 1);
    ids.splice(Math.max(0, Math.min(ids.length, at + steps)), 0, id);
    this.layout.order[section] = ids;
    this.keep();
    this.arrange();
  }
  // Moving by dragging the title, resizing by dragging the corner; both also in the panel's options.
  movable(panel) {
    const { card, title, grip } = panel,
      id = card.dataset.id;
    title.draggable = true;
    title.addEventListener("dragstart", (event) => {
      event.dataTransfer.setData("text/plain", id);
      event.dataTransfer.effectAllowed = "move";
      card.classList.add("moving");
      this.dragging = id;
    });
    title.addEventListener("dragend", () => {
      card.classList.remove("moving");
      this.dragging = null;
    });
    card.addEventListener("dragover", (event) => {
      if (
        this.dragging &&
        this.dragging !== id &&
        this.panels.get(this.dragging)?.card.parentElement === card.parentElement
      )
        event.preventDefault();
    });
    card.addEventListener("drop", (event) => {
      event.preventDefault();
      const cards = [...card.parentElement.children],
        from = cards.findIndex((one) => one.dataset.id === this.dragging);
      if (from >= 0) this.move(this.dragging, cards.indexOf(card) - from);
    });
    grip.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      grip.setPointerCapture(event.pointerId);
      const box = panel.plot.getBoundingClientRect(),
        width = card.clientWidth / Number(card.dataset.span || 1);
      const size = (at) => ({
        height: Math.round(Math.min(900, Math.max(140, box.height + at.clientY - event.clientY)) / 10) * 10,
        span: Math.min(
          3,
          Math.max(
            1,
            Math.round((card.getBoundingClientRect().width && at.clientX - card.getBoundingClientRect().left) / width),
          ),
        ),
      });
      const follow = (at) => {
        const { height, span } = size(at);
        panel.plot.style.height = `${height}px`;
        card.dataset.span = span;
      };
      grip.addEventListener("pointermove", follow);
      grip.addEventListener(
        "pointerup",
        (at) => {
          grip.removeEventListener("pointermove", follow);
          this.change(id, size(at));
        },
        { once: true },
      );
    });
  }

  // Data: one question for all visible panels with the same x and range.
  soon() {
    this.timer ??= setTimeout(() => {
      this.timer = null;
      this.look().then(() => this.refresh());
    }, EVERY_MS);
  }
  async refresh() {
    if (this.running) {
      this.again = true;
      return;
    }
    this.running = true;
    try {
      await this.load();
    } finally {
      this.running = false;
      if (this.again) {
        this.again = false;
        this.refresh();
      }
    }
  }
  async load() {
    const runs = this.runs(),
      specs = [...this.visible].map((id) => this.specified?.get(id)).filter(Boolean),
      together = new Map();
    for (const spec of specs) {
      if (spec.isExtra) {
        this.drawExtra(spec);
        continue;
      }
      const x = this.xOf(spec),
        panel = this.panels.get(spec.id),
        range = this.rangeOf(panel, spec),
        key = JSON.stringify([x, range, spec.isAuto ? "" : spec.id]);
      (together.get(key) ?? together.set(key, { x, range, specs: [] }).get(key)).specs.push(spec);
    }
    const parts = [...together.values()].flatMap(({ specs: all, ...rest }) =>
      Array.from({ length: Math.ceil(all.length / AT_ONCE) }, (_, i) => ({
        ...rest,
        specs: all.slice(i * AT_ONCE, (i + 1) * AT_ONCE),
      })),
    );
    await Promise.all(parts.map((part) => this.ask(part, runs)));
  }
  rangeOf(panel, spec) {
    return (KINDS[this.xOf(spec)] ?? "number") === panel.xKind
      ? (panel.range ?? (spec.x ? null : this.range))
      : spec.x
        ? null
        : this.range;
  }

  async ask({ x, range, specs }, runs) {
    if (!runs.length) {
      for (const { id } of specs) this.panels.get(id)?.update({ lines: [] });
      return;
    }
    const query = new URLSearchParams({ x, points: POINTS, smoothing: this.settings.smooth, times: runs.length === 1 });
    if (this.settings.ghosts && runs.length === 1) query.set("ghosts", true);
    if (range) {
      const pad = PAD * (range[1] - range[0]);
      query.set("from", range[0] - pad);
      query.set("to", range[1] + pad);
    }
    for (const { ids } of runs) query.append("job", ids.join(","));
    for (const name of new Set(specs.flatMap((spec) => spec.names))) query.append("name", name);
    let lines = [],
      missing = [],
      problem = "";
    try {
      ({ lines, missing } = await call("GET", `${this.api}/metrics/query?${query}`));
    } catch (error) {
      if (!error.status) throw error;
      problem = error.message;
    }
    for (const spec of specs)
      this.draw(
        spec,
        x,
        range,
        lines.filter(({ name }) => spec.names.includes(name)),
        runs,
        problem ||
          (missing.some((name) => spec.names.some((text) => text.includes(name)))
            ? `No run here has logged ${missing.filter((name) => spec.names.some((text) => text.includes(name))).join(", ")}.`
            : ""),
      );
  }

  draw(spec, x, range, found, runs, problem) {
    const panel = this.panels.get(spec.id),
      { settings: s } = this;
    if (!panel || String(range) !== String(this.rangeOf(panel, spec))) return; // answered too late: the range is another one
    const byJob = new Map(runs.map((run) => [String([...run.ids].sort()), run])),
      alone = runs.length === 1,
      several = spec.names.length > 1;
    const lines = found.map((line) => {
      const run = byJob.get(String([...line.jobs].sort())) ?? runs[0],
        shown = unquote(line.name);
      return {
        ...line,
        key: `${run.key} ${line.name} ${line.attempt ?? ""}`,
        run,
        label: alone ? shown : several ? `${run.label} · ${shown}` : run.label,
        colour: alone && several ? spec.names.indexOf(line.name) : run.colour,
      };
    });
    if (lines.some(({ attempt }) => attempt)) $("ghosts-control")?.removeAttribute("hidden");
    if (!range)
      panel.whole = lines.length
        ? [Math.min(...lines.map((l) => l.x[0])), Math.max(...lines.map((l) => l.x.at(-1)))]
        : null;
    if (range && !panel.range) panel.range = range;
    panel.card.classList.toggle("zoomed", Boolean(panel.range));
    panel.say(problem || (lines.length ? "" : "No points here."));
    const marks = alone && s.marks ? this.placed(x) : [];
    panel.update({ lines, marks, xKind: KINDS[x] ?? "number", xLabel: x, options: this.optionsOf(spec) });
  }
  optionsOf(spec) {
    return {
      logX: spec.logX,
      logY: spec.logY ?? this.settings.logY,
      min: spec.min,
      max: spec.max,
      cut: spec.cut ?? this.settings.cut,
      band: spec.band,
    };
  }

  /** Marks with their place on the x axis. */
  placed(x) {
    const at = (mark) =>
      x === "step"
        ? mark.step
        : x === "time"
          ? mark.at
          : x === "relative" && this.origin
            ? mark.at - this.origin
            : null;
    const here =
      this.here === null
        ? []
        : [
            {
              kind: "here",
              at: this.here,
              step: this.reference ? stepAt(this.reference, this.here) : null,
              text: "this moment",
            },
          ];
    return [...this.shownMarks, ...here].map((mark) => ({ ...mark, x: at(mark) }));
  }
  /** A line of the run with times, over any x: places samples of machines on it. */
  async referenceFor(x) {
    const [run] = this.runs(),
      name = this.known.find((one) => !one.startsWith("eval")) ?? this.known[0];
    if (!run || !name) return null;
    const { lines } = await call(
      "GET",
      `${this.api}/metrics/query?${new URLSearchParams({ job: run.ids[0], name: quote(name), x, points: 2000, times: true })}`,
    );
    if (x === "step") this.reference = lines[0];
    if (x === "relative" && lines[0]) this.origin = lines[0].at[0] - lines[0].x[0];
    return lines[0] ?? null;
  }
  async drawExtra(spec) {
    const panel = this.panels.get(spec.id),
      x = this.xOf(spec),
      one = this.extras.get(spec.id);
    if (!panel || !one) return;
    const lines = await one.lines(x, () => this.referenceFor(x));
    panel.whole = lines.length
      ? [Math.min(...lines.map((l) => l.x[0])), Math.max(...lines.map((l) => l.x.at(-1)))]
      : null;
    panel.say(lines.length ? "" : "No samples in this range.");
    panel.update({
      lines,
      xKind: KINDS[x] ?? "number",
      xLabel: x,
      marks: this.settings.marks ? this.placed(x) : [],
      options: this.optionsOf(spec),
    });
  }

  /** Charts of one x axis zoom together. */
  zoom(from, range) {
    const x = this.xOf(this.specified.get(from.card.dataset.id));
    this.range = this.specified.get(from.card.dataset.id).x ? this.range : range;
    for (const [id, panel] of this.panels)
      if (panel !== from && this.specified.get(id) && this.xOf(this.specified.get(id)) === x) panel.zoom(range);
    this.address();
    clearTimeout(this.zooming);
    this.zooming = setTimeout(() => this.refresh(), ZOOM_MS);
  }

  fillX() {
    const select = $("x-metric");
    if (!select) return;
    const names = this.known.filter((name) => !select.querySelector(`option[value="${CSS.escape(name)}"]`));
    select.append(...names.map((name) => new Option(name, name)));
    const x = this.xOf({});
    select.value = KINDS[x] ? "" : x;
    for (const radio of document.querySelectorAll("[name=axis]")) radio.checked = radio.value === x;
  }
  /** Sets the controls to the settings. */
  showSettings() {
    const s = this.settings,
      slider = $("smooth");
    slider.value = s.smooth;
    slider.parentElement.querySelector("output").value = Number(s.smooth).toFixed(2);
    for (const [id, key] of BOXES) if ($(id)) $(id).checked = s[key];
    this.fillX();
  }
  controls() {
    const s = this.settings,
      slider = $("smooth");
    const reload = () => {
      this.keep();
      this.refresh();
    };
    this.showSettings();
    slider.addEventListener("input", () => {
      s.smooth = Number(slider.value);
      slider.parentElement.querySelector("output").value = s.smooth.toFixed(2);
      clearTimeout(this.sliding);
      this.sliding = setTimeout(reload, SLIDING_MS);
    });
    for (const [id, key] of BOXES) {
      $(id)?.addEventListener("change", ({ target }) => {
        s[key] = target.checked;
        reload();
      });
    }
    const across = (x) => {
      s.x = x;
      this.range = null;
      for (const panel of this.panels.values()) {
        panel.range = null;
        panel.card.classList.remove("zoomed");
      }
      reload();
    };
    for (const radio of document.querySelectorAll("[name=axis]")) {
      radio.addEventListener("change", () => {
        $("x-metric").value = "";
        across(radio.value);
      });
    }
    $("x-metric")?.addEventListener("change", ({ target }) => {
      for (const radio of document.querySelectorAll("[name=axis]"))
        radio.checked = radio.value === (target.value || "step");
      across(target.value || "step");
    });
    $("metric-search").addEventListener("input", () => {
      this.arrange();
      this.address();
    });
    $("add-panel")?.addEventListener("click", () => panelDialog(this, `c:${Date.now().toString(36)}`, null));
    $("share-layout")?.addEventListener("click", async () => {
      try {
        await call("PUT", `${this.api}/chart-layouts/${this.page}/shared`, { layout: { ...this.layout, settings: s } });
        toast("Members without a layout of their own see this one now.", "ok");
      } catch (error) {
        toast(error.message, "bad");
      }
    });
    $("reset-layout")?.addEventListener("click", async () => {
      clearTimeout(this.saving);
      try {
        await call("DELETE", `${this.api}/chart-layouts/${this.page}`);
        location.assign(location.pathname + (this.page === "compare" ? location.search : ""));
      } catch (error) {
        toast(error.message, "bad");
      }
    });
  }
}
