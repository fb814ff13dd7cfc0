// Formats of numbers, times and names. Text from other nodes loses characters that reorder or hide text.

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const COUNT_UNITS = ["k", "M", "G", "T"];
const UNITS = ["B", "kB", "MB", "GB", "TB"];

export const NONE = "–";

export const count = (value) => (value === null || value === undefined ? NONE : grouped.format(value));

export function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(3)));
}

// A count with three digits from 10,000 on, for narrow cells.
export function compact(value) {
  if (value < 10000) return count(value);
  let rest = value, unit = -1;
  while (rest >= 999.5 && unit < COUNT_UNITS.length - 1) { rest /= 1000; unit += 1; }
  return `${rest < 999.5 ? Number(rest.toPrecision(3)) : count(rest)} ${COUNT_UNITS[unit]}`;
}

export function bytes(value) {
  let rest = value, unit = 0;
  while (rest >= 999.5 && unit < UNITS.length - 1) { rest /= 1000; unit += 1; }
  return `${unit === 0 ? Math.round(rest) : Number(rest.toPrecision(3))} ${UNITS[unit]}`;
}

export const percent = (share, digits = 0) =>
  share === null || share === undefined || !Number.isFinite(share) ? NONE : `${(100 * share).toFixed(digits)} %`;

export const reward = (value) => (value === null || value === undefined ? NONE : value.toFixed(3));

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 10 && !Number.isInteger(seconds)) return `${seconds.toFixed(1)} s`;
  const parts = [];
  let rest = Math.max(0, Math.round(seconds));
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    const number = Math.floor(rest / size);
    rest -= number * size;
    if (number || (unit === "s" && !parts.length)) parts.push(`${number} ${unit}`);
    else if (parts.length) break;
  }
  return parts.slice(0, 2).join(" ");
}

// Duration rounded to one unit, for estimates and narrow cells.
export function about(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  const [unit, size] = [["s", 1], ["min", 60], ["h", 3600]].find(([, one]) => seconds < 99.5 * one) ?? ["d", 86400];
  return `${unit === "s" ? Math.round(seconds) : short(Number((seconds / size).toPrecision(2)))} ${unit}`;
}

export const milliseconds = (seconds) =>
  seconds === null || seconds === undefined ? NONE
    : seconds < 0.001 ? "< 1 ms" : seconds < 1 ? `${short(1000 * seconds)} ms` : `${short(seconds)} s`;

export const minute = (seconds) => clock(seconds).slice(0, 5);
export const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString("en-GB");

export const moment = (seconds) =>
  new Date(1000 * seconds).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });

// A share that is never rounded to nothing or to all.
export const shareOf = (share) =>
  share > 0 && share < 0.001 ? "< 0.1 %" : share > 0.999 && share < 1 ? "> 99.9 %" : percent(share, 1);

// Peer ids share a prefix and differ at the end.
export const peer = (id) => (id.length <= 14 ? clean(id) : `…${clean(id.slice(-8))}`);

export const digest = (hex) => clean(hex.slice(0, 12));

// Control and bidirectional characters, shown as U+FFFD.
const FOREIGN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/gu;

export const clean = (text, most = 2000) => {
  const kept = String(text).replace(FOREIGN, "\ufffd");
  return kept.length > most ? `${kept.slice(0, most)}…` : kept;
};

export const many = (number, one, more) => `${count(number)} ${number === 1 ? one : more ?? `${one}s`}`;
