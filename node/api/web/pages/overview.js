// The run on one page: where it stands, how fast it goes, what it rejects.

import { get } from "../api.js";
import { LineChart } from "../chart.js";
import { h, redrawn, show } from "../dom.js";
import { about, clean, clock, count, digest, duration, many, percent, reward, short } from "../format.js";
import { bar, heading, kind, peerLink, section, state, warning } from "../parts.js";

const ROLES = ["trainer", "validator", "inference", "relay"];
const WINDOW_SECONDS = 30;
const HELD_OUT = "held-out problems";

export default {
  seconds: 2,
  begin(place, { signal, meta }) {
    const head = h("div"), figures = h("div"), reasons = h("div"), swarm = h("div"), happened = h("div");
    const learned = h("div");
    let rewards = null;
    const pace = new LineChart({
      label: "Rollouts certified and rejected a minute", height: 170,
      series: [{ name: "certified", tone: "accent" }, { name: "rejected", tone: "bad" }], x: clock, y: short, timed: true,
      empty: "Counted since this node began; the line begins in a few seconds.",
    });
    const backlog = new LineChart({
      label: "Rollouts that wait for the trainer", height: 170, series: [{ name: "backlog", tone: "ink" }], x: clock, y: short, timed: true,
      empty: "Counted since this node began; the line begins in a few seconds.",
    });
    place.append(head, figures,
      h("div", { className: "columns wide" },
        section("Reward by version", "of a batch, as its trainer states it; on held-out problems with a 95 % interval, where the run evaluates versions", learned),
        h("div", {}, section("What became of rollouts", null, reasons))),
      h("div", { className: "columns three" },
        section("A minute", meta.mode === "live" ? "since this node began" : "over the recorded time", pace.element),
        section("Waiting for the trainer", "mean of half a minute", backlog.element),
        h("div", {}, section("Swarm", null, swarm))),
      section("Latest events", "without the rollouts that went to a larger committee", happened));
    const draw = {
      head: redrawn(head, drawHead), figures: redrawn(figures, drawFigures), reasons: redrawn(reasons, drawOutcomes),
      swarm: redrawn(swarm, drawSwarm), happened: redrawn(happened, drawHappened),
    };
    return async () => {
      const [now, history] = await Promise.all([get("overview", {}, signal), get("history", {}, signal)]);
      draw.head({ ...now, now: Math.floor(now.now / 10), rewards: 0, happened: 0 });
      draw.figures({ ...now, now: 0, happened: 0 });
      draw.reasons(now.rollouts);
      draw.swarm({ members: now.members, total: now.members_total, connected: now.peers_connected, leader: now.leader, slashed: now.slashed, me: now.peer_id });
      draw.happened(now.happened);
      if (rewards?.series.length !== (now.evaluation.length ? 2 : 1)) show(learned, (rewards = rewardChart(now.evaluation.length)).element);
      rewards.least = Math.min(0, ...now.rewards.map((one) => one.reward), ...now.evaluation.map((one) => one.reward_low));
      rewards.set(...curves(now));
      pace.set(rates(history));
      backlog.set(means(history, "backlog"));
    };
  },
};

function rewardChart(evaluated) {
  const batches = { name: "training batch", tone: "accent" };
  return new LineChart({
    label: "Mean reward by version", height: 260, most: 1,
    series: evaluated ? [batches, { name: HELD_OUT, tone: "warn", sparse: true }] : [batches],
    x: (value) => `v${Math.round(value)}`, y: short, empty: "The first version that learned from rollouts has not come yet.",
  });
}

// The points and the bands of the rewards: those of batches, and those of evaluated versions.
function curves({ rewards, evaluation }) {
  const rows = new Map(rewards.map((one) => [one.version, [one.version, one.reward, null]]));
  for (const one of evaluation) rows.set(one.version, [one.version, rows.get(one.version)?.[1] ?? null, one.reward_mean]);
  const points = [...rows.values()].sort(([one], [other]) => one - other);
  return [points, { [HELD_OUT]: evaluation.map((one) => [one.version, one.reward_low, one.reward_high]) }];
}

// A minute's rate at each sample, over the half minute before it.
function rates({ at, columns, interval_seconds: interval }) {
  if (!at.length || !columns.certified) return [];
  const back = Math.max(1, Math.round(WINDOW_SECONDS / interval));
  const points = [];
  for (let index = 1; index < at.length; index += 1) {
    const before = Math.max(0, index - back);
    const minutes = (at[index] - at[before]) / 60;
    if (minutes * 60 < Math.min(5, WINDOW_SECONDS)) continue;
    points.push([at[index], ...["certified", "rejected"].map((name) => Math.max(0, columns[name][index] - columns[name][before]) / minutes)]);
  }
  return points;
}

// The mean of a column at each sample, over the half minute before it: single samples jump.
function means({ at, columns, interval_seconds: interval }, name) {
  const values = columns[name], back = Math.max(1, Math.round(WINDOW_SECONDS / interval));
  return at.map((moment, index) => {
    const before = values.slice(Math.max(0, index + 1 - back), index + 1);
    return [moment, before.reduce((sum, one) => sum + one, 0) / before.length];
  });
}

