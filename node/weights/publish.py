"""What others can have of a version: its encoding, and its file from nodes that patched it."""

from typing import NamedTuple

import structlog

from node.context import Ports
from protocol.core.types import Digest
from protocol.messages import Encoding
from protocol.run.recipe import ShardcastSection
from roles.ports.engines import Patch, Policy
from roles.ports.storage import Owner, Purpose, StorageFullError

log = structlog.get_logger()

ENCODING_PAYS = 0.9
"""An encoding that is longer than this share of the file is not worth its time; a guess."""


class Published(NamedTuple):
    """What a manifest says of a version's encoding, and what engines here can apply of it."""

    encoding: Encoding | None = None
    patch: Patch | None = None


async def publish_encoding(
    ports: Ports, rules: ShardcastSection, policy: Policy, base: Policy | None
) -> Published:
    """Publish a version as a patch of the one before it, the first one by itself, if it pays.

    Everybody takes the first one at once; later, whoever needs a file takes it from many. Raises
    ``StorageFullError``.
    """
    if base is None and policy.version > 0:
        return Published()
    files, path = ports.files, ports.files.encoding(policy.version)
    patch = None
    try:
        made = await files.encode(policy.path, base, path)
        if made is None or (files.size(path) or 0) > ENCODING_PAYS * (files.size(policy.path) or 0):
            return Published()
        stored = await ports.blobs.put_file(
            path, rules.shard_bytes, rules.chunk_bytes, Purpose.WEIGHTS
        )
        patch = None if base is None else Patch(base.digest, path, made)
    except ValueError as error:
        log.warning("no encoding", version=policy.version, error=str(error))
        return Published()
    finally:
        if patch is None:
            await files.delete(path)
    encoding = Encoding(
        base_version=-1 if base is None else base.version,
        base=b"" if base is None else base.digest,
        index=stored.digest,
        index_bytes=stored.index_bytes,
        total_bytes=stored.total_bytes,
    )
    return Published(encoding, patch)


async def offer_file(ports: Ports, rules: ShardcastSection, policy: Policy, index: Digest) -> None:
    """Make blobs of the file of a version that newcomers begin with."""
    try:
        stored = await ports.blobs.put_file(
            policy.path, rules.shard_bytes, rules.chunk_bytes, Purpose.WEIGHTS
        )
    except (StorageFullError, ValueError) as error:  # others offer it
        log.warning("a version's file is not offered", version=policy.version, error=str(error))
        return
    if stored.digest != index:
        log.error("a version's file is not what its trainer signed", version=policy.version)
        await ports.blobs.release(Owner(Purpose.WEIGHTS, stored.digest))
