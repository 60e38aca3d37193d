// The new-sweep form, in addition to the new-job form: texts beside the fields, and arguments that become parameters.
const draft = document.getElementById("draft");
const rows = () => [...document.getElementById("param-rows").children];

// The preview contains the texts; here they are put beside the fields, those of rows by index.
function tell() {
  const said = new Map([...document.querySelectorAll("#told li")].map((item) => [item.dataset.field, item]));
  rows().forEach((row, at) => {
    row.querySelector("[data-told]").dataset.told = `param.${at}`;
  });
  for (const place of draft.querySelectorAll("[data-told]")) {
    const item = said.get(place.dataset.told),
      isBad = item?.classList.contains("bad") ?? false;
    place.value = item?.textContent ?? "";
    place.classList.toggle("bad", isBad);
    for (const input of place.parentElement.querySelectorAll("input")) input.setAttribute("aria-invalid", isBad);
  }
}
document.addEventListener("htmx:afterSwap", ({ detail: { target } }) => {
  if (target.id === "preview") tell();
});

draft.addEventListener("click", ({ target }) => {
  const argument = target.closest("[data-sweep-row]")?.closest(".fill-row");
  if (!argument) return;
  const [name, value] = argument.querySelectorAll("input");
  const blank = rows().find((row) => ![...row.querySelectorAll("input")].some((input) => input.value));
  if (!blank)
    document.getElementById("param-rows").append(document.getElementById("param-row").content.cloneNode(true));
  const [toName, toValues] = (blank ?? rows().at(-1)).querySelectorAll("input");
  toName.value = name.value.replace(/^-+/, "").replace(/=$/, "");
  toValues.value = value.value;
  argument.querySelector("[data-drop-row]").click();
  toValues.focus();
});
