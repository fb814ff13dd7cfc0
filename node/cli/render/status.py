"""Terminal views of the control API's answers, for about 100 columns."""

import math
from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from node.api.council import CouncilSummary
from node.api.status import JudgingStatus, NodeStatus
from node.api.v1.answers import (
    PeerRow,
    RewardPoint,
    RolloutCounts,
    RolloutDetail,
    State,
    VerdictDetail,
)
from node.api.why import Why
from node.cli.render.contributors import own_work_text
from node.cli.render.council import leader_text
from node.cli.render.downloads import downloads_view, sending_text
from node.cli.render.style import (
    BAD,
    DIM,
    GOOD,
    WARN,
    plain,
    plain_name,
    short_peer,
)
from node.local.units import bytes_text, duration_text
from protocol.core.types import Role
from protocol.gossipsub.inspection import ScoreLevel
from protocol.rollout.evaluation import EvaluationPoint
from roles.runtime.shadow_progress import ShadowProgress
from roles.runtime.training_steps import TrainingStep

REWARD_BARS = "▁▂▃▄▅▆▇█"
REWARDS_SHOWN = 48
ROLLOUTS_SHOWN = 20
"""Newest rollouts that ``why`` explains without an argument."""

FINDINGS_CHARACTERS_MAX = 800
"""Three quantities take about 200 characters; the rest is for text from a peer."""

QUANTITIES_SHOWN = 3
"""Measured quantities shown per verdict, those with the largest share of their limit first."""

GOSSIP_COUNTS = {
    "first": "first_deliveries",
    "invalid": "invalid",
    "breaches": "breaches",
    "faults": "faults",
}
"""Counter columns of the table of gossip peers, by heading."""

WARNING_CHARACTERS_MAX = 400

PEER_CHARACTERS_MAX = 23
"""Width of a shortened key with its note; a longer name below it is cut, to fit 100 columns."""

STEP_TEXTS = (
    (
        ("reward {:.3f} ± {:.3f}", ("reward_mean", "reward_std")),
        ("{} of {} sequences used", ("sequences_used", "sequences_offered")),
        ("{:.0%} of groups informative", ("groups_teaching_fraction",)),
    ),
    (
        ("entropy {:.3f} nats", ("entropy_nats",)),
        ("KL {:.2g} nats", ("kl_nats",)),
        ("gradient norm {:.3g}", ("gradient_norm",)),
        ("clip {:.1%} low, {:.1%} high", ("clip_low_fraction", "clip_high_fraction")),
    ),
    (
        ("answers {:.1f} tokens", ("answer_tokens_mean",)),
        ("{:.0%} truncated", ("answers_cut_fraction",)),
        (
            "staleness {:.1f} versions, at most {}",
            ("staleness_mean_versions", "staleness_max_versions"),
        ),
    ),
    (
        (
            "mismatch {:.2g} nats, 99% below {:.2g}, {:.1%} clipped",
            ("mismatch_mean_nats", "mismatch_p99_nats", "mismatch_clip_fraction"),
        ),
        (
            "engines {:.2g}, {:.2g}, {:.1%}",
            (
                "engine_mismatch_mean_nats",
                "engine_mismatch_p99_nats",
                "engine_mismatch_clip_fraction",
            ),
        ),
    ),
    (
        ("updates {} at learning rate {:.3g}", ("updates", "learning_rate")),
        ("loss {:.3g}", ("loss",)),
    ),
    (
        ("{:.0f} tokens/s", ("tokens_per_second",)),
        ("{:.1f} s, idle {:.1f} s", ("step_seconds", "idle_seconds")),
        ("ranks: {}, memory at most {}", ("ranks", "memory_peak_bytes")),
    ),
)
"""Lines about a training step: format strings, each with its statistics."""

LOOP_DELAY_TOLD_SECONDS = 0.5
"""A guess: half a heartbeat of gossip."""


