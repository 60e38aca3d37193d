// Ctrl-K: finds jobs, sweeps, datasets, checkpoints and pages by name, and does what the page offers. `?` shows the keys.
const TYPING_MS = 120,
  MOST = 40;
const KEYS = [
  ["Ctrl K", "Find anything, or do something"],
  ["/", "Search on this page"],
  ["?", "Show these keys"],
  ["g h", "Home"],
  ["g r", "Runs"],
  ["g j", "Jobs"],
  ["g s", "Sweeps"],
  ["g d", "Datasets"],
  ["g c", "Checkpoints"],
  ["g m", "Machines"],
  ["g q", "Queue"],
  ["n", "New job"],
  ["t", "Light or dark"],
  ["Esc", "Close"],
];

function make(tag, fields = {}, ...children) {
  const made = Object.assign(document.createElement(tag), fields);
  made.append(...children);
  return made;
}

/** Pages and actions that this page has: the links of the side bar, and buttons and links of its head. */
function here() {
  const links = [...document.querySelectorAll(".side li a")].map((link) => ({
    title: link.textContent.trim(),
    note: "page",
    go: () => location.assign(link.href),
  }));
  const actions = [...document.querySelectorAll("main .head .btn, #job-head .actions .btn")]
    .filter((button) => button.checkVisibility?.() ?? true)
    .map((button) => ({
      title: (button.textContent.trim() || button.ariaLabel || button.title).replace(/\s+/g, " "),
      note: "action",
      go: () => button.click(),
    }))
    .filter(({ title }) => title);
  const fresh = document.querySelector(".side a[href$='/jobs']");
  const more = fresh
    ? [
        { title: "New job", note: "action", go: () => location.assign(`${fresh.href}/new`) },
        {
          title: "New sweep",
          note: "action",
          go: () => location.assign(`${fresh.href.replace(/jobs$/, "sweeps")}/new`),
        },
      ]
    : [];
  return [
    ...actions,
    ...more,
    ...links,
    { title: "Light or dark", note: "action", go: () => window.shoalTheme?.() },
    { title: "Keys", note: "help", go: showKeys },
  ];
}

/** How well a text fits: its letters in order, better if together and at the start. Null if it does not fit. */
export function fit(text, wanted) {
  const all = text.toLowerCase(),
    part = wanted.toLowerCase().trim(),
    at = all.indexOf(part);
  if (at >= 0) return at ? 2 + at / 1000 : 1;
  let place = -1,
    gaps = 0;
  for (const letter of part.replace(/\s+/g, "")) {
    const next = all.indexOf(letter, place + 1);
    if (next < 0) return null;
    gaps += next - place - 1;
    place = next;
  }
  return 10 + gaps;
}

export function showPalette() {
  if (document.getElementById("palette")) return;
  const input = make("input", {
    type: "search",
    placeholder: "Find a job, dataset, checkpoint or page, or do something",
    autocomplete: "off",
    spellcheck: false,
  });
  const list = make("ul", { id: "palette-list" }),
    dialog = make("dialog", { id: "palette" }, input, list);
  for (const [name, value] of [
    ["role", "combobox"],
    ["aria-expanded", "true"],
    ["aria-controls", "palette-list"],
    ["aria-label", "Find anything"],
    ["aria-autocomplete", "list"],
  ])
    input.setAttribute(name, value);
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Results");
  dialog.setAttribute("aria-label", "Find anything");
  const own = here();
  let items = [],
    at = 0,
    generation = 0,
    timer = null;
  const choose = (item) => {
    dialog.close();
    item?.go();
  };
  const draw = () => {
    list.replaceChildren(
      ...items.map((item, i) => {
        const row = make(
          "li",
          {
            id: `palette-${i}`,
            onclick: () => choose(item),
            onmousemove: () => {
              if (at !== i) {
                at = i;
                draw();
              }
            },
          },
          make("span", { textContent: item.title, className: "grow" }),
          make("small", { textContent: item.note, className: "muted" }),
        );
        row.setAttribute("role", "option");
        row.setAttribute("aria-selected", String(i === at));
        return row;
      }),
    );
    if (!items.length) list.append(make("li", { textContent: "Nothing has this name.", className: "muted" }));
    input.setAttribute("aria-activedescendant", items.length ? `palette-${at}` : "");
    list.children[at]?.scrollIntoView({ block: "nearest" });
  };
  const matching = (text) =>
    text
      ? own
          .map((item) => [fit(item.title, text), item])
          .filter(([place]) => place !== null)
          .sort(([a], [b]) => a - b)
          .map(([, item]) => item)
      : own;
  async function look() {
    const text = input.value.trim(),
      mine = ++generation;
    items = matching(text).slice(0, MOST);
    at = 0;
    draw();
    if (!text) return;
    const answer = await fetch(`/api/v1/search?${new URLSearchParams({ q: text })}`).catch(() => null);
    if (mine !== generation || !answer?.ok) return;
    const found = (await answer.json()).map((one) => ({
      title: one.title || one.name,
      note: [one.kind, one.status, one.workspace].filter(Boolean).join(" · "),
      go: () => location.assign(one.path),
    }));
    if (mine !== generation) return;
    items = [...found, ...matching(text)].slice(0, MOST);
    draw();
  }
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(look, TYPING_MS);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      at = Math.max(0, Math.min(items.length - 1, at + (event.key === "ArrowDown" ? 1 : -1)));
      draw();
    }
    if (event.key === "Enter") {
      event.preventDefault();
      choose(items[at]);
    }
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  look();
}

export function showKeys() {
  const list = make(
    "dl",
    { className: "keys" },
    ...KEYS.flatMap(([key, what]) => [
      make("dt", {}, ...key.split(" ").map((part) => make("kbd", { textContent: part }))),
      make("dd", { textContent: what }),
    ]),
  );
  const close = make("button", {
    type: "button",
    className: "btn primary",
    textContent: "Close",
    onclick: () => dialog.close(),
  });
  const dialog = make(
    "dialog",
    { id: "keys" },
    make("div", { className: "body" }, make("h2", { id: "keys-title", textContent: "Keys" }), list),
    make("div", { className: "foot" }, close),
  );
  dialog.setAttribute("aria-labelledby", "keys-title");
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
