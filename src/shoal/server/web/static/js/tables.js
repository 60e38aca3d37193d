// Tables with the class `sortable`: a click on a head sorts, and a field above a long one filters its rows.
const FILTER_FROM = 8;

function value(row, column) {
  const text = row.cells[column]?.textContent ?? "",
    number = Number(text.replace(/[\s,]/g, ""));
  return text !== "" && Number.isFinite(number) ? number : text.toLowerCase();
}
/** Numbers before texts; texts in the order of the language. */
export const compare = (a, b) =>
  typeof a === typeof b ? (typeof a === "number" ? a - b : a.localeCompare(b)) : typeof a === "number" ? -1 : 1;

function prepare(table) {
  if (table.dataset.ready) return;
  table.dataset.ready = "yes";
  const body = table.tBodies[0],
    heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = Object.assign(document.createElement("button"), {
      type: "button",
      className: "by",
      textContent: head.textContent,
      title: "Sort",
    });
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sorted = [...body.rows]
        .map((row) => [value(row, column), row])
        .sort(([a], [b]) => compare(a, b) * (down ? -1 : 1));
      body.append(...sorted.map(([, row]) => row));
    });
  });
  if (body.rows.length < FILTER_FROM) return;
  const filter = Object.assign(document.createElement("input"), {
    type: "search",
    className: "table-filter",
    placeholder: "Filter rows",
    ariaLabel: "Filter the rows of this table",
  });
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of body.rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  });
  (table.closest(".scroll") ?? table).before(filter);
}
export const prepareAll = (root = document) => {
  for (const table of root.querySelectorAll("table.sortable")) prepare(table);
};
document.addEventListener("htmx:afterSwap", () => prepareAll());
prepareAll();
