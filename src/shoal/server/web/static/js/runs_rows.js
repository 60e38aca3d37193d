// Heads and rows of the table of runs: runs, groups of runs, sweeps with their trials.
import { css, make } from "./dom.js";
import { shade } from "./lines.js";
import { base, quoted, state, writes } from "./runs_state.js";
import { ago } from "./times.js";
import { seconds, shortNumber } from "./units.js";

export const idOf = (item) => item.id ?? item.ids.join(",");
export const pathOf = (row) =>
  `${base}/jobs/${encodeURIComponent(row.name === "new" || row.name.endsWith(".json") ? row.id : row.name)}`;
export const labelOf = (group) =>
  Object.entries(group.key)
    .filter(([, value]) => value !== null)
    .map(([name, value]) => `${name}=${cell(name, value)}`)
    .join(" ") || "all";

function cell(name, value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  return name === "duration" ? seconds(value) : shortNumber(value);
}

/** `on`: what buttons of rows and heads do. sort(name), remove(name), ungroup(name), narrow(term), eye(item), star(row), tick(row, on),
    tickAll(on), isShown(item), isChosen(row), allChosen(), colour(item), fold(sweep), folded(sweep). */
export class Rows {
  constructor(on) {
    this.on = on;
  }

  head() {
    const all = make("input", {
      type: "checkbox",
      ariaLabel: "Choose all matching runs",
      checked: this.on.allChosen(),
      onchange: ({ target }) => this.on.tickAll(target.checked),
    });
    return make(
      "tr",
      {},
      make("th", { className: "tick" }, make("label", {}, all)),
      this.eyeHead(),
      this.sortable("Run", "name", "main"),
      this.sortable("Status", "status"),
      ...state.columns.map((name) => this.removable(name)),
      make("th", { text: "Tags", className: "c-mid" }),
      this.sortable("Person", "user", "c-wide"),
      this.sortable("Duration", "duration", "right c-mid"),
      this.sortable("Created", "created", "c-mid"),
    );
  }
  groupHead(keys, others) {
    const exact = (name) => state.group.includes(name);
    const key = (name) => {
      if (!exact(name)) return make("th", { text: name });
      const off = this.off(`Do not group by ${name}`, () => this.on.ungroup(name));
      return make("th", {}, name, off);
    };
    return make(
      "tr",
      {},
      this.eyeHead(),
      ...keys.map(key),
      this.sortable("Runs", "runs", "right"),
      ...others.map((name) => this.removable(name)),
    );
  }
  eyeHead() {
    return make("th", { className: "tick eye-col" }, make("span", { className: "sr", text: "In the charts" }));
  }
  sortable(title, name, className = "") {
    const isHere = state.sort.replace(/^-/, "") === name,
      isDown = state.sort.startsWith("-");
    const button = make("button", {
      type: "button",
      className: "by",
      data: { focus: `sort ${name}` },
      text: title,
      onclick: () => this.on.sort(isHere && !isDown ? `-${name}` : name),
    });
    const made = make("th", { className }, button);
    if (isHere) made.setAttribute("aria-sort", isDown ? "descending" : "ascending");
    return made;
  }
  removable(name) {
    const made = this.sortable(name, name, "right");
    made.append(this.off(`Remove the column ${name}`, () => this.on.remove(name)));
    return made;
  }
  off(label, onclick) {
    return make("button", { type: "button", className: "off", text: "×", title: label, ariaLabel: label, onclick });
  }

