// Overview of the run: progress, rates and outcomes of rollouts.

import { get } from "../api.js";
import { LineChart } from "../chart.js";
import { h, redrawn, show } from "../dom.js";
import { about, clean, clock, count, digest, duration, many, percent, reward, short } from "../format.js";
import { bar, contribution, heading, kind, peerLink, section, state, warning } from "../parts.js";

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
      label: "Rollouts certified and rejected per minute", height: 170,
      series: [{ name: "certified", tone: "accent" }, { name: "rejected", tone: "bad" }], x: clock, y: short, timed: true,
      empty: "Collecting samples since the start of this node.",
    });
    const backlog = new LineChart({
      label: "Backlog of certified rollouts", height: 170, series: [{ name: "backlog", tone: "ink" }], x: clock, y: short, timed: true,
      empty: "Collecting samples since the start of this node.",
    });
    place.append(head, figures,
      h("div", { className: "columns wide" },
        section("Reward by version", "mean of the training batch, reported by its trainer; on held-out problems with 95 % interval, if the run evaluates versions", learned),
        h("div", {}, section("Outcomes of rollouts", null, reasons))),
      h("div", { className: "columns three" },
        section("Rollouts per minute", meta.mode === "live" ? "since the start of this node" : "over the recorded time", pace.element),
        section("Backlog of the trainer", "rollouts, mean over 30 s", backlog.element),
        h("div", {}, section("Swarm", null, swarm))),
      section("Latest events", "without escalated rollouts", happened));
    const draw = {
      head: redrawn(head, drawHead), figures: redrawn(figures, drawFigures), reasons: redrawn(reasons, drawOutcomes),
      swarm: redrawn(swarm, drawSwarm), happened: redrawn(happened, drawHappened),
    };
    return async () => {
      const [now, history] = await Promise.all([get("overview", {}, signal), get("history", {}, signal)]);
      draw.head({ ...now, now: Math.floor(now.now / 10), rewards: 0, happened: 0 });
      draw.figures({ ...now, now: 0, happened: 0 });
      draw.reasons(now.rollouts);
      draw.swarm({ members: now.members_by_role, total: now.members_count, connected: now.peers_connected, slashed: now.slashed, me: now.peer_id, leader: now.leader, name: now.council.leader_name, term: now.council.term, live: now.council.is_leader_live, council: now.council.text, fault: now.council.fault });
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
    x: (value) => `v${Math.round(value)}`, y: short, empty: "No trained version yet.",
  });
}

// Points and bands of the rewards of batches and of evaluated versions.
function curves({ rewards, evaluation }) {
  const rows = new Map(rewards.map((one) => [one.version, [one.version, one.reward, null]]));
  for (const one of evaluation) rows.set(one.version, [one.version, rows.get(one.version)?.[1] ?? null, one.reward_mean]);
  const points = [...rows.values()].sort(([one], [other]) => one - other);
  return [points, { [HELD_OUT]: evaluation.map((one) => [one.version, one.reward_low, one.reward_high]) }];
}

// Rate per minute at each sample, over the 30 s before it.
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

// Mean of a column at each sample over the 30 s before it, because single samples jump.
function means({ at, columns, interval_seconds: interval }, name) {
  const values = columns[name], back = Math.max(1, Math.round(WINDOW_SECONDS / interval));
  return at.map((moment, index) => {
    const before = values.slice(Math.max(0, index + 1 - back), index + 1);
    return [moment, before.reduce((sum, one) => sum + one, 0) / before.length];
  });
}

function drawHead(now) {
  const since = now.now * 10 - now.started_at;
  return heading(clean(now.run_name || "No run yet", 60),
    h("p", { className: "sub" }, state(now.state, true), now.reason ? h("span", { className: "reason" }, clean(now.reason, 300)) : "",
      h("span", {}, `${now.roles.map((role) => clean(role, 20)).join(", ")} `, h("span", { className: "mono" }, clean(now.peer_id.slice(-8)))),
      h("span", {}, `up ${duration(since)}`), now.run_id ? h("span", {}, "run ", h("a", { className: "mono", href: "#/run" }, digest(now.run_id))) : ""),
    now.yours.rank || now.yours.waiting ? h("p", { className: "note" }, h("a", { href: "#/contributors" }, "This node"), `: ${contribution(now.yours)}`) : "",
    warning(now.training_warning));
}

