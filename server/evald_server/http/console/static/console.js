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

localTimes(document);
copyButtons();
listen();
