// Keys: ? help, g o|r|s|t go, / filter, j k next and previous, f next failure, Esc back. Enter is the browser's own.
const STORED = "evald.keys";
const WAIT_MS = 1500; // for the second key after g
let going = 0;

const isOn = () => localStorage.getItem(STORED) !== "off";

export function listen() {
  const dialog = document.getElementById("keys");
  const button = document.getElementById("keys-button");
  const box = document.getElementById("keys-on");
  button.hidden = false;
  button.addEventListener("click", () => dialog.showModal());
  document.getElementById("keys-close").addEventListener("click", () => dialog.close());
  box.checked = isOn();
  box.addEventListener("change", () => localStorage.setItem(STORED, box.checked ? "on" : "off"));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || dialog.open) return;
    if (isTyped(event.target) || !isOn()) return;
    if (act(event.key, dialog)) event.preventDefault();
  });
}

// Keys in fields are text.
function isTyped(target) {
  return target instanceof Element && target.closest("input:not([type=checkbox], [type=radio]), select, textarea, [contenteditable]") !== null;
}

function act(key, dialog) {
  if (going && Date.now() - going < WAIT_MS) {
    going = 0;
    const link = [...document.querySelectorAll("nav a[data-key]")].find((one) => one.dataset.key === key);
    if (link) link.click();
    return Boolean(link);
  }
  going = 0;
  switch (key) {
    case "g": going = Date.now(); return true;
    case "?": dialog.showModal(); return true;
    case "/": return focus(document.querySelector("form[data-filter] input:not([type=hidden]), form[data-filter] select"));
    case "j": return move(1, "[data-item]");
    case "k": return move(-1, "[data-item]");
    case "f": return move(1, "[data-item][data-red]");
    case "Escape": return back();
    default: return false;
  }
}

function back() {
  const link = document.querySelector("a[rel=up]");
  if (link) link.click();
  return Boolean(link);
}

function focus(element) {
  if (element) element.focus();
  return Boolean(element);
}

// To the next or previous of these, from where the focus is, else from the one that is shown.
function move(step, selector) {
  const items = [...document.querySelectorAll("[data-item]")].filter((one) => one.checkVisibility());
  const from = document.activeElement?.closest("[data-item]") ?? document.querySelector("[data-item][aria-current]");
  let place = items.indexOf(from);
  if (place < 0 && step < 0) place = items.length;
  for (place += step; place >= 0 && place < items.length; place += step) {
    if (items[place].matches(selector)) return focus(items[place]);
  }
  return false;
}