function drawFigures(now) {
  const last = now.rewards.at(-1), before = now.rewards.at(-6);
  const behind = Math.max(0, now.policy_version_newest - Math.max(0, now.policy_version));
  const delta = last && before ? last.reward - before.reward : null;
  const cells = [
    ["Reward", last ? reward(last.reward) : "–", delta === null ? "of the latest version" : `${delta < 0 ? "−" : "+"}${Math.abs(delta).toFixed(3)} over 5 versions`],
    ["Version", now.policy_version_newest < 0 ? "–" : count(now.policy_version_newest), now.steps_total ? [bar(Math.max(0, now.policy_version_newest) / now.steps_total, "accent", `${now.policy_version_newest} of ${now.steps_total}`), `of ${count(now.steps_total)}`, now.council.final_version < 0 ? "" : `; final ${count(now.council.final_version)}`] : ""],
    ["Time left", now.seconds_to_go === 0 ? "done" : about(now.seconds_to_go), "at the pace of 10 versions"],
    ["Certified per minute", now.certified_per_minute === null ? "–" : short(now.certified_per_minute), `${count(now.rollouts.certified)} in total`],
    ["Trainer idle", percent(now.trainer_idle_share), "too few certified rollouts"],
    ["Policy lag", now.policy_version_newest < 0 ? "–" : String(behind), `versions; at most ${now.policy_lag_max} in training`],
    ["Epoch", count(now.epoch), now.epoch_seconds ? `of ${short(now.epoch_seconds)} s` : ""],
  ];
  return h("dl", { className: "figures" }, cells.map(([name, value, note]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, value), h("dd", { className: "small" }, note))));
}

function drawOutcomes(rollouts) {
  const all = Math.max(1, rollouts.committed);
  const open = Math.max(0, rollouts.committed - rollouts.certified - rollouts.rejected - rollouts.expired);
  const rows = [["certified", rollouts.certified, "accent"], ["rejected", rollouts.rejected, "bad"], ["expired", rollouts.expired, "warn"], ["pending", open, "ink"]];
  const reasons = Object.entries(rollouts.rejected_reasons).sort((one, other) => other[1] - one[1]);
  const most = Math.max(1, ...reasons.map(([, number]) => number));
  return [
    h("table", { className: "bars" }, h("tbody", {}, rows.map(([name, number, tone]) => h("tr", {},
      h("th", { scope: "row" }, name === "pending" ? name : h("a", { href: `#/rollouts?state=${name}` }, name)), h("td", {}, bar(number / all, tone)), h("td", { className: "number" }, count(number)))))),
    h("h3", {}, "Rejected by reason"),
    reasons.length ? h("table", { className: "bars" }, h("tbody", {}, reasons.slice(0, 8).map(([reason, number]) => h("tr", {},
      h("th", { scope: "row" }, h("a", { href: `#/rollouts?state=rejected&reason=${encodeURIComponent(reason)}` }, clean(reason, 40))),
      h("td", {}, bar(number / most, "bad")), h("td", { className: "number" }, count(number))))))
      : h("p", { className: "empty" }, "No rejected rollouts."),
    reasons.length > 8 ? h("p", { className: "note" }, `and ${many(reasons.length - 8, "more reason")}`) : "",
  ];
}

function drawSwarm({ members, total, connected, leader, name, term, live, slashed, me, council, fault }) {
  const most = Math.max(1, ...Object.values(members));
  return [
    h("table", { className: "bars" }, h("tbody", {}, ROLES.map((role) => h("tr", {},
      h("th", { scope: "row" }, h("a", { href: `#/peers?role=${role}` }, role)), h("td", {}, bar((members[role] ?? 0) / most, "ink")), h("td", { className: "number" }, count(members[role] ?? 0)))))),
    h("p", { className: "note" }, `${many(total, "member")}, ${count(connected)} connected to this node`,
      slashed ? [", ", h("a", { href: "#/peers?reputation=slashed" }, `${count(slashed)} slashed`)] : ""),
    leader ? h("p", { className: live ? "note" : "warning" }, "Leading trainer ", peerLink(leader, me, name), `, term ${count(term)}`, live ? "" : ", not live") : "",
    council ? h("p", { className: fault ? "warning" : "note" }, "Council: ", clean(council, 400)) : "",
  ];
}

function drawHappened(rows) {
  if (!rows.length) return h("p", { className: "empty" }, "No events.");
  return [h("ol", { className: "events brief" }, rows.map((one) => h("li", {},
    h("time", {}, clock(one.at)), kind(one.kind), h("span", {}, peerLink(one.subject, "", one.name), " ", clean(one.text, 200))))),
  h("p", {}, h("a", { href: "#/events" }, "All events"))];
}
