"""What a topology was when it was first run. Its code may change; this may not, but for added states."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from txstream.core.batch_metas import to_json
from txstream.core.errors import CorruptStateError
from txstream.core.semantics import Semantics
from txstream.zookeeper.znode_values import parse_object, take, take_strings

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """`uuid` tells two topologies of one id apart, in every database. `spout` is a class path. `source` is
    what must not change about it, as JSON values (Kafka: the topics). `created_at` is ISO 8601 in UTC."""

    uuid: str
    format: int
    semantics: Semantics
    spout: str
    source: Mapping[str, Any] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    created_at: str = ""

    @classmethod
    def new(
        cls, semantics: Semantics, spout: str, source: Mapping[str, Any], tables: tuple[str, ...]
    ) -> Identity:
        """Return the identity of a topology that is run for the first time, with a new uuid."""
        created_at = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(str(uuid.uuid4()), FORMAT, semantics, spout, dict(source), tuple(tables), created_at)

    @property
    def is_tracked(self) -> bool:
        """Whether this is a topology of tracked tuples, which stores no progress and has no states."""
        return "tracked" in self.source

    @property
    def kind(self) -> str:
        """The semantics, or "tracked" for a topology of tracked tuples."""
        return "tracked" if self.is_tracked else str(self.semantics)

    def differences(self, other: Identity) -> list[str]:
        """Return how `other`, the code to be run now, differs from this one, a sentence each; empty if it is
        the same topology. Uuid, format and creation time are not compared: they are not the code's."""
        sentences = []
        if self.spout != other.spout:
            sentences.append(f"the spout was {self.spout} and is {other.spout} now")
        for name in sorted({*self.source, *other.source}):
            before, now = (to_json(source.get(name)) for source in (self.source, other.source))
            if before != now:
                sentences.append(f"the source's {name} was {before} and is {now} now")
        if self.semantics is not other.semantics:
            sentences.append(f"the semantics was {self.semantics} and is {other.semantics} now")
        if sorted(self.tables) != sorted(other.tables):
            sentences.append(
                f"the state tables were {_listed(self.tables)} and are {_listed(other.tables)} now"
            )
        return sentences

    def to_document(self) -> dict[str, Any]:
        """Return the identity as JSON values."""
        return {
            "uuid": self.uuid,
            "format": self.format,
            "semantics": str(self.semantics),
            "spout": self.spout,
            "source": dict(self.source),
            "tables": list(self.tables),
            "created_at": self.created_at,
        }

    def encode(self) -> bytes:
        return to_json(self.to_document()).encode()

    @classmethod
    @functools.lru_cache(maxsize=16)
    def decode(cls, data: bytes, path: str) -> Identity:
        """The inverse of `encode`. Raises CorruptStateError, naming `path`."""
        document = parse_object(data, path)
        written = take(document, "format", int, path)
        if written != FORMAT:
            raise CorruptStateError(
                f"{path}: written in format {written}, this txstream reads format {FORMAT}; "
                "run the version of txstream that wrote it"
            )
        unknown = sorted(set(document) - set(cls.__dataclass_fields__))
        if unknown:
            raise CorruptStateError(f"{path}: unknown field {', '.join(unknown)} in a topology's identity")
        semantics = take(document, "semantics", str, path)
        if semantics not in set(Semantics):
            raise CorruptStateError(f"{path}: {semantics!r} is none of {', '.join(Semantics)}")
        try:
            uuid.UUID(take(document, "uuid", str, path))
        except ValueError as error:
            raise CorruptStateError(f"{path}: 'uuid' is not one: {document['uuid']!r:.100}") from error
        return cls(
            document["uuid"],
            written,
            Semantics(semantics),
            take(document, "spout", str, path),
            take(document, "source", dict, path),
            take_strings(document, "tables", path),
            take(document, "created_at", str, path),
        )


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(sorted(names)) if names else "none"
