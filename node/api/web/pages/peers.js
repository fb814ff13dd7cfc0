// Members of the run known to this node.

import { get } from "../api.js";
import { h, redrawn } from "../dom.js";
import { bytes, clean, count, duration, many, milliseconds, short } from "../format.js";
import { choice, heading, peerLink, search, select, state, table } from "../parts.js";

const LIMIT = 100;
const REPUTATIONS = [["", "any"], ["genesis", "genesis"], ["trusted", "trusted"], ["untrusted", "untrusted"], ["slashed", "slashed"]];
const ORDERS = [["role", "role"], ["age", "last seen"], ["version", "newest version"], ["rejected", "most rejected"], ["round-trip", "round trip"]];

export default {
  seconds: 4,
  begin(place, { query, follow, signal }) {
    const asked = { role: query.role ?? "", reputation: query.reputation ?? "", text: query.text ?? "", sort: query.sort ?? "role" };
    const offset = Math.max(0, Number.parseInt(query.offset ?? "0", 10) || 0);
    const change = (changes) => follow({ ...asked, ...changes });
    const controls = h("div", { className: "controls" }), list = h("div"), turn = h("div", { className: "turn" }), number = h("p", { className: "sub" });
    place.append(heading("Peers", number), controls, list, turn);
    const drawControls = redrawn(controls, ({ roles, members }) => [
      choice("Role", [["", "all", members], ...["trainer", "validator", "inference", "relay"].map((role) => [role, role, roles[role] ?? 0])], asked.role, (value) => change({ role: value })),
      select("Reputation", REPUTATIONS, asked.reputation, (value) => change({ reputation: value })),
      select("Order", ORDERS, asked.sort, (value) => change({ sort: value })),
      search("Search", asked.text, (value) => change({ text: value })),
    ]);
    const draw = redrawn(list, ({ rows }) => table("Peers", COLUMNS, rows, "No matching peers."));
    const drawTurn = redrawn(turn, ({ total }) => total <= LIMIT ? "" : [
      offset > 0 ? h("a", { className: "button", href: "#", onclick: (event) => { event.preventDefault(); change({ offset: Math.max(0, offset - LIMIT) }); } }, "Previous") : "",
      h("span", { className: "note" }, `${count(offset + 1)} to ${count(Math.min(total, offset + LIMIT))} of ${count(total)}`),
      offset + LIMIT < total ? h("a", { className: "button", href: "#", onclick: (event) => { event.preventDefault(); change({ offset: offset + LIMIT }); } }, "Next") : "",
    ]);
    return async () => {
      const page = await get("peers", { ...asked, offset, limit: LIMIT }, signal);
      drawControls({ roles: page.roles, members: page.members });
      draw({ rows: page.rows });
      drawTurn({ total: page.total });
      number.textContent = `${many(page.members, "member")}, ${count(page.connected)} connected to this node${page.banned ? `, ${count(page.banned)} banned` : ""}`;
    };
  },
};

const COLUMNS = [
  ["Peer", (row) => peerLink(row.peer_id, row.me ? row.peer_id : "", row.name)],
  ["Roles", (row) => row.roles.map((role) => clean(role, 20)).join(", ") || "no member"],
  ["Version", (row) => (row.policy_version < 0 ? "–" : `v${row.policy_version}`), { className: "number" }],
  ["Reputation", (row) => [state(row.reputation), row.faults ? h("span", { className: "tag" }, many(row.faults, "fault")) : ""]],
  ["Rollouts", (row) => (row.certified + row.rejected ? `${count(row.certified)} certified, ${count(row.rejected)} rejected` : "–")],
  ["Address", (row) => address(row)],
  ["Round trip", (row) => roundTrip(row), { className: "number" }],
  ["Reachable", (row) => (row.reachable === null ? "unknown" : row.reachable ? "yes" : "no")],
  ["Upload", (row) => (row.upload_bytes_per_second ? `${bytes(row.upload_bytes_per_second)}/s` : "–"), { className: "number" }],
  ["Score", (row) => (row.score === null ? "–" : [short(row.score), row.level === "good" ? "" : h("span", { className: "tag" }, clean(row.level, 20))]), { className: "number" }],
  ["Last seen", (row) => (row.age_seconds === null ? "–" : `${duration(row.age_seconds < 10 ? Math.round(row.age_seconds) || 0 : row.age_seconds)} ago`), { className: "number" }],
];

function roundTrip(row) {
  if (row.me) return "–";
  if (!row.connected) return h("span", { className: "note" }, "not connected");
  return row.round_trip_seconds === null ? h("span", { className: "note" }, "connected") : milliseconds(row.round_trip_seconds);
}

// Host and port; the tooltip has the full addresses, machine and software.
function address(row) {
  const told = row.addresses.map((one) => one.replace(/\/p2p\/.*$/, "").replace(/^\/ip[46]\/([^/]*)\/tcp\/(\d+)$/, "$1:$2"));
  if (!told.length) return row.remote.length ? clean(row.remote.join(", "), 40) : "–";
  const all = `${row.addresses.join("\n")}${row.machine ? `\n${row.machine}` : ""}\n${row.software}`;
  return h("span", { className: "address", title: clean(all, 900) }, clean(told[0], 40), told.length > 1 ? h("span", { className: "note" }, ` +${told.length - 1}`) : "");
}