function drawHead(now) {
  const since = now.now * 10 - now.started_at;
  return heading(clean(now.run_name || "Not in a run yet", 60),
    h("p", { className: "sub" }, state(now.state, true), now.reason ? h("span", { className: "reason" }, clean(now.reason, 300)) : "",
      h("span", {}, `${now.roles.map((role) => clean(role, 20)).join(", ")} `, h("span", { className: "mono" }, clean(now.peer_id.slice(-8)))),
      h("span", {}, `up ${duration(since)}`), now.run_id ? h("span", {}, "run ", h("a", { className: "mono", href: "#/run" }, digest(now.run_id))) : ""),
    warning(now.training_warning));
}

function drawFigures(now) {
  const last = now.rewards.at(-1), before = now.rewards.at(-6);
  const behind = Math.max(0, now.version - Math.max(0, now.policy_version));
  const delta = last && before ? last.reward - before.reward : null;
  const cells = [
    ["Reward", last ? reward(last.reward) : "–", delta === null ? "of the last version" : `${delta < 0 ? "−" : "+"}${Math.abs(delta).toFixed(3)} over 5`],
    ["Version", now.version < 0 ? "–" : count(now.version), now.steps ? [bar(Math.max(0, now.version) / now.steps, "accent", `${now.version} of ${now.steps}`), `of ${count(now.steps)}`] : ""],
    ["Time to go", now.seconds_to_go === 0 ? "done" : about(now.seconds_to_go), "at the pace of ten versions"],
    ["Certified a minute", now.certified_per_minute === null ? "–" : short(now.certified_per_minute), `${count(now.rollouts.certified)} in all`],
    ["Trainer idle", percent(now.trainer_idle_share), "too few rollouts waited"],
    ["Lag", now.version < 0 ? "–" : String(behind), `versions; at most ${now.policy_lag_max} trained on`],
    ["Epoch", count(now.epoch), now.epoch_seconds ? `of ${short(now.epoch_seconds)} s` : ""],
  ];
  return h("dl", { className: "figures" }, cells.map(([name, value, note]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, value), h("dd", { className: "small" }, note))));
}

function drawOutcomes(rollouts) {
  const all = Math.max(1, rollouts.committed);
  const open = Math.max(0, rollouts.committed - rollouts.certified - rollouts.rejected - rollouts.expired);
  const rows = [["certified", rollouts.certified, "accent"], ["rejected", rollouts.rejected, "bad"], ["expired", rollouts.expired, "warn"], ["waiting", open, "ink"]];
  const reasons = Object.entries(rollouts.rejected_reasons).sort((one, other) => other[1] - one[1]);
  const most = Math.max(1, ...reasons.map(([, number]) => number));
  return [
    h("table", { className: "bars" }, h("tbody", {}, rows.map(([name, number, tone]) => h("tr", {},
      h("th", { scope: "row" }, name === "waiting" ? name : h("a", { href: `#/rollouts?state=${name}` }, name)), h("td", {}, bar(number / all, tone)), h("td", { className: "number" }, count(number)))))),
    h("h3", {}, "Rejected by reason"),
    reasons.length ? h("table", { className: "bars" }, h("tbody", {}, reasons.slice(0, 8).map(([reason, number]) => h("tr", {},
      h("th", { scope: "row" }, h("a", { href: `#/rollouts?state=rejected&reason=${encodeURIComponent(reason)}` }, clean(reason, 40))),
      h("td", {}, bar(number / most, "bad")), h("td", { className: "number" }, count(number))))))
      : h("p", { className: "empty" }, "None was rejected."),
    reasons.length > 8 ? h("p", { className: "note" }, `and ${many(reasons.length - 8, "more reason")}`) : "",
  ];
}

function drawSwarm({ members, total, connected, leader, slashed, me }) {
  const most = Math.max(1, ...Object.values(members));
  return [
    h("table", { className: "bars" }, h("tbody", {}, ROLES.map((role) => h("tr", {},
      h("th", { scope: "row" }, h("a", { href: `#/peers?role=${role}` }, role)), h("td", {}, bar((members[role] ?? 0) / most, "ink")), h("td", { className: "number" }, count(members[role] ?? 0)))))),
    h("p", { className: "note" }, `${many(total, "member")}, ${count(connected)} connected here`,
      slashed ? [", ", h("a", { href: "#/peers?standing=slashed" }, `${count(slashed)} slashed`)] : ""),
    leader ? h("p", { className: "note" }, "Leading trainer ", peerLink(leader, me)) : "",
  ];
}

function drawHappened(rows) {
  if (!rows.length) return h("p", { className: "empty" }, "Nothing out of the ordinary has happened.");
  return [h("ol", { className: "events brief" }, rows.map((one) => h("li", {},
    h("time", {}, clock(one.at)), kind(one.kind), h("span", {}, peerLink(one.subject), " ", clean(one.text, 200))))),
  h("p", {}, h("a", { href: "#/events" }, "All events"))];
}
