// Results as each evaluator finishes: the form is posted, and lines of JSON come back. The server cuts and escapes.
const form = document.getElementById("try");
const place = document.getElementById("results");
let asked = null;

function make(name, className, ...children) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

function verdict(mark) {
  const sign = make("span", "sign", mark.sign);
  sign.ariaHidden = "true";
  return make("span", `verdict ${mark.style}`, sign, ` ${mark.word}`);
}

function tableOf(caption, ...names) {
  const head = make("tr", "");
  for (const name of names) {
    const cell = make("th", "", name);
    cell.scope = "col";
    head.append(cell);
  }
  return make("table", "stack", make("caption", "", caption), make("thead", "", head), make("tbody", ""));
}

function text(name, className, said) {
  const element = make(name, className, said);
  element.dir = "auto";
  return element;
}

function show(line, tables) {
  if (line.error) {
    place.append(text("p", "note error", line.error));
  } else if (line.summary) {
    place.prepend(make("p", "outcome", verdict(line.summary.mark), ` ${line.summary.score}`), text("p", "", line.summary.reason));
  } else {
    const row = line.result;
    const title = text("th", "", row.title);
    title.scope = "row";
    const kind = row.metric ? "metrics" : "assertions";
    if (!tables[kind]) {
      tables[kind] = row.metric ? tableOf("Metrics", "Metric", "Value", "Reason") : tableOf("Assertions", "Evaluator", "Result", "Score", "Reason");
      place.append(tables[kind]);
    }
    const cells = row.metric
      ? [make("td", "n", row.value || "–")]
      : [make("td", "fixed", verdict(row.mark)), make("td", "n", row.score || "–")];
    tables[kind].tBodies[0].append(make("tr", "", title, ...cells, text("td", "reason", row.reason)));
  }
}

async function evaluate(body) {
  asked?.abort();
  asked = new AbortController();
  place.replaceChildren(make("p", "quiet", "Evaluating …"));
  const response = await fetch(form.dataset.stream, { method: "POST", body, signal: asked.signal });
  if (!response.ok || !response.body) throw new Error(`the server answered ${response.status}`);
  const tables = {};
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let ended = false;
  place.replaceChildren();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines.filter(Boolean)) {
        const found = JSON.parse(line);
        ended ||= Boolean(found.summary || found.error);
        show(found, tables);
      }
    }
  } catch (problem) {
    if (problem.name === "AbortError") throw problem; // asked anew
  }
  if (!ended) place.append(make("p", "note error", "The response ended too early: some results are missing."));
}

form.addEventListener("submit", (event) => {
  if (event.submitter && event.submitter.value !== "evaluate") return;
  event.preventDefault();
  evaluate(new URLSearchParams(new FormData(form))).catch((problem) => {
    if (problem.name !== "AbortError") place.replaceChildren(text("p", "note error", String(problem.message)));
  });
});
