// Results as each evaluator finishes: the form is posted, and lines of JSON come back.
import { addResult, cutText, make, verdict } from "./elements.js";

const form = document.getElementById("try");
const place = document.getElementById("results");
let asked = null;

const fault = (text) => cutText({ shown: text }, "note error", "p");

function show({ error, summary, result }) {
  if (error) place.append(fault(error));
  else if (summary) {
    place.prepend(make("p", "outcome", verdict(summary.mark, summary.mark.word), ` ${summary.score}`), cutText({ shown: summary.reason }, "", "p"));
    for (const warning of summary.warnings) place.append(cutText({ shown: warning }, "note", "p"));
  }
  else addResult(place, result);
}

async function evaluate(body) {
  asked?.abort();
  asked = new AbortController();
  place.replaceChildren(make("p", "quiet", "Evaluating …"));
  const response = await fetch(form.dataset.stream, { method: "POST", body, signal: asked.signal });
  if (!response.ok || !response.body) throw new Error(`the server answered ${response.status}`);
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
        show(found);
      }
    }
  } catch (problem) {
    if (problem.name === "AbortError") throw problem; // asked anew
  }
  if (!ended) place.append(fault("The response ended too early: some results are missing."));
}

form.addEventListener("submit", (event) => {
  if (event.submitter && event.submitter.value !== "evaluate") return;
  event.preventDefault();
  evaluate(new URLSearchParams(new FormData(form))).catch((problem) => {
    if (problem.name !== "AbortError") place.replaceChildren(fault(String(problem.message)));
  });
});
