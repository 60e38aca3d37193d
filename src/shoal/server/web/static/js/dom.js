// Elements of a page: finding them, making them, icons, and colours of the theme.

export const $ = (id) => document.getElementById(id);
export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Makes an element: `text`, `className`, `data` and properties, then its children. */
export function make(tag, { text, className, data = {}, ...rest } = {}, ...children) {
  const made = Object.assign(document.createElement(tag), rest);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  Object.assign(made.dataset, data);
  made.append(...children.filter(Boolean));
  return made;
}
export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"),
    use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute(
    "href",
    `${document.querySelector("use")?.getAttribute("href")?.replace(/#.*/, "") ?? "/static/img/icons.svg"}#${name}`,
  );
  svg.append(use);
  return svg;
}
