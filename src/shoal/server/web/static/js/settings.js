// The choice of a theme; the moon in the side bar and this one agree.
const themes = document.getElementById("themes");
const show = () => { themes.querySelector(`[value="${window.shoalTheme.chosen()}"]`).checked = true; };
themes.addEventListener("change", ({ target }) => window.shoalTheme(target.value));
addEventListener("shoal:theme", show);
show();