  run(row, { isTrial = false } = {}) {
    const tick = make("input", {
      type: "checkbox",
      value: row.id,
      data: { focus: `tick ${row.id}` },
      checked: this.on.isChosen(row),
      ariaLabel: `Choose ${row.name}`,
      onchange: ({ target }) => this.on.tick(row, target.checked),
    });
    const star = make("button", {
      type: "button",
      className: "star",
      data: { focus: `star ${row.id}` },
      text: row.starred ? "★" : "☆",
      disabled: !writes,
      ariaLabel: `${row.starred ? "Remove the star of" : "Star"} ${row.name}`,
      ariaPressed: String(row.starred),
      onclick: () => this.on.star(row),
    });
    const made = make(
      "tr",
      { className: isTrial ? "trial" : "", data: { name: row.name } },
      make("td", { className: "tick" }, make("label", {}, tick)),
      make("td", { className: "tick eye-col" }, this.eye(row, row.name)),
      make(
        "td",
        { className: "main" },
        star,
        make("a", { href: pathOf(row), text: row.title || row.name, title: row.name }),
      ),
      make("td", {}, make("span", { className: `status ${row.status}`, text: row.status })),
      ...state.columns.map((name) => make("td", { className: "right num", text: cell(name, row.values[name]) })),
      make("td", { className: "c-mid" }, ...row.tags.map((tag) => this.tag(tag))),
      make("td", { className: "c-wide", text: row.user }),
      make("td", { className: "right num c-mid", text: row.duration_s === null ? "–" : seconds(row.duration_s) }),
      make(
        "td",
        { className: "c-mid nowrap" },
        make("time", { dateTime: row.created_at, text: ago(row.created_at), data: { ago: "" } }),
      ),
    );
    return made;
  }
  tag(tag) {
    return make("button", {
      type: "button",
      className: "tag",
      text: tag,
      title: `Show only runs with the tag ${tag}`,
      onclick: () => this.on.narrow(`tag:${tag}`),
    });
  }
  eye(item, name) {
    const isOn = this.on.isShown(item),
      mark = make("i", { className: isOn ? "on" : "" });
    if (isOn) mark.style.background = shade(this.on.colour(item), css);
    return make(
      "button",
      {
        type: "button",
        className: "eye",
        data: { focus: `eye ${idOf(item)}` },
        title: isOn ? "In the charts: click to hide" : "Show in the charts",
        ariaLabel: `Show ${name} in the charts`,
        ariaPressed: String(isOn),
        onclick: () => this.on.eye(item),
      },
      mark,
    );
  }

  group(group, keys, others) {
    const value = (name) => {
      const { mean, std, min, max, count } = group.values[name];
      if (mean === null) return make("td", { className: "right num", text: "–" });
      const spread = std === null ? "" : ` ± ${shortNumber(std)}`,
        some = count < group.runs ? ` (${count})` : "";
      const title = `${cell(name, min)} to ${cell(name, max)}`;
      return make("td", { className: "right num", title, text: `${cell(name, mean)}${spread}${some}` });
    };
    const terms = Object.entries(group.key)
      .filter(([, one]) => one !== null)
      .map(([name, one]) => `${quoted(name)}:${quoted(one)}`);
    const inside = new URLSearchParams({ q: [state.q, ...terms].filter(Boolean).join(" "), sort: state.sort });
    for (const name of state.columns) inside.append("column", name);
    const title = `Show the ${group.runs} runs of ${labelOf(group)}`;
    return make(
      "tr",
      {},
      make("td", { className: "tick eye-col" }, this.eye(group, labelOf(group))),
      ...keys.map((name) => make("td", { text: cell(name, group.key[name]) })),
      make(
        "td",
        { className: "right num" },
        make("a", { href: `?${inside}`, text: String(group.runs), title, ariaLabel: title }),
      ),
      ...others.map(value),
    );
  }

  sweep(sweep) {
    const isOpen = this.on.folded(sweep),
      done = Object.values(sweep.trials ?? {}).reduce((sum, n) => sum + (Number(n) || 0), 0);
    const fold = make("button", {
      type: "button",
      className: "fold",
      data: { focus: `sweep ${sweep.id}` },
      text: isOpen ? "▾" : "▸",
      ariaExpanded: String(isOpen),
      ariaLabel: `Trials of ${sweep.name}`,
      onclick: () => this.on.fold(sweep),
    });
    return make(
      "tr",
      { className: "sweep-row" },
      make("td", { className: "tick" }, fold),
      make("td", { className: "tick eye-col" }),
      make(
        "td",
        { className: "main" },
        make("a", { href: `${base}/sweeps/${encodeURIComponent(sweep.name)}`, text: sweep.name }),
        make("span", { className: "muted small", text: ` sweep${done ? `, ${done} trials` : ""}` }),
      ),
      make("td", {}, make("span", { className: `status ${sweep.status}`, text: sweep.status })),
      make("td", { colSpan: 40 }),
    );
  }
}