def status_view(status: NodeStatus, now: float) -> RenderableType:
    """Return the output of ``prime-node status`` at unix time ``now``."""
    facts = Table.grid(padding=(0, 3))
    facts.add_column(style=DIM, min_width=9)
    facts.add_column()
    for name, value in (
        ("peer id", status.peer_id),
        *([("name", plain_name(status.name).plain)] if status.name else []),
        ("address", "\n".join(status.addresses) or "none yet"),
        ("run", f"{status.run_name}  {status.run_id[:16]}…  epoch {status.epoch}"),
        *([("succeeds", status.succeeds)] if status.succeeds else []),
        ("up", duration_text(now - status.started_at)),
        *_yours(status),
        ("swarm", _swarm(status)),
        *_council(status.council),
        ("policy", _policy(status)),
        ("reward", _reward(status.rewards)),
        *_evaluation(status.evaluation),
        ("traffic", _traffic(status)),
        *_sending(status),
        *_policy_swap(status),
        *_loop(status),
        *_training(status.training),
        *_shadow(status.shadow),
    ):
        facts.add_row(name, Text(value))
    hints = [Text(plain(fork), BAD) for fork in status.forks]
    if status.training_warning:
        hints.append(Text(plain(status.training_warning, WARNING_CHARACTERS_MAX), WARN))
    if status.shadow.warning:
        hints.append(Text(plain(status.shadow.warning, WARNING_CHARACTERS_MAX), WARN))
    hints += _judging(status.judging)
    if status.yours.rejected or status.yours.expired:
        hints += [Text("prime-node why explains this node's failed rollouts.", style=DIM)]
    return Group(
        _headline(status),
        Padding(facts, (1, 0, 1, 2)),
        *_arriving(status),
        Padding(_rollouts(status), (0, 0, 1, 2)),
        *hints,
    )


def _judging(judging: JudgingStatus) -> list[Text]:
    """Return the thresholds in doubt, and the validators whose scores the outcome contradicts."""
    lines = [Text(plain(doubt), WARN) for doubt in judging.doubts]
    for peer, count in judging.overruled.items():
        rollouts = "1 rollout" if count == 1 else f"{count} rollouts"
        line = f"{short_peer(peer)} scored {rollouts} differently from its committee"
        lines.append(Text(line, WARN))
    return lines


def peers_view(status: NodeStatus) -> RenderableType:
    """Return a table of the roster and a table of the gossip peers."""
    table = Table(box=None, padding=(0, 2, 0, 1), header_style=DIM)
    table.add_column("peer", no_wrap=True, overflow="ellipsis", max_width=PEER_CHARACTERS_MAX)
    for name in ("roles", "policy", "seen", "software", "scoring", "reputation"):
        table.add_column(name, no_wrap=True, justify="right" if name == "policy" else "left")
    for member in sorted(status.members, key=_by_role):
        ours = member.peer_id == status.peer_id
        who = Text(f"{short_peer(member.peer_id)}{' (you)' if ours else ''}")
        table.add_row(
            who.append("\n").append_text(plain_name(member.name)) if member.name else who,
            Text(plain(", ".join(member.roles), 40)),
            _version(member.policy_version),
            f"{duration_text(member.age_seconds or 0.0)} ago",
            Text(plain(member.software, 24)),
            Text(member.scoring[:8] or "-"),
            Text(member.reputation, style=BAD if member.reputation == "slashed" else GOOD),
        )
    line = f"{_members(status)}, {status.peers_connected} connected to this node"
    parts: list[RenderableType] = [Text(line)]
    if status.members:
        parts += [Text(""), table]
    if status.gossip_peers:
        parts += [Text(""), _gossip(status.gossip_peers)]
    return Group(*parts)


def _gossip(peers: Sequence[PeerRow]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 1), header_style=DIM)
    for name in ("gossip peer", "score", "level", "meshes", "backoffs", *GOSSIP_COUNTS):
        left = name in ("gossip peer", "level")
        table.add_column(name, no_wrap=True, justify="left" if left else "right")
    for peer in peers:
        table.add_row(
            short_peer(peer.peer_id),
            f"{peer.score or 0.0:.2f}",
            Text(peer.level, style=GOOD if peer.level == ScoreLevel.GOOD else BAD),
            str(len(peer.mesh)),
            str(len(peer.backoff_seconds)),
            *(f"{getattr(peer, name):g}" for name in GOSSIP_COUNTS.values()),
        )
    return table


def why_view(why: Why, which: str | None = None) -> RenderableType:
    """Return the reason of the state, failed rollouts, and versions trained on rejected ones."""
    parts: list[RenderableType] = [_state_line(why.state, why.reason)]
    if why.slashed:
        parts.append(
            Text("This node is slashed: a proven fault ended its reputation in this run.", BAD)
        )
    hidden = max(0, len(why.rollouts) - ROLLOUTS_SHOWN)
    if not why.rollouts:
        about = f" ({which})" if which else ""
        parts.append(Text(f"No rollout of this node was rejected or expired{about}.", GOOD))
    elif hidden:
        parts.append(Text(f"{hidden} older rollouts hidden; name one, or use --json.", DIM))
    parts += [Text(plain(fork), BAD) for fork in why.forks]
    parts += [Text(plain(doubt), WARN) for doubt in why.doubts]
    if why.council:
        parts.append(Text(f"Council: {plain(why.council, WARNING_CHARACTERS_MAX)}.", WARN))
    if why.refused:
        text = f"The council does not make final {plain(why.refused, WARNING_CHARACTERS_MAX)}."
        parts.append(Text(text, WARN))
    for rollout in why.rollouts[hidden:]:
        parts.extend((Text(""), _failed_rollout(rollout)))
    for found in why.trained_on_rejected:
        commits = ", ".join(commit[:16] for commit in found.commits)
        text = f"Version {found.version} of {found.trainer} was trained on rejected rollouts:"
        parts.extend((Text(""), Text(text, BAD), Padding(Text(commits), (0, 0, 0, 2))))
    return Group(*parts)


