"""Recorded node views for the pages, made without changing the run."""

import asyncio
import time

import pytest

from node.api.v1.queries import RolloutQuery
from node.api.v1.recording import Recording, read_recording, write_recording
from simulations.report.view import ViewRecorder
from simulations.study.study import RunPlan, run_plan

pytestmark = pytest.mark.long

PLAN = RunPlan("byzantine-inference", seed=0, minutes=1.2)


def test_a_report_shows_what_an_honest_node_saw_and_the_run_is_the_same(tmp_path):
    recorder = ViewRecorder()
    watched = run_plan(PLAN, clock=time.perf_counter, actors=(recorder,))
    alone = run_plan(PLAN, clock=time.perf_counter)
    assert watched.result.trace_digest == alone.result.trace_digest
    write_recording(tmp_path, recorder.recorded)
    seen = Recording(read_recording(tmp_path))
    overview = seen.overview()
    assert overview.state == "ready" and overview.roles == ("validator",)
    assert 0 < overview.rollouts.certified <= watched.result.rollouts.certified
    page = asyncio.run(seen.rollouts(RolloutQuery(state="certified")))
    shown = [asyncio.run(seen.rollout(row.commit)) for row in page.rows]
    assert any(one.sequences for one in shown), "no rollout is told in words"
    contributors = seen.contributors()
    assert contributors.rollouts > 0
    assert all(row.name for row in contributors.rows)
    kinds = {one.kind for one in recorder.recorded.happened}
    assert {"slashed", "leader"} <= kinds
    assert len(seen.history().at) > 40
