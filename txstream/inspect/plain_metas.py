"""A topology's progress without the spout's code: metas stay the JSON objects that are stored.

This is a module of its own because it needs Arrow, and most commands can start without waiting for Arrow.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from txstream.core.batch_metas import BatchMetas, MetaCodec

if TYPE_CHECKING:
    from txstream.api.topology import Topology
    from txstream.zookeeper import Identity

_OWN_SOURCES = "txstream.spouts."


class PlainCodec(MetaCodec[Mapping[str, Any]]):
    """Reads metas as the JSON objects that are stored."""

    def __init__(self) -> None:
        # Without the parent's constructor, which reads the fields of a dataclass.
        self.meta_type = dict

    def encode_meta(self, meta: Mapping[str, Any]) -> dict[str, Any]:
        return dict(meta)

    def decode_meta(self, document: Any, where: str) -> Mapping[str, Any]:
        return dict(document) if isinstance(document, dict) else {"value": document}


def positions(batch: BatchMetas[Any]) -> dict[str, Any]:
    """Return where every partition stands after a batch: the next offset if the meta has one, None if that is
    not known yet."""
    return {partition: position(meta) for partition, meta in sorted(batch.positions().items())}


def position(meta: Any) -> Any:
    """Return where a partition stands after this meta: see `positions`."""
    if not isinstance(meta, Mapping) or "end" not in meta:
        return meta
    return None if meta.get("first_place") == "unknown" else meta["end"]


def codec_of(identity: Identity | None, topology: Topology | None) -> MetaCodec[Any]:
    """Return the codec for a topology's metas: that of its code, that of a source that comes with txstream,
    or else plain JSON."""
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
