// One rollout: stages from commit to training, verdicts, prompts and completions.

import { get } from "../api.js";
import { h, redrawn } from "../dom.js";
import { bytes, clean, clock, count, digest, many, percent, reward, short } from "../format.js";
import { facts, heading, mono, peerLink, section, state } from "../parts.js";

const SCALE = 1.5; // full width of a bar, in multiples of the limit

export default {
  seconds: 4,
  begin(place, { rest, signal }) {
    const head = h("div"), way = h("div"), verdicts = h("div"), text = h("div");
    place.append(head, way, verdicts, text);
    const drawHead = redrawn(head, header), drawWay = redrawn(way, steps);
    const drawVerdicts = redrawn(verdicts, statistics), drawText = redrawn(text, sequences);
    return async () => {
      const found = await get(`rollouts/${encodeURIComponent(rest[0])}`, {}, signal);
      drawHead({ ...found, sequences: 0, verdicts: 0 });
      drawWay({ ...found, sequences: 0 });
      drawVerdicts(found.verdicts);
      drawText({ sequences: found.sequences, total: found.sequences_total, note: found.note });
    };
  },
};

function header({ row, body, body_bytes: length, checkpoint, certificate }) {
  return [heading(["Rollout ", mono(digest(row.commit), row.commit)],
    h("p", { className: "sub" }, state(row.state, true), row.reason && row.reason !== "accepted" ? h("span", { className: "reason" }, clean(row.reason, 60)) : "", row.escalated ? h("span", { className: "tag" }, "escalated") : "")),
  facts([
    ["Reward", reward(row.reward)],
    ["Worker", peerLink(row.worker, "", row.name)],
    ["Policy", `version ${row.version}`],
    ["Slot", count(row.slot)],
    ["Sequences", `${count(row.sequences)}, ${many(row.tokens, "token")}`],
    ["Body", [mono(digest(body), body), `, ${bytes(length)}`]],
    ["Checkpoint", mono(digest(checkpoint), checkpoint)],
    ["Certificate", certificate ? mono(digest(certificate), certificate) : "none"],
  ])];
}

function steps({ row, committee, verdicts, certified_by: author }) {
  const accepts = verdicts.filter((one) => one.accept).length;
  const done = row.state === "certified" || row.state === "rejected";
  const drawn = committee.first.length > 0;
  const items = [
    [true, "Committed", [`epoch ${count(row.epoch)}, ${clock(row.at)}`], peerLink(row.worker, "", row.name)],
    [drawn, "Committee drawn", [drawn ? `by the page of epoch ${count(committee.epoch)}` : ""],
      drawn ? [many(committee.first.length, "validator"), `, ${committee.escalated.length} if they disagree`] : "not yet"],
    [verdicts.length > 0, "Verdicts", [verdicts.length ? `${accepts} accept, ${verdicts.length - accepts} reject` : "none received yet"],
      row.escalated ? `larger committee, quorum ${committee.quorum}` : ""],
    [done, row.state === "rejected" ? "Rejected" : row.state === "expired" ? "Expired" : "Certified",
      [row.state === "rejected" || row.state === "expired" ? clean(row.reason, 60) : done ? "all verdicts agree" : "not yet"], author ? ["signed by ", peerLink(author)] : "", row.state],
    [row.trained_in !== null, "Trained", [row.trained_in === null ? (row.state === "certified" ? "not yet" : "never") : `in version ${row.trained_in}`], ""],
  ];
  return section("Stages", null, h("ol", { className: "way" }, items.map(([reached, name, what, who, tone]) =>
    h("li", { className: `${reached || tone === "expired" ? "reached" : ""} ${tone === "rejected" ? "bad" : tone === "expired" ? "warn" : ""}` }, h("strong", {}, name), h("span", {}, what), who ? h("span", { className: "who" }, who) : ""))));
}

function statistics(verdicts) {
  if (!verdicts.length) return section("Verdicts", null, h("p", { className: "empty" }, "No verdicts received."));
  const list = h("ul", { className: "verdicts" }, verdicts.map((one) => h("li", {},
    state(one.accept ? "accepted" : "rejected"), peerLink(one.validator, "", one.name), one.place === null ? "" : h("span", { className: "note" }, `rank ${one.place + 1}`),
    one.accept ? "" : h("strong", {}, clean(one.reason, 60)), one.detail ? h("span", { className: "detail" }, clean(one.detail, 220)) : "",
    h("span", { className: "note" }, "signed ", mono(digest(one.evidence), one.evidence)))));
  const measured = verdicts.filter((one) => one.measured.length);
  if (!measured.length) return section("Verdicts", null, list);
  const names = measured[0].measured.map((one) => one.name);
  const rows = names.map((name, index) => h("tr", {}, h("th", { scope: "row" }, clean(name, 60).replaceAll("_", " ")),
    h("td", { className: "number limit" }, short(measured[0].measured[index]?.allowed)),
    measured.map((verdict) => h("td", {}, gauge(verdict.measured[index], peerName(verdict))))));
  return section("Verdicts", `bars end at ${SCALE} times the limit; the mark is the limit for honest workers`, list,
    h("div", { className: "scroll", role: "region", "aria-label": "Measurements of validators", tabindex: "0" }, h("table", { className: "measured" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Statistic"), h("th", { scope: "col", className: "number" }, "Limit"), measured.map((one) => h("th", { scope: "col" }, mono(peerName(one), one.validator))))),
      h("tbody", {}, rows))));
}

const peerName = (verdict) => `…${clean(verdict.validator.slice(-8))}`;

function gauge(one, who) {
  if (!one) return "";
  const share = one.value === null ? Infinity : one.allowed ? one.value / one.allowed : one.value > 0 ? Infinity : 0;
  const fill = h("span", { className: "fill" });
  fill.style.inlineSize = `${Math.min(1, share / SCALE) * 100}%`;
  return h("span", { className: `gauge ${share > 1 ? "bad" : ""}` },
    h("span", { className: "track", role: "img", "aria-label": `${who}: ${percent(share)} of the limit` }, fill, h("span", { className: "mark" })),
    h("span", { className: "number" }, one.value === null ? "∞" : short(one.value)));
}

function sequences({ sequences: found, total, note }) {
  const groups = new Map();
  for (const one of found) groups.set(one.group, [...(groups.get(one.group) ?? []), one]);
  return section("Prompts and completions", found.length ? many(total, "sequence") : null, note ? h("p", { className: "empty" }, clean(note, 300)) : "",
    [...groups].map(([, members]) => h("article", { className: "group" },
      h("div", { className: "prompt" }, h("h3", {}, "Prompt", members[0].length_target === null ? "" : h("span", { className: "tag" }, `length target ${members[0].length_target} tokens`)), h("pre", {}, clean(members[0].prompt, 8000))),
      h("ol", { className: "completions" }, members.map((one) => h("li", {},
        h("span", { className: `earned ${one.reward >= 0.5 ? "good" : ""}` }, reward(one.reward)), h("pre", {}, clean(one.completion, 8000)),
        h("span", { className: "note" }, many(one.tokens, "token"), one.cut ? ", truncated here" : "")))))));
}
