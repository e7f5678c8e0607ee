"""A topology's progress without the spout's code: metas stay the JSON objects that they are stored as.

A module of its own because it needs Arrow, which most commands' start need not wait for.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from txstream.batch_metas import BatchMetas, MetaCodec

if TYPE_CHECKING:
    from txstream.api.topology import Topology
    from txstream.zookeeper import Identity

_OWN_SOURCES = "txstream.spouts."


class PlainCodec(MetaCodec[Mapping[str, Any]]):
    """Metas as the JSON objects that they are stored as."""

    def __init__(self) -> None:
        # The parent's reads the fields of a dataclass.
        self.meta_type = dict

    def encode_meta(self, meta: Mapping[str, Any]) -> dict[str, Any]:
        return dict(meta)

    def decode_meta(self, document: Any, where: str) -> Mapping[str, Any]:
        return dict(document) if isinstance(document, dict) else {"value": document}


def positions(batch: BatchMetas[Any]) -> dict[str, Any]:
    """Where every partition stands after a batch: the next offset where the meta says it."""
    return {
        partition: meta["end"] if isinstance(meta, Mapping) and "end" in meta else meta
        for partition, meta in sorted(batch.positions().items())
    }


def codec_of(identity: Identity | None, topology: Topology | None) -> MetaCodec[Any]:
    """What reads a topology's metas: by its code, by the class of a source that comes with txstream, and
    otherwise as plain JSON."""
    if identity is not None and identity.is_tracked:
        return PlainCodec()
    if topology is not None:
        return MetaCodec(topology.spout.source.meta_type)
    if identity is not None and identity.spout.startswith(_OWN_SOURCES):
        module, _, name = identity.spout.rpartition(".")
        source = getattr(importlib.import_module(module), name, None)
        if source is not None:
            return MetaCodec(source.meta_type)
    return PlainCodec()
