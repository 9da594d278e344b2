// The page itself: words, theme, copying, and what happens when the window changes.
const byId = (id) => document.getElementById(id);
const facts = JSON.parse(byId("facts").textContent);
const words = facts.words;
const marks = facts.marks;
const root = document.documentElement;

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// Whoever uses a screen reader hears what changed.
function announce(text) { byId("status").textContent = text; }

// Everything that draws listens here: the theme changed, or the page's width did.
const redraws = [];
let waiting = false;
function redrawAll() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; readColours(); redraws.forEach((draw) => draw()); });
}

const colours = {};
function readColours() {
  const style = getComputedStyle(document.body);
  for (const name of ["page", "sheet", "sunk", "ink", "soft", "line", "accent", "forward", "backward", "guilty", "wait",
    "path", "shade", "points", "grid", "unknown"]) colours[name] = style.getPropertyValue(`--${name}`).trim();
  colours.font = style.fontFamily;
}
const isDark = () => root.hasAttribute("data-dark");

const systemDark = matchMedia("(prefers-color-scheme: dark)");
function remembered() {
  // A file opened from a disk may have no storage.
  try { return localStorage.getItem("megatrace-theme") || "auto"; } catch { return "auto"; }
}
function applyTheme(name, printing = false) {
  root.dataset.theme = name;
  root.toggleAttribute("data-dark", !printing && (name === "dark" || (name === "auto" && systemDark.matches)));
  redrawAll();
}
function startTheme() {
  const select = byId("theme");
  for (const name of ["auto", "light", "dark"]) select.append(make("option", { value: name }, words[name]));
  select.value = remembered();
  select.addEventListener("change", () => {
    try { localStorage.setItem("megatrace-theme", select.value); } catch { /* the choice lasts for this page */ }
    applyTheme(select.value);
  });
  systemDark.addEventListener("change", () => applyTheme(select.value));
  // Paper is white: charts are drawn again in light colours before it goes to the printer.
  addEventListener("beforeprint", () => { applyTheme(select.value, true); readColours(); redraws.forEach((d) => d()); });
  addEventListener("afterprint", () => applyTheme(select.value));
  byId("print").addEventListener("click", () => print());
  applyTheme(select.value);
}

function startCopying() {
  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", async () => {
      const text = button.dataset.copy;
      try { await navigator.clipboard.writeText(text); } catch {
        const area = make("textarea", { readonly: "" });
        area.value = text;
        document.body.append(area);
        area.select();
        document.execCommand("copy");
        area.remove();
      }
      const before = button.textContent;
      button.textContent = words.copied;
      announce(words.copied);
      setTimeout(() => { button.textContent = before; }, 1500);
    });
  }
}
