// Runs before the first paint: the chosen theme, else the system's.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("shoal-theme"); } catch { /* no storage, no memory */ }
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const set = () => { document.documentElement.dataset.theme = chosen || (dark.matches ? "dark" : "light"); };
  dark.addEventListener("change", set);
  set();
  window.shoalTheme = () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("shoal-theme", chosen); } catch { /* as above */ }
    set();
    dispatchEvent(new Event("shoal:theme"));
  };
})();
