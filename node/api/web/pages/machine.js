// This node's machine: memory, disk, GPUs, queues, event loop and log.

import { get } from "../api.js";
import { h, redrawn, show } from "../dom.js";
import { bytes, clean, count, duration, milliseconds, percent } from "../format.js";
import { bar, facts, heading, section } from "../parts.js";

export default {
  seconds: 3,
  begin(place, { signal, meta }) {
    const head = h("div"), body = h("div"), log = h("pre", { className: "log", tabindex: "0", "aria-label": "Log" });
    const follows = () => log.scrollTop + log.clientHeight >= log.scrollHeight - 30;
    place.append(head, body, section("Log", meta.mode === "live" ? "latest lines" : null, log));
    const drawHead = redrawn(head, header), drawBody = redrawn(body, content);
    let lines = "";
    return async () => {
      const page = await get("node", {}, signal);
      drawHead({ ...page, log: 0, loop_delays: 0, now: Math.floor(page.now / 10) * 10, load: page.load });
      drawBody({ ...page, log: 0, now: 0, load: 0 });
      const text = page.log.map((one) => clean(told(one), 1000)).join("\n");
      if (text === lines) return;
      const at = follows();
      lines = text;
      show(log, text || "No log lines.");
      if (at) log.scrollTop = log.scrollHeight;
    };
  },
};

// A readable log line; unattended nodes log JSON.
function told(text) {
  try {
    const { timestamp, level, message, logger, ...rest } = JSON.parse(text);
    const facts = Object.entries(rest).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`);
    return [String(timestamp ?? "").slice(11, 19), String(level ?? "").padEnd(7), message, ...facts].join("  ");
  } catch {
    return text;
  }
}

function header(page) {
  return [heading("This node", h("p", { className: "sub" }, clean(page.software, 60), page.started_at ? h("span", {}, `up ${duration(page.now - page.started_at)}`) : "")),
    facts([["Process", page.pid ? String(page.pid) : "–"], ["Cores", page.cores ? count(page.cores) : "–"], ["Load", page.load?.length ? page.load.join("  ") : "–"], ["Data", page.data_dir ? h("span", { className: "mono" }, clean(page.data_dir, 200)) : "–"]])];
}

function content(page) {
  const gpus = page.gpus.map((one) => ({ name: one.name, value: one.used_bytes, most: one.memory_bytes, unit: "bytes" }));
  return [
    h("div", { className: "columns two" },
      section("Memory", null, meters(page.memory, "Unknown.")),
      section("Disk", null, meters(page.disk, "Unknown.")),
      section("GPUs", null, meters(gpus, "The driver reports none.")),
      section("Traffic", "since the start of this node", page.traffic && Object.keys(page.traffic).length ? h("table", { className: "bars" }, h("tbody", {}, Object.entries(page.traffic).map(([name, value]) =>
        h("tr", {}, h("th", { scope: "row" }, name), h("td", { className: "number" }, bytes(value)))))) : h("p", { className: "empty" }, "No data yet."))),
    h("div", { className: "columns two" },
      section("Queues", "fullest of each kind, and its limit", meters(page.queues, "The node has not joined a run yet.")),
      section("Event loop", `delays; at most ${milliseconds(page.loop_delay_seconds_max)}`, delays(page))),
  ];
}

function meters(rows, empty) {
  if (!rows.length) return h("p", { className: "empty" }, empty);
  return h("table", { className: "bars meters" }, h("tbody", {}, rows.map((one) => {
    const write = one.unit === "bytes" ? bytes : count, share = one.most ? one.value / one.most : null;
    return h("tr", {}, h("th", { scope: "row" }, clean(one.name, 80)), h("td", {}, share === null ? "" : bar(share, share > 0.9 ? "bad" : "accent", percent(share))),
      h("td", { className: "number" }, write(one.value), one.most ? h("span", { className: "of" }, ` of ${write(one.most)}`) : ""));
  })));
}

function delays({ loop_delays: counts, loop_bounds: bounds }) {
  const all = counts.reduce((one, other) => one + other, 0);
  if (!all) return h("p", { className: "empty" }, "No data yet.");
  const name = (index) => index < bounds.length ? `up to ${milliseconds(bounds[index])}` : `above ${milliseconds(bounds.at(-1))}`;
  return h("table", { className: "bars" }, h("tbody", {}, counts.map((number, index) => h("tr", {},
    h("th", { scope: "row" }, name(index)), h("td", {}, bar(number / all, bounds[index] <= 0.1 ? "accent" : number ? "bad" : "")), h("td", { className: "number" }, percent(number / all, 2))))));
}
