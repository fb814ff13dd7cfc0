"""Publication of a version: its encoding, and its file on nodes that patched it."""

from typing import NamedTuple

import structlog

from node.context import Ports
from protocol.core.types import Digest
from protocol.messages import Encoding
from protocol.run.recipe import ShardcastSection
from protocol.shardcast.encodings import ENCODING_PAYS
from roles.ports.engines import Patch, Policy
from roles.ports.storage import Owner, Purpose, StorageFullError

log = structlog.get_logger()


class Published(NamedTuple):
    """Encoding for the manifest, and patch for the engines of this node."""

    encoding: Encoding | None = None
    patch: Patch | None = None


async def publish_encoding(
    ports: Ports, rules: ShardcastSection, policy: Policy, base: Policy | None
) -> Published:
    """Publish a version as a patch of the one before it, the first as byte planes, if shorter.

    All nodes fetch the first version at once; later files have many sources. Raises
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
        log.warning("encoding not published", version=policy.version, error=str(error))
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
    """Store the file of a version as blobs, so that new nodes can start from it."""
    try:
        stored = await ports.blobs.put_file(
            policy.path, rules.shard_bytes, rules.chunk_bytes, Purpose.WEIGHTS
        )
    except (StorageFullError, ValueError) as error:  # other nodes offer it
        log.warning("file not published", version=policy.version, error=str(error))
        return
    if stored.digest != index:
        log.error("file differs from the signed one", version=policy.version)
        await ports.blobs.release(Owner(Purpose.WEIGHTS, stored.digest))
