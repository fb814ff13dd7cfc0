// Components shared by several pages.

import { h } from "./dom.js";
import { clean, compact, count, digest, many, peer, shareOf } from "./format.js";

const NAME_CHARACTERS_MAX = 32;

const TONES = {
  ready: "good", certified: "good", accepted: "good", joining: "warn", syncing: "warn", paused: "bad",
  draining: "quiet", committed: "quiet", rejected: "bad", expired: "warn", slashed: "bad",
  genesis: "accent", trusted: "good", untrusted: "quiet",
};

export const state = (name, spelled = false) =>
  h("span", { className: `state ${TONES[name] ?? "quiet"}` }, h("span", { className: "dot", "aria-hidden": "true" }), spelled ? clean(name, 40) : clean(name, 40));

// A name that a peer chose. It is not verified, so the key always stands beside it.
export const named = (name) => (name ? h("bdi", { className: "name", title: clean(name, NAME_CHARACTERS_MAX) }, clean(name, NAME_CHARACTERS_MAX)) : "");

export const peerLink = (id, me = "", name = "") => !id ? "–"
  : h("span", { className: "peer" }, named(name),
    h("a", { className: "mono", href: `#/peers?text=${encodeURIComponent(id)}`, title: clean(id, 80) }, peer(id)),
    id === me ? h("span", { className: "you" }, "this node") : "");

// What a node contributed, as prime-node status prints it.
export function contribution(own) {
  const parts = [`${compact(own.certified)} certified`];
  if (own.tokens) parts.push(`${compact(own.tokens)} tokens`);
  if (own.checks) parts.push(`${compact(own.checks)} checked`);
  if (own.steps) parts.push(`${compact(own.steps)} version${own.steps === 1 ? "" : "s"} published`);
  if (own.rank) parts.push(`${shareOf(own.credit_share)} of the run`, `rank ${count(own.rank)} of ${count(own.contributors)}`);
  const skipped = own.skipped ? `, ${many(own.skipped, "slot")} skipped` : "";
  return `${parts.join(", ")}; ${count(own.waiting)} waiting, ${count(own.rejected)} rejected${skipped}`;
}

export const rolloutLink = (commit) =>
  h("a", { className: "mono", href: `#/rollouts/${encodeURIComponent(commit)}`, title: commit }, digest(commit));

export const mono = (text, title = "") => h("span", { className: "mono", title: title || null }, text);

export const section = (title, note, ...children) => h("section", {},
  h("div", { className: "over" }, h("h2", {}, title), note ? h("p", { className: "note" }, note) : ""), children);

// A warning about a problem that does not stop the node.
export const warning = (text) => (text ? h("p", { className: "warning", role: "status" }, clean(text, 400)) : "");

export const heading = (title, ...children) => h("div", { className: "head" }, h("h1", {}, title), children);

// A table: columns are [title, cell, options]; on a phone each row is a card. One row may be marked.
export function table(label, columns, rows, empty = "No data yet.", isMarked = () => false) {
  if (!rows.length) return h("p", { className: "empty" }, empty);
  return h("div", { className: "scroll", role: "region", "aria-label": label, tabindex: "0" },
    h("table", {},
      h("thead", {}, h("tr", {}, columns.map(([title, , options]) =>
        h("th", { scope: "col", className: options?.className }, title)))),
      h("tbody", {}, rows.map((row) => h("tr", { className: isMarked(row) ? "marked" : null }, columns.map(([title, cell, options]) =>
        h("td", { className: options?.className, "data-title": title }, cell(row))))))));
}

// A bar, full at share 1. A script sets the width, because the page allows no inline style.
export function bar(share, tone = "", label = "") {
  const inner = h("span", {});
  inner.hidden = !(share > 0);
  inner.style.inlineSize = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return h("span", { className: `bar ${tone}`, role: label ? "img" : null, "aria-label": label || null }, inner);
}

export const facts = (pairs) => h("dl", { className: "facts" }, pairs.filter(Boolean).map(([name, value]) =>
  h("div", {}, h("dt", {}, name), h("dd", {}, value))));

export function select(label, options, value, change) {
  const control = h("select", { onchange: (event) => change(event.target.value), "data-key": label },
    options.map(([key, text]) => h("option", { value: key }, text)));
  control.value = value;
  return h("label", { className: "field" }, h("span", {}, label), control);
}

export function search(label, value, change) {
  let waiting;
  const control = h("input", {
    type: "search", value, "data-key": label, autocomplete: "off", spellcheck: "false", maxlength: "64",
    oninput: (event) => { clearTimeout(waiting); waiting = setTimeout(() => change(event.target.value.trim()), 350); },
  });
  return h("label", { className: "field" }, h("span", {}, label), control);
}

// A choice of one option, as a row of buttons.
export const choice = (label, options, value, change) =>
  h("div", { className: "choice", role: "group", "aria-label": label }, options.map(([key, text, number]) =>
    h("button", { type: "button", "aria-pressed": String(key === value), "data-key": `${label}/${key}`, onclick: () => change(key) },
      text, number === undefined ? "" : h("span", { className: "number" }, count(number)))));

export function copied(text) {
  const button = h("button", { type: "button", className: "copy", onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Copy it by hand";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  } }, "Copy");
  return h("div", { className: "command" }, h("code", {}, text), button);
}

export const KINDS = {
  slashed: "Slashed", fork: "Fork", excluded: "Validator excluded", leader: "Leader", escalated: "Escalated",
  "rejected-trained": "Trained on rejected", paused: "Paused", state: "State",
};

export const KIND_TONES = {
  slashed: "bad", fork: "bad", excluded: "bad", "rejected-trained": "warn", escalated: "warn", paused: "warn",
  leader: "accent", state: "quiet",
};

export const kind = (name) =>
  h("span", { className: `state ${KIND_TONES[name] ?? "quiet"}` }, h("span", { className: "dot", "aria-hidden": "true" }), KINDS[name] ?? clean(name, 30));
