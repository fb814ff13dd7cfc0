// Contributors of the run by credit, and the work of this node, as final pages count them.

import { get } from "../api.js";
import { h, redrawn } from "../dom.js";
import { NONE, clean, compact, count, many, moment, shareOf } from "../format.js";
import { bar, heading, peerLink, section, state, table } from "../parts.js";

export default {
  seconds: 4,
  begin(place, { signal, meta }) {
    const number = h("p", { className: "sub" }), figures = h("div"), list = h("div");
    const whose = meta.mode === "live" ? "This node" : "The recorded node";
    place.append(heading("Contributors", number),
      section(whose, "by final pages, which are the same on every node; what waits or has been rejected: as this node knows", figures),
      section("All contributors", "by credit, locked credit included; names are not verified, the keys beside them are", list));
    const drawFigures = redrawn(figures, drawYours), drawList = redrawn(list, drawRows);
    return async () => {
      const page = await get("contributors", {}, signal);
      number.textContent = page.epoch < 0 ? "No final page is counted yet."
        : `${many(page.total, "contributor")}${page.slashed ? `, ${count(page.slashed)} slashed` : ""}; ${many(page.rollouts, "certified rollout")}, ${compact(page.tokens)} tokens and ${many(page.steps, "final version")} up to epoch ${count(page.epoch)}`;
      drawFigures(page.yours);
      drawList({ rows: page.rows, own: page.own, total: page.total });
    };
  },
};

function drawYours(own) {
  const reasons = Object.entries(own.rejected_reasons).sort((one, other) => other[1] - one[1]);
  const told = reasons.slice(0, 3).map(([reason, number]) => `${clean(reason, 40)} ${count(number)}`).join(", ");
  const cells = [
    ["Certified rollouts", compact(own.certified), own.trained ? `${compact(own.trained)} in final versions` : ""],
    ["Tokens", compact(own.tokens), "of certified rollouts"],
    ["Share of the run", own.rank ? shareOf(own.credit_share) : "–", own.rank ? `of the credit; rank ${count(own.rank)} of ${count(own.contributors)}` : "no credit yet"],
    ["Checks", compact(own.checks), own.steps ? `and ${many(own.steps, "published version")}` : "verdicts that counted"],
    ["Waiting", count(own.waiting), "not in a final page yet"],
    ["Rejected", count(own.rejected), told || (own.rejected ? "" : "none")],
    ["Skipped slots", count(own.skipped), own.unpaid ? `${many(own.unpaid, "rollout")} without credit for them` : (own.skipped ? "no cost yet" : "none")],
    ["Credit", compact(own.unlocked + own.locked), `${compact(own.locked)} of it locked${own.forfeited ? `, ${compact(own.forfeited)} forfeited` : ""}`],
  ];
  return [own.slashed ? h("p", { className: "warning", role: "status" }, "This key is slashed: a proven fault ended its reputation in this run.") : "",
    h("dl", { className: "figures" }, cells.map(([name, value, note]) =>
      h("div", {}, h("dt", {}, name), h("dd", {}, value), h("dd", { className: "small" }, note))))];
}

function drawRows({ rows, own, total }) {
  const isOutside = own !== null && own.rank > rows.length;
  const shown = isOutside ? [...rows, own] : rows;
  const most = Math.max(1e-9, ...rows.map((row) => row.credit_share));
  const hidden = total - shown.length;
  return [table("Contributors", columns(most), shown, "Nobody has contributed yet.", (row) => row.me),
    hidden > 0 ? h("p", { className: "note" }, `and ${count(hidden)} more`) : ""];
}

const amount = (value) => (value ? h("span", { title: count(value) }, compact(value)) : NONE);

const columns = (most) => [
  ["Contributor", (row) => [h("span", { className: "rank" }, `${count(row.rank)}.`), " ", peerLink(row.peer_id, row.me ? row.peer_id : "", row.name),
    row.slashed_epoch >= 0 ? h("span", { className: "tag" }, state("slashed")) : ""]],
  ["Share", (row) => h("span", { className: "share" }, bar(row.credit_share / most, "accent"), h("span", { className: "number" }, shareOf(row.credit_share)))],
  ["Tokens", (row) => amount(row.tokens), { className: "number" }],
  ["Rollouts", (row) => amount(row.rollouts), { className: "number" }],
  ["Checks", (row) => amount(row.checks), { className: "number" }],
  ["Versions", (row) => amount(row.steps), { className: "number" }],
  ["Credit", (row) => amount(row.unlocked + row.locked), { className: "number" }],
  ["Locked", (row) => amount(row.locked), { className: "number" }],
  ["Since", (row) => h("span", { title: moment(row.since_at) }, `epoch ${count(row.since_epoch)}`), { className: "number" }],
];
