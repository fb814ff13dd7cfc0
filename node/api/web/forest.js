// Distribution trees of one version, side by side; every member is in each tree once.

import { h, s } from "./dom.js";
import { bytes, clean, count, many, peer } from "./format.js";

const DRAWN_MAX = 48; // members; larger trees are shown as counts by depth
const ROW = 44, NODE = 5;

export function forestDrawing(forest, me) {
  const place = forest.members.indexOf(me), root = forest.members.indexOf(forest.root);
  return h("div", { className: "forest" }, forest.parents.map((parents, stripe) => {
    const levels = layers(parents, root);
    const depth = levels.findIndex((level) => level.includes(place));
    const above = place < 0 || place === root ? null : parents[place];
    const told = place === root ? "this node is the publisher" : above === null ? "this node is no member"
      : [`this node: depth ${depth}, parent `, h("span", { className: "whole" }, above === -1 ? "publisher" : peer(forest.members[above]))];
    return h("figure", { className: "tree" }, h("figcaption", {}, h("strong", {}, `Stripe ${stripe}`), h("span", { className: "note" }, `${many(levels.length - 1, "level")}, `, told)),
      forest.members.length <= DRAWN_MAX ? drawn(forest, parents, levels, place, root) : counted(levels, place));
  }));
}

// Members by depth, with the children of a parent adjacent.
function layers(parents, root) {
  const children = new Map();
  parents.forEach((parent, member) => {
    if (parent === -2) return;
    const key = parent === -1 ? root : parent;
    children.set(key, [...(children.get(key) ?? []), member]);
  });
  const levels = [[root]];
  while (levels.at(-1).length) levels.push(levels.at(-1).flatMap((member) => children.get(member) ?? []));
  return levels.slice(0, -1);
}

function drawn(forest, parents, levels, me, root) {
  const width = 320, at = new Map();
  levels.forEach((level, depth) => level.forEach((member, index) => at.set(member, [(index + 0.5) / level.length * width, 14 + depth * ROW])));
  const ours = new Set();
  for (let member = me; member >= 0; member = parents[member] === -1 ? root : parents[member]) {
    ours.add(member);
    if (member === root || parents[member] === -2) break;
  }
  const edges = parents.map((parent, member) => {
    const from = at.get(parent === -1 ? root : parent), to = at.get(member);
    if (parent === -2 || !from || !to) return "";
    const middle = (from[1] + to[1]) / 2;
    return s("path", { className: ours.has(member) ? "edge ours" : "edge", d: `M${from[0]} ${from[1]}C${from[0]} ${middle} ${to[0]} ${middle} ${to[0]} ${to[1]}` });
  });
  const nodes = [...at].map(([member, [x, y]]) => s("g", { className: member === root ? "root" : member === me ? "me" : "" },
    s("circle", { cx: x, cy: y, r: member === root || member === me ? NODE + 1.5 : NODE }),
    s("title", {}, `${clean(forest.members[member], 80)}${forest.upload_bytes_per_second[member] ? `, uploads up to ${bytes(forest.upload_bytes_per_second[member])}/s` : ""}`)));
  const height = 28 + (levels.length - 1) * ROW;
  return s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Tree of ${levels.length} levels: ${levels.map((level) => level.length).join(", ")} members` }, edges, nodes);
}

function counted(levels, me) {
  const most = Math.max(...levels.map((level) => level.length));
  return h("table", { className: "bars" }, h("tbody", {}, levels.map((level, depth) => {
    const inner = h("span", {});
    inner.style.inlineSize = `${level.length / most * 100}%`;
    return h("tr", {}, h("th", { scope: "row" }, depth ? `depth ${depth}` : "publisher"), h("td", {}, h("span", { className: `bar ${level.includes(me) ? "accent" : "ink"}` }, inner)), h("td", { className: "number" }, count(level.length)));
  })));
}
