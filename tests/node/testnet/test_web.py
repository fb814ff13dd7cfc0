"""Web pages of a testnet, over nodes with real sockets."""

import asyncio
import json
from dataclasses import replace

import httpx
import pytest

from node.api.server import ControlServer
from node.api.v1.recording import Recording
from node.local.datadir import open_data_dir
from node.testnet.plan import Options
from node.testnet.poll import StatusSample
from node.testnet.record import SwarmRecord
from node.testnet.web import SwarmPages
from protocol.core.types import Role
from tests.browser.states import ready, trainer
from tests.live.waiting import PATIENCE_SECONDS
from tests.node.testnet.testnet_swarms import STARTED_AT, plans, status

TEXTLESS = ready()
TEXTLESS = replace(
    TEXTLESS, rollouts=tuple(replace(one, sequences=()) for one in TEXTLESS.rollouts)
)


class Swarm:
    """A testnet in this loop: its record, and the servers of its started nodes."""

    def __init__(self, directory):
        self.record = SwarmRecord(STARTED_AT)
        self.plans = {plan.name: plan for plan in plans(Options(directory, cheaters=1))}
        for plan in self.plans.values():
            self.record.add(plan)
        self.servers = {}
        self.pages = SwarmPages(self.record, lambda: "testnet")

    async def start(self, name, recorded):
        plan = self.plans[name]
        server = ControlServer(
            lambda: status(plan),
            lambda: None,
            datadir=open_data_dir(plan.directory),
            source=Recording(replace(recorded, title=name), boot=name),
        )
        await server.start()
        self.servers[name] = server
        self.record.observe(name, StatusSample(1, True, status(plan)))

    async def stop(self):
        await self.pages.stop()
        for server in self.servers.values():
            await server.stop()


@pytest.fixture
async def swarm(tmp_path):
    swarm = Swarm(tmp_path)
    yield swarm
    await swarm.stop()


async def ask(swarm, path, **options):
    async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
        return await client.get(swarm.url + path, **options)


async def test_any_node_answers_and_one_can_be_asked_by_name(swarm):
    await swarm.start("inference-1", ready(versions=40))
    await swarm.start("validator-2", ready(versions=43))
    swarm.url = await swarm.pages.start()
    assert (await ask(swarm, "")).status_code == 200
    meta = (await ask(swarm, "api/v1/meta")).json()
    named = {one["name"]: one for one in meta["nodes"]}
    assert list(named) == list(swarm.plans)
    assert named["stale-weights"]["note"] == "dishonest"
    assert (named["validator-2"]["condition"], named["trainer-1"]["condition"]) == (
        "running",
        "waiting",
    )
    assert (await ask(swarm, "api/v1/overview")).json()["policy_version_newest"] == 43
    asked = await ask(swarm, "api/v1/overview?node=inference-1")
    assert asked.json()["policy_version_newest"] == 40
    rows = (await ask(swarm, "api/v1/rollouts?state=rejected&limit=2")).json()["rows"]
    assert {row["state"] for row in rows} == {"rejected"}
    assert (await ask(swarm, "api/v1/rollouts?limit=0")).status_code == 400


async def test_the_next_node_answers_when_one_is_gone(swarm):
    await swarm.start("validator-1", ready(versions=43))
    await swarm.start("inference-1", ready(versions=40))
    swarm.url = await swarm.pages.start()
    await swarm.servers.pop("validator-1").stop()
    assert (await ask(swarm, "api/v1/overview")).json()["policy_version_newest"] == 40
    await swarm.servers.pop("inference-1").stop()
    assert (await ask(swarm, "api/v1/overview")).status_code == 503
    await swarm.start("validator-1", ready(versions=45))
    assert (await ask(swarm, "api/v1/overview")).json()["policy_version_newest"] == 45


async def test_a_rollout_is_told_by_the_node_that_has_its_text(swarm):
    await swarm.start("validator-1", TEXTLESS)
    await swarm.start("validator-2", ready())
    swarm.url = await swarm.pages.start()
    commit = TEXTLESS.rollouts[0].row.commit
    assert (await ask(swarm, f"api/v1/rollouts/{commit}")).json()["sequences"]
    assert (await ask(swarm, "api/v1/rollouts/nothing")).status_code == 404
    await swarm.servers.pop("validator-2").stop()
    known = (await ask(swarm, f"api/v1/rollouts/{commit}")).json()
    assert known["row"]["commit"] == commit and known["sequences"] == []


async def test_the_stream_is_a_nodes_and_resumes_where_it_was(swarm):
    await swarm.start("validator-1", ready())
    swarm.url = await swarm.pages.start()
    happened = Recording(ready()).event_log.number
    async with (
        httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        headers = {"Last-Event-ID": f"validator-1-{happened - 1}"}
        url = f"{swarm.url}api/v1/stream"
        async with client.stream("GET", url, headers=headers) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            ids = []
            async for line in answer.aiter_lines():
                if line.startswith("id: "):
                    ids.append(line[4:])
                if line.startswith("data: ") and "certified" in json.loads(line[6:]):
                    break
    assert ids == [f"validator-1-{happened}"]


async def test_pages_of_a_testnet_take_no_foreign_name(swarm):
    await swarm.start("validator-1", ready())
    swarm.url = await swarm.pages.start()
    refused = await ask(swarm, "api/v1/overview", headers={"host": "evil.example"})
    assert refused.status_code == 400
    assert swarm.plans["validator-1"].role == Role.VALIDATOR


async def test_a_trainer_is_asked_about_training(swarm):
    await swarm.start("validator-1", ready(versions=40))
    await swarm.start("trainer-1", trainer(versions=40))
    swarm.url = await swarm.pages.start()
    assert (await ask(swarm, "api/v1/training")).json()["newest"]["version"] == 40
    named = (await ask(swarm, "api/v1/training?node=validator-1")).json()
    assert named["newest"] is None
