// Rented machines: what a lease would cost, before it is rented, and the time that each has left.
import { $ } from "./dom.js";
import { money } from "./units.js";

const form = $("new-lease")?.querySelector("form");

/** The price of what the form asks for: slots × hours × price of one. */
function showTotal() {
  const { device, accels, time_s } = form.elements,
    price = Number(device.selectedOptions[0]?.dataset.price ?? 0),
    hours = Number(time_s.value) / 3600,
    slots = Number(accels.value) || 0,
    total = form.querySelector("output");
  const length = `${slots} ${slots === 1 ? "slot" : "slots"} for ${time_s.selectedOptions[0].text}`;
  const { currency, priced } = total.dataset;
  const most = device.selectedOptions[0]?.dataset.most ? "at most " : "";
  const cost = price ? `${most}${money(price * slots * hours)} ${currency}` : "no price";
  total.textContent = priced ? `${length}: ${cost}` : length;
}
if (form) {
  form.addEventListener("input", showTotal);
  document.addEventListener("click", ({ target }) => {
    if (target.closest?.("[data-open='new-lease']")) showTotal();
  });
  showTotal();
}

/** 7:59:12, or 2 days 7:59:12. */
export function left(seconds) {
  const s = Math.max(0, Math.floor(seconds)),
    days = Math.floor(s / 86400),
    two = (n) => String(n).padStart(2, "0");
  const clock = `${Math.floor((s % 86400) / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
  return days ? `${days} day${days > 1 ? "s" : ""} ${clock}` : clock;
}
function countDown() {
  for (const place of document.querySelectorAll("[data-ends]"))
    place.textContent = `${left((Date.parse(place.dataset.ends) - Date.now()) / 1000)} left`;
}
countDown();
setInterval(() => {
  if (!document.hidden) countDown();
}, 1000);
