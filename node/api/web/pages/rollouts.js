// Rollouts still held by the node, newest first.

import { get } from "../api.js";
import { h, redrawn } from "../dom.js";
import { clean, clock, count, many, reward } from "../format.js";
import { choice, heading, peerLink, rolloutLink, search, select, state, table } from "../parts.js";

const STATES = [["", "all"], ["certified", "certified"], ["rejected", "rejected"], ["committed", "pending"], ["expired", "expired"]];

export default {
  seconds: 3,
  begin(place, { query, follow, signal }) {
    const asked = { state: query.state ?? "", worker: query.worker ?? "", version: query.version ?? "", reason: query.reason ?? "" };
    const change = (changes) => follow({ ...asked, ...changes });
    const controls = h("div", { className: "controls" }), list = h("div"), turn = h("div", { className: "turn" }), number = h("p", { className: "sub" });
    place.append(heading("Rollouts", number), controls, list, turn);
    const drawControls = redrawn(controls, ({ reasons }) => [
      choice("Outcome", STATES, asked.state, (value) => change({ state: value })),
      reasons.length ? select("Reason", [["", "any"], ...reasons.map((one) => [one, clean(one, 40)])], asked.reason, (value) => change({ reason: value, state: value ? "rejected" : asked.state })) : "",
      search("Worker", asked.worker, (value) => change({ worker: value })),
      search("Version", asked.version, (value) => change({ version: /^\d+$/.test(value) ? value : "" })),
    ]);
    const draw = redrawn(list, ({ rows }) => table("Rollouts", COLUMNS, rows, "No matching rollouts."));
    const drawTurn = redrawn(turn, ({ older }) => [
      query.after ? h("a", { href: "#", className: "button", "data-key": "newest", onclick: (event) => { event.preventDefault(); change({}); } }, "Newest") : "",
      older ? h("a", { href: "#", className: "button", "data-key": "older", onclick: (event) => { event.preventDefault(); change({ after: older }); } }, "Older") : "",
    ]);
    return async () => {
      const page = await get("rollouts", { ...asked, after: query.after }, signal);
      const reasons = asked.reason && !page.reasons.includes(asked.reason) ? [asked.reason, ...page.reasons] : page.reasons;
      drawControls({ reasons });
      draw({ rows: page.rows });
      drawTurn({ older: page.older });
      number.textContent = `${many(page.total, "rollout")} held by this node; rewards are shown where it has the body`;
    };
  },
};

const COLUMNS = [
  ["Commit", (row) => rolloutLink(row.commit)],
  ["Outcome", (row) => [state(row.state), row.reason && row.reason !== "accepted" ? h("span", { className: "reason" }, clean(row.reason, 40)) : ""]],
  ["Reward", (row) => reward(row.reward), { className: "number" }],
  ["Version", (row) => `v${row.version}`, { className: "number" }],
  ["Slot", (row) => count(row.slot), { className: "number" }],
  ["Worker", (row) => peerLink(row.worker, "", row.name)],
  ["Verdicts", (row) => verdicts(row)],
  ["Trained in", (row) => (row.trained_in === null ? "–" : `v${row.trained_in}`), { className: "number" }],
  ["Tokens", (row) => count(row.tokens), { className: "number" }],
  ["Epoch", (row) => h("span", { title: clock(row.at) }, count(row.epoch)), { className: "number" }],
];

function verdicts({ accepts, rejects, escalated }) {
  if (!accepts && !rejects) return "–";
  const words = [accepts ? `${accepts} accept` : "", rejects ? `${rejects} reject` : ""].filter(Boolean).join(", ");
  return [words, escalated ? h("span", { className: "tag" }, "escalated") : ""];
}
