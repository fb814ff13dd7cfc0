// Versions: encodings, downloads, and the distribution forest of one version.

import { get } from "../api.js";
import { forestDrawing } from "../forest.js";
import { h, redrawn, s } from "../dom.js";
import { bytes, clean, clock, count, digest, duration, many, percent, reward } from "../format.js";
import { bar, heading, mono, peerLink, section, table } from "../parts.js";

const CELLS = 96;
const VERSIONS_SHOWN = 12;

export default {
  seconds: 2,
  begin(place, { query, follow, signal }) {
    const number = h("p", { className: "sub" }), coming = h("div"), forest = h("div"), versions = h("div"), here = h("div");
    place.append(heading("Weights", number), coming, forest, versions, here);
    const drawComing = redrawn(coming, arriving), drawVersions = redrawn(versions, ({ found, all: every }) => versionList(found, every, () => { all = true; drawVersions({ found, all }); })), drawHere = redrawn(here, arrived);
    const drawForest = redrawn(forest, ({ page, newest, me }) => forestSection(page, newest, me, (version) => follow({ version })));
    let me = "", all = false;
    return async () => {
      me = me || (await get("overview", {}, signal)).peer_id;
      const page = await get("weights", { version: query.version ?? "" }, signal);
      const newest = page.versions[0]?.version ?? -1;
      number.textContent = newest < 0 ? "No version is known yet." : `newest version ${newest}, ${many(page.versions.filter((one) => one.here).length, "version")} on this node`;
      drawComing({ arrivals: page.arrivals.filter((one) => one.arrived_at === null), receivers: page.receivers });
      drawVersions({ found: page.versions, all });
      drawHere(page.arrivals.filter((one) => one.arrived_at !== null));
      drawForest({ page: { forest: page.forest, note: page.note }, newest, me });
    };
  },
};

function arriving({ arrivals, receivers }) {
  return section("Downloads", null,
    arrivals.length ? arrivals.map((one) => h("article", { className: "arrival" },
      h("div", { className: "over" }, h("h3", {}, clean(one.name, 60), h("span", { className: "tag" }, clean(one.form, 20))),
        h("p", { className: "note" }, `${bytes(one.bytes_here)} of ${one.total_bytes ? bytes(one.total_bytes) : "?"}, ${bytes(one.bytes_per_second)}/s, ${one.seconds_to_go === null ? "stalled" : `${duration(one.seconds_to_go)} left`}`)),
      bar(one.total_bytes ? one.bytes_here / one.total_bytes : 0, "accent", percent(one.total_bytes ? one.bytes_here / one.total_bytes : 0)),
      h("div", { className: "stripes" }, one.stripes.map((stripe) => h("div", {}, h("span", { className: "note" }, `stripe ${stripe.number}, parent `, stripe.parent ? peerLink(stripe.parent) : "none yet"), pieces(stripe)))),
      one.sources.length ? h("p", { className: "note" }, "Sources: ", one.sources.slice(0, 6).map((from, index) => [index ? ", " : "", rate(from)])) : ""))
      : h("p", { className: "empty" }, "No downloads in progress."),
    receivers.length ? h("p", { className: "note" }, "Sending to ", receivers.slice(0, 8).map((to, index) => [index ? ", " : "", rate(to)])) : "");
}

const rate = (party) => h("span", { className: "whole" }, peerLink(party.name), ` ${bytes(party.bytes_per_second)}/s`);

// Piece map of a stripe, with up to CELLS cells, each shaded by its share of present pieces.
function pieces(stripe) {
  const bits = [...stripe.map].flatMap((digit) => [3, 2, 1, 0].map((bit) => (Number.parseInt(digit, 16) >> bit) & 1)).slice(0, stripe.pieces);
  const cells = Math.min(CELLS, bits.length);
  const share = (cell) => {
    const first = Math.floor(cell * bits.length / cells), last = Math.max(first + 1, Math.floor((cell + 1) * bits.length / cells));
    return bits.slice(first, last).reduce((one, other) => one + other, 0) / (last - first);
  };
  return s("svg", { className: "pieces", viewBox: `0 0 ${cells} 1`, preserveAspectRatio: "none", role: "img", "aria-label": `${stripe.pieces_here} of ${stripe.pieces} pieces` },
    Array.from({ length: cells }, (_, cell) => s("rect", { x: cell + 0.06, y: 0, width: 0.88, height: 1, className: share(cell) ? "here" : "missing", "fill-opacity": share(cell) ? 0.25 + 0.75 * share(cell) : 1 })));
}

