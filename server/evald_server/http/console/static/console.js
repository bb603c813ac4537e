// What every page has: local times, copy buttons, keys.
import { listen } from "./keys.js";

const format = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

// Times come as UTC, and read in the reader's zone.
export function localTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    time.title = time.textContent;
    time.textContent = format.format(moment);
  }
}

function copyButtons() {
  for (const button of document.querySelectorAll("button[data-copy]")) {
    if (!navigator.clipboard) continue;
    button.hidden = false;
    const name = button.textContent;
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copy);
      await navigator.clipboard.writeText(source ? source.textContent : location.href);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = name; }, 1500);
    });
  }
}

// Enter in a field with a button of its own presses that one, and not the first of the form.
function ownButtons() {
  for (const field of document.querySelectorAll("input[data-button]")) {
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.isComposing) return;
      event.preventDefault();
      document.getElementById(field.dataset.button).click();
    });
  }
}

// A form that comes back from the history is to do something again: it is not the one that was sent.
addEventListener("pageshow", (event) => {
  if (!event.persisted) return;
  for (const key of document.querySelectorAll("input[name=form]")) key.value = "";
});

function start() {
  localTimes(document);
  copyButtons();
  ownButtons();
  listen();
}

// The page does not wait for this script (async), which may therefore come before the page is read.
if (document.readyState === "loading") addEventListener("DOMContentLoaded", start);
else start();
