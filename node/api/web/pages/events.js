// Event log, each event with the signed messages that prove it.

import { get } from "../api.js";
import { h, redrawn } from "../dom.js";
import { clean, count, digest, moment } from "../format.js";
import { KINDS, choice, heading, kind, mono, peerLink, rolloutLink } from "../parts.js";

export default {
  seconds: 3,
  begin(place, { query, follow, signal }) {
    const asked = query.kind ?? "";
    const controls = h("div", { className: "controls" }), list = h("div"), number = h("p", { className: "sub" });
    place.append(heading("Events", number), controls, list);
    const drawControls = redrawn(controls, ({ kinds }) => choice("Kind",
      [["", "all"], ...Object.entries(kinds).map(([name, known]) => [name, KINDS[name] ?? clean(name, 30), known])], asked, (value) => follow({ kind: value })));
    const draw = redrawn(list, ({ rows }) => rows.length ? h("ol", { className: "events" }, rows.map(row)) : h("p", { className: "empty" }, "No events."));
    return async () => {
      const page = await get("events", { kind: asked, limit: 200 }, signal);
      const known = Object.values(page.kinds).reduce((one, other) => one + other, 0);
      number.textContent = `${count(known)} known to this node`;
      drawControls({ kinds: page.kinds });
      draw({ rows: page.rows });
    };
  },
};

const row = (one) => h("li", {}, h("time", { datetime: new Date(1000 * one.at).toISOString() }, moment(one.at)), kind(one.kind),
  h("div", {}, h("p", {}, peerLink(one.subject, "", one.name), " ", clean(one.text, 300)),
    h("p", { className: "note" }, one.rollout ? ["rollout ", rolloutLink(one.rollout), one.evidence.length ? "; " : ""] : "",
      one.evidence.length ? ["evidence ", one.evidence.map((hex, index) => [index ? ", " : "", mono(digest(hex), hex)])] : "")));
