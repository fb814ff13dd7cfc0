// Rules of the run, and the command to join it.

import { get } from "../api.js";
import { h, redrawn } from "../dom.js";
import { clean, moment } from "../format.js";
import { copied, heading, section } from "../parts.js";

const LONG = new Set(["succeeds", "trainers", "validators"]);

export default {
  seconds: 10,
  begin(place, { signal }) {
    const draw = redrawn(place, content);
    return async () => draw(await get("run", {}, signal));
  },
};

function content(run) {
  if (!run.run_id) return [heading("Run"), h("p", { className: "empty" }, "This node has not joined a run yet: no peer has sent a manifest.")];
  return [
    heading(clean(run.name, 60), h("p", { className: "sub" }, `created ${moment(run.created_at)}`)),
    section("Join", run.invited ? "this run needs an invite: replace TOKEN" : null, copied(run.join_command)),
    section("Identity", "the run id is the BLAKE3 digest of the manifest", h("dl", { className: "words" },
      pair("run id", h("code", {}, run.run_id)), pair("creator", h("code", {}, clean(run.creator, 80))), pair("signature", h("code", {}, run.signed)))),
    section("Rules", "followed by every node of the run", h("dl", { className: "words" },
      run.words.filter(([name]) => name !== "run" && name !== "creator").map(([name, text]) =>
        pair(name, LONG.has(name) ? clean(text, 90000).split("\n").map((one) => h("code", {}, one)) : clean(text, 2000))))),
  ];
}

const pair = (name, value) => h("div", {}, h("dt", {}, clean(name, 60)), h("dd", {}, value));
