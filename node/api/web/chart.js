// SVG line charts over a number or time, with round ticks and the value under the pointer.

import { h, s, show } from "./dom.js";
import { minute } from "./format.js";

const LEFT = 44, RIGHT = 14, TOP = 10, BOTTOM = 22;
const HALF_LETTER = 3.5; // half of a letter's width in pixels, at most

// About the requested number of ticks, at 1, 2 or 5 times a power of ten.
function ticks(least, most, about) {
  const span = most - least || 1;
  const power = 10 ** Math.floor(Math.log10(span / about));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => span / one <= about) ?? 10 * power;
  const found = [];
  for (let at = Math.ceil(least / step - 1e-9) * step; at <= most + step * 1e-6; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 604800];

// Ticks at whole minutes and hours of local time.
function timeTicks(least, most, about) {
  const step = TIME_STEPS.find((one) => (most - least) / one <= about + 0.5) ?? TIME_STEPS.at(-1);
  const shift = 60 * new Date(1000 * least).getTimezoneOffset();
  const found = [];
  for (let at = Math.ceil((least - shift) / step) * step + shift; at <= most; at += step) found.push(at);
  return found;
}

export class LineChart {
  // ``series`` are {name, tone}; ``x`` and ``y`` format a value; ``least`` and ``most`` bound the y axis;
  // with ``timed`` x is unix seconds, else an integer. A ``sparse`` series lacks values at most points.
  constructor({ label, series, x, y, height = 200, least = 0, most = null, timed = false, empty = "No data yet." }) {
    Object.assign(this, { label, series, x, y, height, least, most, timed, emptyText: empty, points: [], bands: {} });
    this.readout = h("p", { className: "readout", "aria-hidden": "true" });
    this.drawing = h("div", { className: "drawing" });
    this.element = h("figure", { className: "chart" },
      h("figcaption", {}, h("span", { className: "legend" }, series.length > 1 ? series.map((one) =>
        h("span", { className: `key ${one.tone}` }, one.name)) : ""), this.readout), this.drawing);
    new ResizeObserver(() => this.draw()).observe(this.drawing);
    this.drawing.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.drawing.addEventListener("pointerleave", () => this.point(null));
  }

  // ``points`` are [x, y of each series], null without a value. ``bands`` maps a series to ascending [x, low, high].
  set(points, bands = {}) {
    Object.assign(this, { points, bands });
    this.draw();
  }

  draw() {
    const width = this.drawing.clientWidth;
    if (!width) return;
    if (this.points.length < 2) {
      show(this.drawing, h("p", { className: "empty" }, this.emptyText));
      this.scale = null;
      this.readout.textContent = this.points.length ? this.told(this.points[0]) : "";
      return;
    }
    const values = [...this.points, ...Object.values(this.bands).flat()].flatMap(([, ...ys]) => ys).filter((y) => y !== null);
    const low = Math.min(this.least ?? Infinity, ...values);
    const high = Math.max(this.most ?? -Infinity, ...values, low + 1e-9);
    const marks = ticks(low, high, Math.max(2, Math.round(this.height / 52)));
    const top = Math.max(high, marks.at(-1) ?? high);
    const [first, last] = [this.points[0][0], this.points.at(-1)[0]];
    const px = (value) => LEFT + (value - first) / (last - first || 1) * (width - LEFT - RIGHT);
    const py = (value) => TOP + (top - value) / (top - low || 1) * (this.height - TOP - BOTTOM);
    this.scale = { px, py, first, last, width };
    const across = this.timed ? timeTicks(first, last, Math.max(2, Math.floor(width / 75)))
      : ticks(first, last, Math.max(2, Math.floor(width / 110))).filter(Number.isInteger);
    const write = this.timed && across.every((at) => at % 60 === 0) ? minute : this.x;
    const svg = s("svg", { viewBox: `0 0 ${width} ${this.height}`, width, height: this.height, role: "img", "aria-label": this.summary() },
      marks.map((value) => [
        s("line", { className: "grid", x1: LEFT, x2: width - RIGHT, y1: py(value), y2: py(value) }),
        s("text", { className: "tick", x: LEFT - 8, y: py(value) + 4, "text-anchor": "end" }, this.y(value))]),
      across.map((value) => [write(value), px(value)]).map(([text, x]) =>
        s("text", { className: "tick", x: Math.min(x, width - HALF_LETTER * text.length), y: this.height - 4, "text-anchor": "middle" }, text)),
      this.series.map((one, index) => [this.band(one, px, py), this.path(one, index + 1, px, py)]));
    this.rule = s("line", { className: "rule", y1: TOP, y2: this.height - BOTTOM, visibility: "hidden" });
    svg.append(this.rule);
    show(this.drawing, svg);
    this.point(null);
  }

  band(one, px, py) {
    const band = this.bands[one.name] ?? [];
    if (!band.length) return "";
    const corner = (x, y) => `${px(x).toFixed(1)} ${py(y).toFixed(1)}`;
    const edge = [...band.map(([x, , high]) => corner(x, high)), ...band.toReversed().map(([x, low]) => corner(x, low))];
    return s("path", { className: `band ${one.tone}`, d: `M${edge.join("L")}Z` });
  }

  path(one, index, px, py) {
    let pen = "M";
    const parts = [];
    for (const point of this.points) {
      if (point[index] === null) { pen = one.sparse && parts.length ? "L" : "M"; continue; }
      parts.push(`${pen}${px(point[0]).toFixed(1)} ${py(point[index]).toFixed(1)}`);
      pen = "L";
    }
    const last = this.points.findLast((point) => point[index] !== null);
    return [s("path", { className: `series ${one.tone}`, d: parts.join("") }),
      last ? s("circle", { className: `end ${one.tone}`, cx: px(last[0]), cy: py(last[index]), r: 3 }) : ""];
  }

  point(offset) {
    if (!this.scale) return;
    let chosen = this.points.at(-1);
    if (offset !== null) {
      const { px } = this.scale;
      chosen = this.points.reduce((best, point) => Math.abs(px(point[0]) - offset) < Math.abs(px(best[0]) - offset) ? point : best, chosen);
    }
    this.rule.setAttribute("visibility", offset === null ? "hidden" : "visible");
    this.rule.setAttribute("x1", this.scale.px(chosen[0]));
    this.rule.setAttribute("x2", this.scale.px(chosen[0]));
    this.readout.textContent = this.told(chosen);
  }

  told([x, ...ys]) {
    const values = ys.map((y) => (y === null ? "" : this.y(y)));
    return [this.x(x), ...values].filter(Boolean).join("  ·  ");
  }

  summary() {
    const tell = this.series.map((one, index) => {
      const values = this.points.map((point) => point[index + 1]).filter((value) => value !== null);
      return values.length ? `${one.name} from ${this.y(values[0])} to ${this.y(values.at(-1))}` : `${one.name}: none`;
    });
    return `${this.label}: ${tell.join("; ")}`;
  }
}
