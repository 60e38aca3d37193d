// Jobs selected in the list, to be compared; they stay selected when the list reloads.
const form = document.getElementById("compare"),
  button = form.querySelector("button"),
  chosen = new Map();

function show() {
  button.disabled = chosen.size < 2;
  button.querySelector("span").textContent = chosen.size ? `Compare ${chosen.size}` : "Compare";
}

document.addEventListener("change", ({ target }) => {
  if (target.name !== "job" || target.type !== "checkbox") return;
  if (target.checked) chosen.set(target.value, true);
  else chosen.delete(target.value);
  show();
});
document.addEventListener("htmx:afterSwap", () => {
  for (const box of document.querySelectorAll("input[name=job]")) box.checked = chosen.has(box.value);
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  location.assign(`${form.getAttribute("action")}?jobs=${[...chosen.keys()].join(",")}`);
});
// Boxes that the browser kept checked from before.
for (const box of document.querySelectorAll("input[name=job]:checked")) chosen.set(box.value, true);
show();