def _yours(status: NodeStatus) -> list[tuple[str, str]]:
    """Return a row with the work of this node; none for a relay, whose work no page counts."""
    own = status.yours
    if set(status.roles) <= {Role.RELAY} and not own.rank:
        return []
    return [("yours", own_work_text(own))]


def _headline(status: NodeStatus) -> Text:
    line = Text.assemble((", ".join(status.roles), "bold"), "  ")
    return line.append_text(_state_line(status.state, status.reason))


def _state_line(state: State, reason: str) -> Text:
    style = GOOD if state == "ready" else WARN
    return Text.assemble((f"● {state}", style), f"  {plain(reason)}" if reason else "")


def _swarm(status: NodeStatus) -> str:
    counts = Counter(status.members_by_role)
    roles = ", ".join(f"{counts[role]} {role}" for role in Role if counts[role])
    members = _members(status) + (f" ({roles})" if roles else "")
    banned = f", {status.peers_banned} banned" if status.peers_banned else ""
    slashed = f", {status.slashed} slashed" if status.slashed else ""
    return f"{members}, {status.peers_connected} connected{banned}{slashed}"


def _members(status: NodeStatus) -> str:
    count = status.members_count
    return f"{count} member{'s' * (count != 1)}"


def _council(council: CouncilSummary) -> list[tuple[str, str]]:
    """Return rows with the council and the leader; none before the node follows a run."""
    if not council.text:
        return []
    return [("council", council.text), ("leader", leader_text(council))]


def _policy(status: NodeStatus) -> str:
    held, newest = status.policy_version, status.policy_version_newest
    if newest < 0:
        return "none published yet"
    behind = f", {newest - held} behind the newest" if newest > held else ", the newest"
    waiting = status.tables.get("versions_waiting", 0)
    more = f"; {waiting} more pending" if waiting else ""
    final = f"; final {_version(status.council.final_version)}"
    newest_told = behind if held >= 0 else f"; the newest is {newest}"
    return f"version {_version(held)}{newest_told}{final}{more}"


def _version(version: int) -> str:
    return "none" if version < 0 else str(version)


def _reward(points: Sequence[RewardPoint]) -> str:
    rewards = [point.reward for point in points]
    if not rewards:
        return "no training step yet"
    return f"{rewards[-1]:.3f}  {reward_bars(rewards[-REWARDS_SHOWN:])}"


def reward_bars(rewards: Sequence[float]) -> str:
    """Return a character for each reward, its height from 0 to 1."""
    top = len(REWARD_BARS) - 1
    return "".join(REWARD_BARS[round(min(1.0, max(0.0, reward)) * top)] for reward in rewards)


def _traffic(status: NodeStatus) -> str:
    traffic = status.traffic
    return (
        f"since start: sent {bytes_text(traffic.blobs_sent)}, "
        f"received {bytes_text(traffic.blobs_received)} "
        f"(weights {bytes_text(traffic.weights_sent)} and {bytes_text(traffic.weights_received)}, "
        f"patches saved {bytes_text(traffic.weights_saved)}); "
        f"gossip {bytes_text(traffic.gossip_sent)} and {bytes_text(traffic.gossip_received)}"
    )


def _sending(status: NodeStatus) -> list[tuple[str, str]]:
    return [("sending", sending_text(status.receivers))] if status.receivers else []


def _arriving(status: NodeStatus) -> list[RenderableType]:
    view = downloads_view(status.arrivals)
    return [] if view is None else [Padding(view, (0, 0, 1, 2))]


def _policy_swap(status: NodeStatus) -> list[tuple[str, str]]:
    """Return a row with the policy swap latency of an inference node."""
    swap, usual = status.policy_swap, status.policy_swap_seconds_median
    if swap is None:
        return []
    text = f"version {swap.version}: weights {swap.weights_seconds:.1f} s"
    text += f", swapped {swap.swapped_seconds:.1f} s"
    if swap.first_token_seconds is not None:
        text += f", first token {swap.first_token_seconds:.1f} s"
    return [("policy swap", text if usual is None else f"{text} (median {usual:.1f} s)")]


