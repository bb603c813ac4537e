// The elements that live pages add. The server cuts and escapes; here its data become elements.
export function make(name, className, ...children) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

export function verdict(mark, word) {
  const sign = make("span", "sign", mark.sign);
  sign.ariaHidden = "true";
  return make("span", `verdict ${mark.style}`, sign, ` ${word}`);
}

export function cutText(text, className, name = "div") {
  const shown = make(name, className, text.shown);
  shown.dir = "auto";
  if (text.cut) shown.append(make("span", "cut", ` … ${text.cut.toLocaleString()} more characters`));
  return shown;
}

// Whether a result of a metric is a value, not an error. A value that is unavailable is "n/a".
export const measured = (data) => data.mark.style === "pass";

// Adds a result to the table of its kind in an element, which is made for the first one.
export function addResult(place, data) {
  const rows = place.querySelector(data.metric ? "tbody.metrics" : "tbody.assertions") ?? addTable(place, data.metric);
  const title = make("th", "", data.title || "unnamed");
  title.scope = "row";
  title.dir = "auto";
  const flags = data.flags.flatMap((flag) => [" ", make("span", "flag", flag)]);
  const cells = data.metric
    ? [make("td", "n", measured(data) ? data.value : verdict(data.mark, data.mark.short), ...flags)]
    : [make("td", "fixed", verdict(data.mark, data.mark.short), ...flags), make("td", "n", data.score || "–")];
  rows.append(make("tr", "", title, ...cells, make("td", "reason", cutText(data.reason, "", "span"))));
}

function addTable(place, isMetric) {
  const head = make("tr", "");
  for (const text of isMetric ? ["Metric", "Value", "Reason"] : ["Evaluator", "Result", "Score", "Reason"]) {
    const cell = make("th", text === "Score" || text === "Value" ? "n" : "", text);
    cell.scope = "col";
    head.append(cell);
  }
  const rows = make("tbody", isMetric ? "metrics" : "assertions");
  const table = make("table", "stack", make("caption", "", isMetric ? "Metrics" : "Assertions"), make("thead", "", head), rows);
  place.append(make("div", "wide", table));
  return rows;
}
