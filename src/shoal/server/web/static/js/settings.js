import { clock, isUtc, setZone } from "./times.js";

// The choice of a theme; kept in agreement with the button in the side bar.
const themes = document.getElementById("themes");
const show = () => {
  themes.querySelector(`[value="${window.shoalTheme.chosen()}"]`).checked = true;
};
themes.addEventListener("change", ({ target }) => window.shoalTheme(target.value));
addEventListener("shoal:theme", show);
show();

// Clock times: in the zone of this computer, or UTC.
const zones = document.getElementById("zones");
zones.querySelector(`[value="${isUtc() ? "utc" : "local"}"]`).checked = true;
zones.addEventListener("change", ({ target }) => setZone(target.value));
const now = () => {
  document.getElementById("zone-now").textContent = clock(Date.now());
};
addEventListener("shoal:zone", now);
now();
