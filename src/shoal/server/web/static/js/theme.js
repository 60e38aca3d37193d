// Runs before the first paint: the chosen theme, else the system's.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("shoal-theme");
  } catch {
    /* no storage, no memory */
  }
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const set = () => {
    document.documentElement.dataset.theme = chosen || (dark.matches ? "dark" : "light");
  };
  dark.addEventListener("change", set);
  set();
  // "light", "dark", "system", or nothing to switch between light and dark.
  window.shoalTheme = (wanted) => {
    chosen =
      wanted === "system" ? null : (wanted ?? (document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
    try {
      if (chosen) localStorage.setItem("shoal-theme", chosen);
      else localStorage.removeItem("shoal-theme");
    } catch {
      /* as above */
    }
    set();
    dispatchEvent(new Event("shoal:theme"));
  };
  window.shoalTheme.chosen = () => chosen ?? "system";
})();
