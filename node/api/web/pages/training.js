// Statistics of training steps by version, in small charts.

import { get } from "../api.js";
import { LineChart } from "../chart.js";
import { h, redrawn, show } from "../dom.js";
import { bytes, count, percent, short } from "../format.js";
import { heading, section, warning } from "../parts.js";

const HEIGHT = 150;

const whole = (value) => (Number.isInteger(value) ? count(value) : short(value));
const fine = (value) => (value === 0 || Math.abs(value) >= 1e-3 ? short(value) : value.toExponential(1).replace(".0e", "e"));
const share = (value) => percent(value, value !== 0 && value < 0.1 ? 1 : 0);

// Panels: title, note, value format, minimum top of the axis, and series as [name, statistic, tone].
// roles/runtime/training_steps.py defines the names of statistics.
const MAIN = [
  ["Reward", "of the batch", short, 1, [["mean", "reward_mean", "accent"], ["deviation", "reward_std", "ink"]]],
  ["Entropy", "nats per token", short, 0.1, [["entropy", "entropy_nats", "accent"]]],
  ["Gradient norm", "before clipping", short, 0.1, [["norm", "gradient_norm", "accent"]]],
  ["Clip fraction", "of tokens", share, 0.01, [["high", "clip_high_fraction", "accent"], ["low", "clip_low_fraction", "bad"]]],
  ["Answer length", "tokens, mean", short, 1, [["length", "answer_tokens_mean", "accent"]]],
  ["Tokens per second", "trained on", short, 1, [["tokens", "tokens_per_second", "accent"]]],
];
const MORE = [
  ["Sequences", "per step", whole, 1, [["used", "sequences_used", "accent"], ["offered", "sequences_offered", "ink"]]],
  ["Informative groups", "with unequal rewards", share, 1, [["groups", "groups_teaching_fraction", "accent"]]],
  ["Truncated answers", "at the length limit", share, 0.1, [["truncated", "answers_cut_fraction", "accent"]]],
  ["KL divergence", "from the workers' policies, nats", fine, 1e-3, [["KL", "kl_nats", "accent"]]],
  ["Mismatch", "with workers, mean, nats", fine, 1e-3, [["step", "mismatch_mean_nats", "accent"], ["engines", "engine_mismatch_mean_nats", "bad"]]],
  ["Mismatch, 99 %", "with workers, nats", fine, 1e-3, [["step", "mismatch_p99_nats", "accent"], ["engines", "engine_mismatch_p99_nats", "bad"]]],
  ["Beyond the clip range", "of tokens, before the update", share, 0.01, [["step", "mismatch_clip_fraction", "accent"], ["engines", "engine_mismatch_clip_fraction", "bad"]]],
  ["Staleness", "versions", short, 1, [["mean", "staleness_mean_versions", "accent"], ["maximum", "staleness_max_versions", "ink"]]],
  ["Step time", "seconds", short, 1, [["computing", "step_seconds", "accent"], ["idle", "idle_seconds", "bad"]]],
  ["Loss", "mean over tokens", short, 0.01, [["loss", "loss", "accent"]]],
  ["Learning rate", "of the last update", fine, 1e-7, [["rate", "learning_rate", "accent"]]],
  ["Updates", "per step, by the ranks", whole, 1, [["updates", "updates", "accent"], ["ranks", "ranks", "ink"]]],
  ["Memory", "of the largest rank, peak", bytes, 1e9, [["peak", "memory_peak_bytes", "accent"]]],
];

function chart([title, note, y, most, series]) {
  const place = h("div"), element = section(title, note, place);
  let line = null, drawn = "";
  const update = ({ versions, columns }) => {
    const known = series.filter(([, name]) => columns[name]);
    element.hidden = !known.length;
    if (known.join() !== drawn) {
      drawn = known.join();
      line = new LineChart({
        label: `${title}, ${note}`, series: known.map(([name, , tone]) => ({ name, tone })), height: HEIGHT, most,
        x: (value) => `v${Math.round(value)}`, y, empty: "The chart needs two versions.",
      });
      show(place, line.element);
    }
    line?.set(versions.map((version, at) => [version, ...known.map(([, name]) => columns[name][at])]));
  };
  return { element, update };
}

export default {
  seconds: 3,
  begin(place, { signal }) {
    const sub = h("p", { className: "sub" }), trouble = h("div"), main = h("div", { className: "columns three" }), more = h("div", { className: "columns three" });
    const charts = [...MAIN, ...MORE].map(chart);
    main.append(...charts.slice(0, MAIN.length).map((one) => one.element));
    more.append(...charts.slice(MAIN.length).map((one) => one.element));
    place.append(heading("Training", sub), trouble, main, more);
    const draw = redrawn(trouble, warning);
    return async () => {
      const page = await get("training", {}, signal);
      sub.textContent = told(page);
      draw(page.warning);
      more.hidden = page.newest === null;
      for (const one of charts) one.update(page);
    };
  },
};

function told({ versions, newest }) {
  if (!versions.length && newest === null) return "No trained version yet.";
  if (newest === null) return "This node trained no version and knows only the rewards. The trainer has the other statistics.";
  return `Latest step of this node: version ${count(newest.version)}, ${count(newest.sequences_used)} of ${count(newest.sequences_offered)} sequences used.`;
}
