"""Data directories of a tiny run's nodes, with different versions and all signed messages."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file

from node.founding.task import import_task
from node.local.datadir import open_data_dir
from node.local.run_pin import pin_run
from node.models.held import HeldRun, open_held_run
from node.replication.ledger_log import LedgerLog
from node.storage.state import MESSAGES_TABLE, PAGES_TABLE, SqliteStore
from protocol.consensus.council import encode_chain
from protocol.consensus.member import Contents
from protocol.run.manifest import RunManifest, sign_manifest
from protocol.run.recipe import Recipe
from roles.engines.bootstrap.huggingface_import import import_directory
from roles.engines.files.policy import DTYPES, write_policy
from roles.ports.storage import Put
from tests.roles.engines.huggingface import write_directory
from tests.worlds.messages import GENESIS_AT, World, identity, run_manifest
from tests.worlds.page_book import PageBook
from tests.worlds.text import byte_tokenizer

TEXT = {"name": "math/sums", "system": "Be brief."}

LICENCE = '---\nlicense: "apache-2.0"\nbase: other\n---\n\n# A model\n\nlicense: mit\n'


@dataclass
class Held:
    """The data directory ``root`` of a node that holds ``versions``, and its run's base model."""

    root: Path
    base: Path
    world: World
    policies: dict[int, Path]

    @property
    def run(self) -> HeldRun:
        return open_held_run(self.root)


FINAL_EPOCH = 12
"""Newest final page of a ``held_run`` with a final version."""


def held_run(
    directory, *, dtype="fp32", versions=(0, 2, 3), dataset=None, final=None, **sections
) -> Held:
    """Make a run with versions 0 to 3 and the directory of a node that holds some of them.

    Its final pages name all rollouts and the version ``final`` (-1: none); None: it has none.

    Its task is over characters unless ``sections`` has another ``environment``.
    """
    directory.mkdir(exist_ok=True)
    in_text = "environment" in sections
    config = {"vocab_size": 300, "eos_token_id": [256, 1]} if in_text else {}
    base = write_directory(directory / "base", tie_word_embeddings=in_text, **config)
    if in_text:
        byte_tokenizer(base)
        (base / "README.md").write_text(LICENCE)
        (base / "LICENSE").write_text("Apache License")
    drafted = run_manifest(model={"dtype": dtype}, **sections)
    policy = directory / "v0"
    section, first = import_directory(base, drafted.model, policy, in_text=in_text)
    rules = Recipe.model_validate(
        {**drafted.model_dump(exclude={"genesis"}), "model": section.model_dump()}
    )
    data = open_data_dir(directory / "data")
    task = import_task(base, dataset, rules, data.task)
    genesis = drafted.genesis.model_copy(update={"policy": first.hex(), "files": task.files})
    world = World(RunManifest(**{**dict(rules), "genesis": genesis}))
    pin_run(data, sign_manifest(world.manifest, identity("creator")))
    policies = {0: policy, **{n: directory / f"v{n}" for n in (1, 2, 3)}}
    rows = _trained(world, policies, DTYPES[dtype], final)
    asyncio.run(_stored(data.state, *rows))
    data.weights.mkdir()
    for version in versions:
        place = data.genesis if version == 0 else data.weights / f"v{version}.safetensors"
        place.hardlink_to(policies[version])
    return Held(data.root, base, world, policies)


def _trained(world, policies, dtype, final):
    """Write versions 1 to 3, each from certified rollouts.

    Returns messages, encoded pages, and the intake that has counted the final ones.
    """
    parent = world.genesis()
    commits = [
        *world.chain(world.workers[0], 2, checkpoint=parent.digest),
        *world.chain(world.workers[1], 1, checkpoint=parent.digest, tokens=7),
    ]
    checkpoints = [parent]
    for version, commit in enumerate(commits, start=1):
        tensors = load_file(policies[version - 1])
        moved = {name: tensor * 1.25 for name, tensor in tensors.items()}
        made = write_policy(moved, policies[version], dtype)
        checkpoints.append(
            world.checkpoint(
                checkpoints[-1],
                policy=made,
                batch=(commit.digest,),
                reward_mean=250_000 * version,
                created_at=(GENESIS_AT + 60 * version) * 1000,
            )
        )
    if final is not None:
        digests = tuple(one.digest for one in commits)
        contents = {
            1: Contents(commits=digests),
            5: Contents(certified=digests),
            8: Contents(head=None if final < 0 else checkpoints[final].digest),
        }
        world.book = PageBook(world.manifest, world.validators, contents)
    certificates = [world.certificate(commit) for commit in commits]
    chains = [encode_chain(world.book.drawing(commit).to_offer()) for commit in commits]
    replica = world.replica(roster_at=None, pages_to=0 if final is None else FINAL_EPOCH + 1)
    if final is not None:
        chains = list(replica.chains())
    envelopes = [one.envelope for one in (*commits, *checkpoints, *certificates)]
    return envelopes, chains, replica.intake


async def _stored(path, envelopes, chains, intake):
    store = SqliteStore(path)
    for table, values in ((MESSAGES_TABLE, envelopes), (PAGES_TABLE, chains)):
        await store.commit([Put(table, n.to_bytes(8, "big"), one) for n, one in enumerate(values)])
    await LedgerLog(store, intake.open_page).flush(intake.ledger)
    store.close()
