// Frame of the dashboard: page routing, updates and connection state.

import { Missing, Stream, choose, get, node } from "./api.js";
import { h, show } from "./dom.js";
import { clean } from "./format.js";
import { state } from "./parts.js";
import contributors from "./pages/contributors.js";
import events from "./pages/events.js";
import machine from "./pages/machine.js";
import overview from "./pages/overview.js";
import peers from "./pages/peers.js";
import rollout from "./pages/rollout.js";
import rollouts from "./pages/rollouts.js";
import run from "./pages/run.js";
import training from "./pages/training.js";
import weights from "./pages/weights.js";

const PAGES = [
  ["", "Overview", overview],
  ["training", "Training", training],
  ["rollouts", "Rollouts", rollouts],
  ["contributors", "Contributors", contributors],
  ["peers", "Peers", peers],
  ["weights", "Weights", weights],
  ["events", "Events", events],
  ["node", "This node", machine],
  ["run", "Run", run],
];

const main = document.getElementById("main");
const line = document.getElementById("line");
let meta = null;
let shown = null;
let stream = null;
let boot = null;

// Page name, remaining path and parameters of the current address.
function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  return { name, rest: rest.map(decoded), query: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // the page reports it as unknown
  }
}

export const link = (name, query = {}) => {
  const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "")).toString();
  return `#/${name}${text ? `?${text}` : ""}`;
};

function navigate() {
  shown?.stop.abort();
  const asked = route();
  const [name, title, page] = asked.name === "rollouts" && asked.rest.length
    ? ["rollouts", "Rollout", rollout] : PAGES.find(([known]) => known === asked.name) ?? PAGES[0];
  for (const one of document.querySelectorAll("#nav a")) {
    if (one.dataset.page === name) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
  document.title = `${title} · ${clean(meta?.title || "prime-node", 60)}`;
  const place = h("div", { className: `page page-${name || "overview"}` });
  show(main, place);
  const stop = new AbortController();
  shown = { stop, at: 0, busy: false, seconds: page.seconds ?? 3, update: null };
  const me = shown;
  const follow = (query) => { location.hash = link([asked.name, ...asked.rest].join("/"), query); };
  const update = page.begin(place, { ...asked, follow, meta, signal: stop.signal });
  me.update = async () => {
    if (me.busy || stop.signal.aborted) return;
    me.busy = true;
    try {
      await update();
      place.querySelector(":scope > .trouble")?.remove();
    } catch (error) {
      if (!stop.signal.aborted) tell(place, error);
    } finally {
      me.busy = false;
      me.at = performance.now();
    }
  };
  me.update();
  showCurrent(document.getElementById("nav"));
}

// Centres the current link in a list that is wider than the window. scrollIntoView would also move
// the starting point of the Tab key.
function showCurrent(nav) {
  const link = nav.querySelector("a[aria-current]")?.getBoundingClientRect();
  if (!link) return;
  const room = nav.getBoundingClientRect();
  nav.scrollLeft += link.left + link.width / 2 - room.left - room.width / 2;
}

function tell(place, error) {
  place.querySelector(":scope > .trouble")?.remove();
  const missing = error instanceof Missing;
  const words = missing ? error.message : `The node does not respond: ${error.message}. The data below may be outdated.`;
  place.prepend(h("p", { className: "trouble", role: "alert" }, clean(words, 300)));
}

function drawLine(look) {
  if (meta?.mode === "recorded") {
    show(line, h("span", { className: "dot quiet" }), "recorded, not live");
  } else if (look === null) {
    show(line, h("span", { className: "dot bad" }), "disconnected; retrying");
  } else {
    show(line, state(look.state, true));
  }
}

function heard(kind, value) {
  if (kind === "lost") drawLine(null);
  if (kind === "hello") {
    if (boot !== null && boot !== value.boot) { begin(); return; }
    boot = value.boot;
  }
  if (kind === "look") {
    drawLine(value);
    const due = shown && performance.now() - shown.at >= 1000 * shown.seconds;
    if (due && document.visibilityState === "visible" && meta?.mode === "live") shown.update?.();
  }
  if (kind === "happened" && shown) shown.at = 0;
}

function drawFrame() {
  document.getElementById("run").textContent = clean(meta.title || "prime-node", 40);
  show(document.getElementById("nav"), PAGES.map(([name, title]) =>
    h("a", { href: link(name), "data-page": name }, name === "node" && meta.mode === "recorded" ? "The node" : title)));
  const which = document.getElementById("which");
  which.hidden = meta.nodes.length === 0;
  if (meta.nodes.length) {
    const options = meta.nodes.map((one) => h("option", { value: one.name },
      `${clean(one.name, 40)}${one.note ? `, ${clean(one.note, 40)}` : ""}${one.condition === "running" ? "" : ` (${clean(one.condition, 20)})`}`));
    show(which, h("label", { for: "asked" }, "View of"), h("select", {
      id: "asked",
      onchange: (event) => { choose(event.target.value); begin(); },
    }, h("option", { value: "" }, "any node"), options));
    which.querySelector("select").value = node();
  }
}

async function begin() {
  try {
    meta = await get("meta");
  } catch {
    drawLine(null);
    if (node()) choose("");
    setTimeout(begin, 2000);
    return;
  }
  drawFrame();
  navigate();
  stream?.close();
  boot = null;
  stream = new Stream(heard);
}

window.addEventListener("hashchange", () => { if (meta) { navigate(); main.focus({ preventScroll: true }); scrollTo(0, 0); } });
window.addEventListener("pagehide", () => stream?.close());
window.addEventListener("pageshow", (event) => { if (event.persisted) begin(); });
document.addEventListener("visibilitychange", () => { if (document.visibilityState === "visible") shown?.update?.(); });
begin();
