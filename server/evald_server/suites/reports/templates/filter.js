"use strict";
// Filters the cases of the page. Without script the form stays hidden.
for (const form of document.querySelectorAll("form.filter")) {
  const items = [...document.getElementById(form.dataset.cases).children];
  const texts = items.map((item) => item.querySelector("summary").textContent.toLowerCase() + " " + item.querySelector(".meta").textContent.toLowerCase());
  const [input, select, output] = ["input", "select", "output"].map((tag) => form.querySelector(tag));
  const update = () => {
    const wanted = input.value.trim().toLowerCase();
    let shown = 0;
    items.forEach((item, index) => {
      item.hidden = !(texts[index].includes(wanted) && (!select.value || item.dataset.verdict === select.value));
      shown += item.hidden ? 0 : 1;
    });
    output.textContent = wanted || select.value ? `${shown} of ${items.length}` : "";
  };
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
}
// What is folded is printed, too.
addEventListener("beforeprint", () => document.querySelectorAll("details.case.fail, details.case.error").forEach((one) => { one.open = true; }));