function forestSection({ forest, note }, newest, me, turn) {
  if (!forest) return section("Forest", null, h("p", { className: "empty" }, note || "No version is known yet."));
  const button = (text, version, possible) => h("button", { type: "button", "data-key": text, disabled: !possible, onclick: () => turn(version === newest ? "" : version) }, text);
  return section(`Forest of version ${forest.version}`,
    `${many(forest.members.length - 1, "member")} below the publisher, ${many(forest.parents.length, "stripe")}, one tree per stripe`,
    h("div", { className: "controls" }, h("div", { className: "choice", role: "group", "aria-label": "Version" }, button("Older", forest.version - 1, forest.version > 0), button("Newer", forest.version + 1, forest.version < newest))),
    forestDrawing(forest, me));
}

// The trainers that made a version together with its publisher.
const partners = ({ publisher, trainers }) => trainers.filter((one) => one !== publisher)
  .map((one, at) => h("span", { className: "note whole" }, at ? ", " : " with ", peerLink(one)));

function versionList(versions, all, more) {
  const most = Math.max(1, ...versions.map((one) => Math.max(...one.forms.map((form) => form.total_bytes))));
  return section("Versions", "downloads use the smallest usable encoding", table("Versions", [
    ["Version", (one) => h("a", { href: `#/weights?version=${one.version}` }, `v${one.version}`), { className: "number" }],
    ["Published", (one) => clock(one.created_at)],
    ["Reward", (one) => (one.version ? reward(one.reward_mean) : "–"), { className: "number" }],
    ["Trained on", (one) => (one.version ? h("a", { href: `#/rollouts?version=${one.version - 1}` }, many(one.commits, "rollout")) : "–")],
    ["Encodings", (one) => h("ul", { className: "forms" }, one.forms.map((form) => h("li", {}, h("span", {}, clean(form.form, 12), form.base_version >= 0 ? ` from v${form.base_version}` : ""), bar(form.total_bytes / most, "ink"), h("span", { className: "number" }, bytes(form.total_bytes)))))],
    ["Publisher", (one) => [peerLink(one.publisher), h("span", { className: "note whole" }, ` term ${one.term}`), ...partners(one)]],
    ["Policy", (one) => mono(digest(one.policy), one.policy)],
    ["On this node", (one) => (one.here ? "yes" : "no")],
  ], all ? versions : versions.slice(0, VERSIONS_SHOWN), "No version is known yet."),
  !all && versions.length > VERSIONS_SHOWN ? h("div", { className: "turn" }, h("button", { type: "button", "data-key": "versions", onclick: more }, `Show ${versions.length - VERSIONS_SHOWN} older`)) : "");
}

function arrived(arrivals) {
  return section("Complete downloads", "the latest ones and their sources", table("Complete downloads", [
    ["Version", (one) => `v${one.version}`, { className: "number" }],
    ["At", (one) => clock(one.arrived_at)],
    ["Encoding", (one) => clean(one.form, 12)],
    ["Took", (one) => duration(one.seconds), { className: "number" }],
    ["Bytes", (one) => bytes(one.total_bytes), { className: "number" }],
    ["Saved", (one) => (one.saved_bytes > 0 ? bytes(one.saved_bytes) : "–"), { className: "number" }],
    ["From the publisher", (one) => percent(one.total_bytes ? Math.min(1, one.root_bytes / one.total_bytes) : 0), { className: "number" }],
    ["Sources", (one) => [count(one.sources.length), one.http_bytes ? h("span", { className: "note" }, " some by HTTP") : ""]],
  ], arrivals, "No version was downloaded: this node trained them itself, or has just started."));
}
