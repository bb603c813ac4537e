// A run that goes on: messages and results as they come.
import { addResult, cutText, make, measured, verdict } from "./elements.js";

const root = document.getElementById("live");
const log = document.getElementById("said");
const talk = document.getElementById("talk");
let turn = Number(root.dataset.turn);
let heard = Number(new URL(root.dataset.events, location.href).searchParams.get("after"));
let source = null;
let over = false; // the run is gone, or not for this reader any more
let news = [];
let told = "";
let calm = 0; // a timer: the stream is open, and nothing has failed since

const hidden = (text) => make("span", "hidden", text);

// Read by screen readers once a second at most.
function tell(text) {
  news.push(text);
  if (news.length > 1) return;
  setTimeout(() => { log.textContent = news.join(". "); news = []; }, 1000);
}

// What keeps the page from going on, above it; "" for nothing. It is told once, however often it comes.
function fault(text) {
  clearTimeout(calm);
  document.getElementById("live-fault")?.remove();
  if (text) {
    const note = cutText({ shown: text }, "note error", "p");
    note.id = "live-fault";
    root.before(note);
    if (text !== told) tell(text);
  }
  told = text;
}

function openPart() {
  let part = talk.querySelector(".part.open");
  if (!part) {
    document.getElementById("silence")?.remove();
    part = make("div", "part open");
    talk.append(part);
  }
  return part;
}

const handlers = {
  message(data) {
    if (data.index < Number(root.dataset.messages)) return; // shown already
    root.dataset.messages = data.index + 1;
    const kind = ["user", "assistant", "tool", "system"].includes(data.role) ? data.role : "other";
    const role = make("div", "role", data.role || "no role");
    if (data.name) role.append(" ", make("span", "quiet", data.name));
    const said = make("div", "said");
    if (data.text.shown) said.append(cutText(data.text, "text"));
    for (const call of data.calls) {
      said.append(make("div", "call", make("span", "quiet", "calls"), " ", make("code", "", call.name), " ", cutText(call.arguments, "arguments", "code")));
    }
    openPart().append(make("div", `message ${kind}`, role, said));
    tell(`${data.role}: ${data.text.shown.slice(0, 200)}`);
  },
  result(data) {
    const tables = document.getElementById("tables");
    if (data.turn !== turn) {
      turn = data.turn;
      tables.replaceChildren();
      document.getElementById("turn-title").textContent = `Turn ${turn}`;
    }
    tables.querySelector(".empty")?.remove();
    addResult(tables, data);
    tell(`Turn ${turn}: ${data.title}: ${data.metric && measured(data) ? data.value : data.mark.short}`);
  },
  turn(data) {
    const address = `${root.dataset.path}?turn=${data.number}#turn-${data.number}`;
    const link = make("a", data.mark.style, `${data.number} `, make("span", "sign", data.mark.sign), hidden(data.mark.word));
    link.href = address;
    link.dataset.item = "";
    if (["fail", "error"].includes(data.mark.style)) link.dataset.red = "";
    for (const one of document.querySelectorAll("#turns [aria-current]")) one.removeAttribute("aria-current");
    link.setAttribute("aria-current", "true");
    document.getElementById("turns").append(make("li", "", link));
    const part = openPart();
    part.classList.remove("open");
    part.id = `turn-${data.number}`;
    const name = make("a", "", `Turn ${data.number}`);
    name.href = address;
    part.prepend(make("p", "turn-head", name, " ", verdict(data.mark, data.mark.word), " ", make("span", "quiet", data.facts)));
    tell(`Turn ${data.number}: ${data.mark.word}`);
  },
  status(data) {
    if (data.attempt > Number(root.dataset.attempt)) return location.reload();
    const status = document.getElementById("status");
    if (status) status.textContent = data.word;
  },
  over() {
    stop();
    location.reload(); // the whole page, with what judged and why
  },
  failed(data) {
    fault(`${data.message}. ${data.final ? "This page shows the last known state of the run." : "Reconnecting."}`);
    if (!data.final) return;
    over = true;
    stop();
  },
};

function start() {
  if (source || over || document.hidden) return;
  const address = new URL(root.dataset.events, location.href);
  address.searchParams.set("after", heard);
  source = new EventSource(address);
  source.addEventListener("open", () => { calm = setTimeout(fault, 1000, ""); });
  source.addEventListener("error", () => {
    clearTimeout(calm);
    // A browser tries again by itself, unless the answer is no stream.
    if (source.readyState === EventSource.CLOSED) handlers.failed({ message: "The server refused the connection", final: true });
    else if (!told) fault("Connection lost. Reconnecting.");
  });
  for (const [name, handle] of Object.entries(handlers)) {
    source.addEventListener(name, (event) => {
      const sequence = Number(event.lastEventId);
      if (name !== "failed" && name !== "over") {
        if (sequence <= heard) return; // came before the stream was cut
        heard = sequence;
        fault("");
      }
      handle(JSON.parse(event.data));
    });
  }
}

function stop() {
  source?.close();
  source = null;
}

// A browser has six connections to a host: tabs that nobody sees keep none.
document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
addEventListener("pagehide", stop);
start();