def _loop(status: NodeStatus) -> list[tuple[str, str]]:
    """Return a row with the event loop's delay, if it is large."""
    loop = status.loop
    if loop.delay_seconds_max < LOOP_DELAY_TOLD_SECONDS:
        return []
    own = f"{loop.own_delay_seconds_max:.1f} s"
    text = f"delay at most {loop.delay_seconds_max:.1f} s; without waits for a CPU core {own}"
    return [("event loop", text)]


def _evaluation(points: Sequence[EvaluationPoint]) -> list[tuple[str, str]]:
    """Return a row with the evaluations of the first and the newest version."""
    if not points:
        return []
    told = [points[0], points[-1]] if len(points) > 1 else [points[0]]
    lines = [
        f"version {one.version}: {one.reward_mean:.3f} ({one.reward_low:.3f} to "
        f"{one.reward_high:.3f}), {one.solved_fraction:.0%} of {one.answers} answers solved"
        for one in told
    ]
    return [("held-out reward", "\n".join(lines).replace("%", " %"))]


def _training(step: TrainingStep | None) -> list[tuple[str, str]]:
    """Return a row with the newest training step of this node."""
    if step is None:
        return []
    lines = [
        [
            text.format(*(_value(step, name) for name in names)).replace("%", " %")
            for text, names in line
            if all(getattr(step, name) is not None for name in names)
        ]
        for line in STEP_TEXTS
    ]
    told = "\n".join(", ".join(line) for line in lines if line)
    return [("training", f"step {step.version}: {told}")]


def _value(step: TrainingStep, name: str) -> float | str:
    value: float = getattr(step, name)
    return bytes_text(value) if name.endswith("_bytes") else value


def _shadow(shadow: ShadowProgress) -> list[tuple[str, str]]:
    """Return a row with the steps of other trainers that this one has repeated."""
    if not (shadow.is_active or shadow.confirmed or shadow.differing):
        return []
    counts = f"{shadow.confirmed} versions confirmed, {shadow.differing} different"
    return [("shadow", f"{shadow.text}; {counts}" if shadow.text else counts)]


def _rollouts(status: NodeStatus) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style=DIM)
    table.caption = "Commits known here; old ones are forgotten."
    table.caption_justify, table.caption_style = "left", DIM
    table.add_column("rollouts", style=DIM, min_width=10)
    for name in ("committed", "certified", "rejected", "expired", "trained"):
        table.add_column(name, justify="right")
    table.add_column("rejected for")
    table.add_row("swarm", *_counts(status.rollouts))
    return table


def _counts(counts: RolloutCounts) -> tuple[Text, ...]:
    reasons = Counter(counts.rejected_reasons).most_common(3)
    return (
        Text(str(counts.committed)),
        Text(str(counts.certified), style=GOOD if counts.certified else DIM),
        Text(str(counts.rejected), style=BAD if counts.rejected else DIM),
        Text(str(counts.expired), style=WARN if counts.expired else DIM),
        Text(str(counts.trained)),
        Text(plain(", ".join(f"{reason} {count}" for reason, count in reasons), 60)),
    )


def _by_role(member: PeerRow) -> tuple[int, str]:
    ranks = [rank for rank, role in enumerate(Role) if role in member.roles]
    return (ranks[0] if ranks else len(Role)), member.peer_id


def _failed_rollout(rollout: RolloutDetail) -> RenderableType:
    row = rollout.row
    title = Text.assemble(
        (row.commit[:16], "bold"),
        f"  version {row.version}, slot {row.slot}, epoch {row.epoch}  ",
        (row.state, BAD if row.state == "rejected" else WARN),
        f": {plain(row.reason)}",
    )
    table = Table.grid(padding=(0, 2))
    for verdict in rollout.verdicts:
        table.add_row(
            Text("accept" if verdict.accept else "reject", GOOD if verdict.accept else BAD),
            Text(short_peer(verdict.validator)),
            Text(_findings(verdict, row.reason)),
            Text(f"verdict {verdict.evidence[:16]}", style=DIM),
        )
    return Group(title, Padding(table, (0, 0, 0, 2)))


def _findings(verdict: VerdictDetail, told: str) -> str:
    """Return the rejection reason, unless it is ``told``, and the measured quantities."""
    reason = "" if verdict.accept or verdict.reason == told else verdict.reason
    detail = "" if verdict.accept else verdict.detail
    measured = [
        f"{one.name.replace('_', ' ')} {math.inf if one.value is None else one.value:.3g}, "
        f"at most {one.allowed:.3g}"
        for one in sorted(verdict.measured, key=lambda one: -one.share)
        if one.name not in detail
    ]
    shown = measured[:QUANTITIES_SHOWN]
    return plain("; ".join(filter(None, (reason, detail, *shown))), FINDINGS_CHARACTERS_MAX)
