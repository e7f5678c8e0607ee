"""`BatchMetas`: what one batch holds, partition by partition, and where every other partition stands.

Invariant: `positions()` of a batch has every partition that any batch before it had, so the next plan can
start from this batch alone, however many batches are in flight and whatever a batch left out.

Stored as JSON, in ZooKeeper and in the ledger: people can read it, and reading it runs no code.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from txstream.api.errors import CorruptStateError, TopologyError

if TYPE_CHECKING:
    from txstream.api.spouts import Unavailable

Meta = TypeVar("Meta")

_EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BatchMetas(Generic[Meta]):
    """`partitions` are read in this batch, `carried` only keep their place, `unavailable` says why a
    partition was left out."""

    partitions: Mapping[str, Meta] = field(default_factory=lambda: _EMPTY)
    carried: Mapping[str, Meta] = field(default_factory=lambda: _EMPTY)
    unavailable: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    # What `MetaCodec.encode` made of it: the plan's check, the ledger and ZooKeeper all need it.
    _encoded: list[Encoded] = field(default_factory=list, init=False, repr=False, compare=False)

    @classmethod
    def from_plan(cls, last: Mapping[str, Meta], plan: Mapping[str, Meta | Unavailable]) -> BatchMetas[Meta]:
        """The metas of a batch, from the places before it and what the spout's coordinator answered."""
        # Only here: pyarrow comes with it, and a command that asks ZooKeeper alone does without.
        from txstream.api.spouts import Unavailable

        partitions: dict[str, Meta] = {}
        carried = dict(last)
        unavailable: dict[str, str] = {}
        for partition, meta in plan.items():
            if isinstance(meta, Unavailable):
                unavailable[partition] = meta.reason
            elif is_empty(meta):
                carried[partition] = meta
            else:
                partitions[partition] = meta
                carried.pop(partition, None)
        return cls(partitions, carried, unavailable)

    def positions(self) -> Mapping[str, Meta]:
        """For every partition known so far, the meta that its place is at."""
        return {**self.carried, **self.partitions}

    @property
    def has_work(self) -> bool:
        """Does any partition have something in this batch?"""
        return bool(self.partitions)


def is_empty(meta: Any) -> bool:
    """A meta may say that it takes nothing and only holds a place, by a property `is_empty`."""
    return bool(getattr(meta, "is_empty", False))


class MetaCodec(Generic[Meta]):
    """Metas to JSON and back, for one meta type (a dataclass of JSON values).

    A field that is missing takes its default; an unknown one, a wrong type or anything else unexpected is
    CorruptStateError, which names `where`.
    """

    def __init__(self, meta_type: type[Meta]) -> None:
        if not isinstance(meta_type, type) or not _is_frozen_dataclass(meta_type):
            raise TopologyError(f"meta_type {meta_type!r} must be a frozen dataclass of JSON values")
        self.meta_type = meta_type
        kind: Any = meta_type
        self._fields: Mapping[str, frozenset[type]] = _fields_of(kind)

    def encode(self, metas: BatchMetas[Meta]) -> Encoded:
        """JSON values, made once; empty parts are left out."""
        if metas._encoded:
            return metas._encoded[0]
        document = Encoded(partitions={p: self.encode_meta(m) for p, m in metas.partitions.items()})
        if metas.carried:
            document["carried"] = {p: self.encode_meta(m) for p, m in metas.carried.items()}
        if metas.unavailable:
            document["unavailable"] = dict(metas.unavailable)
        metas._encoded.append(document)
        return document

    def encode_meta(self, meta: Meta) -> dict[str, Any]:
        # Not dataclasses.asdict: its deep copies are most of the cost of a batch over many partitions.
        return {name: getattr(meta, name) for name in self._fields}

    def decode(self, document: Any, where: str) -> BatchMetas[Meta]:
        """The inverse of `encode`. Raises CorruptStateError, naming `where`."""
        if not isinstance(document, dict):
            raise CorruptStateError(
                f"{where}: expected a JSON object with a batch's metas, found {document!r:.200}"
            )
        unknown = set(document) - {"partitions", "carried", "unavailable"}
        if unknown or "partitions" not in document:
            raise CorruptStateError(
                f"{where}: a batch's metas have 'partitions' and may have 'carried' and 'unavailable', "
                f"found {sorted(document)}"
            )
        parts = {name: document.get(name, {}) for name in ("partitions", "carried", "unavailable")}
        for name, part in parts.items():
            if not isinstance(part, dict):
                raise CorruptStateError(f"{where}: {name!r} must be a JSON object, found {part!r:.200}")
        return BatchMetas(
            {p: self.decode_meta(m, f"{where}, partition {p!r}") for p, m in parts["partitions"].items()},
            {p: self.decode_meta(m, f"{where}, partition {p!r}") for p, m in parts["carried"].items()},
            {str(p): str(reason) for p, reason in parts["unavailable"].items()},
        )

    def decode_meta(self, document: Any, where: str) -> Meta:
        if not isinstance(document, dict):
            raise CorruptStateError(f"{where}: expected a JSON object, found {document!r:.200}")
        if not document.keys() <= self._fields.keys():
            unknown = ", ".join(sorted(document.keys() - self._fields.keys()))
            raise CorruptStateError(
                f"{where}: unknown field {unknown} in a {self.meta_type.__name__}; "
                f"it was written by a newer version or by another spout"
            )
        for name, value in document.items():
            allowed = self._fields[name]
            # Exactly one of them, because JSON's true and false are ints to isinstance.
            if allowed and type(value) not in allowed:
                raise CorruptStateError(
                    f"{where}: {name!r} of a {self.meta_type.__name__} must be "
                    f"{' or '.join(sorted(kind.__name__ for kind in allowed))}, found {value!r:.200}"
                )
        try:
            return self.meta_type(**document)
        except (TypeError, ValueError) as error:
            raise CorruptStateError(
                f"{where}: {document!r:.200} is not a {self.meta_type.__name__}: {error}"
            ) from error


def _is_frozen_dataclass(meta_type: type[Any]) -> bool:
    parameters = getattr(meta_type, "__dataclass_params__", None)
    return bool(parameters is not None and parameters.frozen)


@functools.cache
def _fields_of(meta_type: type[Any]) -> Mapping[str, frozenset[type]]:
    """What JSON may hold for each field; looking it up costs more than a batch's metas."""
    hints = typing.get_type_hints(meta_type)
    return {field.name: _json_types(hints[field.name]) for field in dataclasses.fields(meta_type)}


def _json_types(hint: Any) -> frozenset[type]:
    """What JSON may hold for a field of this type; empty where that cannot be told."""
    if isinstance(hint, typing.NewType):
        return _json_types(hint.__supertype__)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        members = [_json_types(member) for member in typing.get_args(hint)]
        return frozenset().union(*members) if all(members) else frozenset()
    if hint is float:
        return frozenset((float, int))
    hint = origin or hint
    return frozenset((hint,)) if hint in (bool, int, str, list, dict, type(None)) else frozenset()


class Encoded(dict[str, Any]):
    """A document that nobody changes any more: its JSON is made once."""

    @functools.cached_property
    def json(self) -> str:
        return _JSON.encode(self)


def to_json(document: Any) -> str:
    """One spelling for everything stored, so that equal documents are equal strings."""
    return document.json if isinstance(document, Encoded) else _JSON.encode(document)


# `json.dumps` makes one for each call.
_JSON = json.JSONEncoder(separators=(",", ":"), sort_keys=True, ensure_ascii=False)
