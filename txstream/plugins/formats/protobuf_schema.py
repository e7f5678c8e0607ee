"""Protobuf messages: read from where the user has them, and mapped to Arrow types. docs/formats.md has the
table.

A message type is kept as serialized descriptors and a name, so that executors need none of the user's
generated modules. What cannot be a column is refused here, when the topology is built.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from importlib.resources import files as files_of
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from txstream.core.errors import SchemaError, UsageError

_TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
}
_KNOWN_IMPORTS = "google/protobuf/"
_SIMPLE: Mapping[str, pa.DataType] = {
    "BOOL": pa.bool_(),
    "BYTES": pa.binary(),
    "DOUBLE": pa.float64(),
    "ENUM": pa.string(),
    "FIXED32": pa.int64(),
    "FIXED64": pa.decimal128(20, 0),
    "FLOAT": pa.float32(),
    "INT32": pa.int32(),
    "INT64": pa.int64(),
    "SFIXED32": pa.int32(),
    "SFIXED64": pa.int64(),
    "SINT32": pa.int32(),
    "SINT64": pa.int64(),
    "STRING": pa.string(),
    "UINT32": pa.int64(),
    "UINT64": pa.decimal128(20, 0),
}


@dataclass(frozen=True)
class MessageType:
    """A message type: a serialized FileDescriptorSet, every file after those that it imports, and a name."""

    files: bytes = field(repr=False)
    name: str

    @property
    def descriptor(self) -> Any:
        return _pool(self.files).FindMessageTypeByName(self.name)

    @property
    def message_class(self) -> Any:
        """The class of its messages. It belongs to a pool of its own, beside the user's generated classes."""
        from google.protobuf import message_factory

        return message_factory.GetMessageClass(self.descriptor)


def protobuf() -> Any:
    """Return protobuf's module of descriptors. Raises UsageError if protobuf is not installed."""
    try:
        from google.protobuf import descriptor_pb2
    except ImportError as error:
        raise UsageError(
            "Protobuf needs the package protobuf, which is not installed; type pip install "
            "'txstream[protobuf]', where the workers run too"
        ) from error
    return descriptor_pb2


@lru_cache(maxsize=256)
def _pool(files: bytes) -> Any:
    from google.protobuf import descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    for file in protobuf().FileDescriptorSet.FromString(files).file:
        pool.Add(file)
    return pool


def message_type(given: Any) -> MessageType:
    """Return the type that a user gives as a generated message class, or as the pair of a file and a
    message's full name. The file is a .proto, or what `protoc --include_imports --descriptor_set_out` wrote.
    Raises SchemaError, and UsageError for a .proto without a compiler."""
    module = protobuf()
    descriptor: Any = getattr(given, "DESCRIPTOR", None)
    if isinstance(given, type) and hasattr(descriptor, "fields_by_number"):
        files = module.FileDescriptorSet()
        for file in _with_imports(descriptor.file):
            file.CopyToProto(files.file.add())
        return MessageType(files.SerializeToString(deterministic=True), descriptor.full_name)
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], str)):
        raise SchemaError(
            "a Protobuf schema is given as a generated message class, or as the pair of a file and a "
            f"message's full name, ('orders.proto', 'shop.Order'), not as {type(given).__name__}"
        )
    path, name = given
    try:
        if Path(path).suffix == ".proto":
            Path(path).read_bytes()  # raises what protoc would only print
            found = _compiled_in(Path(path).parent, Path(path).name, "schema is a .proto file;")
        else:
            found = module.FileDescriptorSet.FromString(Path(path).read_bytes())
        checked = MessageType(found.SerializeToString(deterministic=True), name)
        pool = _pool(checked.files)
    except UsageError:
        raise
    except Exception as error:  # protobuf raises what it meets in a file that is no descriptor set
        raise SchemaError(
            f"{str(path)!r} cannot be read as a schema ({type(error).__name__}: {error}); give a .proto "
            f"file, or what protoc --include_imports --descriptor_set_out={Path(path).stem}.desc makes of one"
        ) from error
    try:
        pool.FindMessageTypeByName(name)
    except KeyError:
        known = sorted(_names(found))
        raise SchemaError(f"{str(path)!r} has no message {name!r}; it has {', '.join(known)}") from None
    return checked


def _with_imports(file: Any) -> Iterator[Any]:
    found: dict[str, Any] = {}

    def add(one: Any) -> None:
        if one.name not in found:
            for imported in one.dependencies:
                add(imported)
            found[one.name] = one

    add(file)
    return iter(found.values())


def _names(files: Any) -> Iterator[str]:
    for file in files.file:
        for message in file.message_type:
            yield f"{file.package}.{message.name}".lstrip(".")


def registered_file(text: str, references: Sequence[tuple[str, str]], name: str) -> tuple[bytes, Any]:
    """Return serialized descriptors of a schema from a registry with all that it imports, and its own file's
    descriptor. `text` and `references` are descriptors in base64 or, from a registry that has none, sources.
    Raises ValueError for what is neither, UsageError for sources without a compiler."""
    try:
        main = base64.b64decode(text, validate=True)
    except ValueError:
        files = compiled([*references, (name, text)], name)
        return files.SerializeToString(deterministic=True), files.file[-1]
    module = protobuf()
    files = module.FileDescriptorSet()
    added: set[str] = set()

    def add_known(path: str) -> None:
        """Add a file of Google's. These are never registered: protobuf has them."""
        if path in added or not path.startswith(_KNOWN_IMPORTS):
            return
        known = import_module(f"{path.removesuffix('.proto').replace('/', '.')}_pb2")
        for file in _with_imports(known.DESCRIPTOR):
            if file.name not in added:
                added.add(file.name)
                file.CopyToProto(files.file.add())

    for path, data in [*((path, base64.b64decode(one)) for path, one in references), (name, main)]:
        file = module.FileDescriptorProto.FromString(data)
        file.name = path
        if path in added:
            continue
        for imported in file.dependency:
            add_known(imported)
        added.add(path)
        files.file.add().CopyFrom(file)
    return files.SerializeToString(deterministic=True), files.file[-1]


def registered_text(of: MessageType) -> str:
    """Return what a registry takes for the file of a message type: its descriptor in base64. Raises
    SchemaError for one that imports others than Google's, which would have to be registered, too."""
    name = of.descriptor.file.name
    files = protobuf().FileDescriptorSet.FromString(of.files).file
    file = next(one for one in files if one.name == name)
    others = [one for one in file.dependency if not one.startswith(_KNOWN_IMPORTS)]
    if others:
        raise SchemaError(
            f"the file of {of.name} imports {', '.join(others)}: what is registered is one file; put its "
            f"messages into one, or send them without an id (wire_format='plain')"
        )
    return base64.b64encode(file.SerializeToString(deterministic=True)).decode()


def compiled(sources: Sequence[tuple[str, str]], main: str) -> Any:
    """Return the FileDescriptorSet of .proto files, given by names and texts; the one named `main` comes
    last. Raises ValueError, and UsageError if there is no compiler."""
    with TemporaryDirectory(prefix="txstream-protoc-") as folder:
        for name, text in sources:
            file = Path(folder, name)
            if not file.resolve().is_relative_to(Path(folder).resolve()):
                raise ValueError(f"the name {name!r} of an import leads out of its folder")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        why = "registry gives Protobuf schemas as text only (it ignores ?format=serialized);"
        return _compiled_in(Path(folder), main, why, ", where the workers run too")


def _compiled_in(folder: Path, main: str, why: str, where: str = "") -> Any:
    """Return the FileDescriptorSet of a .proto file in a folder and of all that it imports from there. `why`
    and `where` say what needs the compiler, and on which machines."""
    try:
        from grpc_tools import protoc
    except ImportError as error:
        raise UsageError(
            f"the {why} compiling it takes protoc; type pip install 'txstream[protoc]'{where}"
        ) from error
    with TemporaryDirectory(prefix="txstream-protoc-") as scratch:
        out = Path(scratch, "out.desc")
        known = str(files_of("grpc_tools") / "_proto")
        paths = [f"-I{folder}", f"-I{known}"]
        if protoc.main(["protoc", *paths, "--include_imports", f"--descriptor_set_out={out}", main]):
            raise ValueError("protoc cannot compile it; standard error has its words")
        return protobuf().FileDescriptorSet.FromString(out.read_bytes())


def arrow_type(message: Any) -> pa.DataType:
    """Return the Arrow type of a message's descriptor. Raises SchemaError for what no column can hold."""
    return _struct(message, "", ())


def _struct(message: Any, path: str, within: tuple[str, ...]) -> pa.DataType:
    where = f"field {path!r}" if path else "the schema"
    if message.full_name in within:
        raise SchemaError(
            f"{where} is a {message.full_name} inside a {message.full_name}: a column cannot hold a type "
            "that contains itself; leave the field out of the topology's schema"
        )
    if not message.fields:
        raise SchemaError(
            f"{where} is message {message.full_name} without fields; a struct takes at least one"
        )
    inner = (*within, message.full_name)
    return pa.struct([pa.field(one.name, field_type(one, path, inner)) for one in message.fields])


def field_type(field: Any, path: str = "", within: tuple[str, ...] = ()) -> pa.DataType:
    """Return the Arrow type of a field's descriptor."""
    path = f"{path}.{field.name}" if path else field.name
    if is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return pa.map_(value_type(key, path, within), value_type(value, f"{path}[]", within))
    if field.is_repeated:
        return pa.list_(value_type(field, f"{path}[]", within))
    return value_type(field, path, within)


def value_type(field: Any, path: str = "", within: tuple[str, ...] = ()) -> pa.DataType:
    """Return the Arrow type of one value of a field."""
    message = field.message_type
    if message is None:
        return _SIMPLE[kind_of(field)]
    if message.full_name == _TIMESTAMP:
        return pa.timestamp("us", tz="UTC")
    if is_wrapper(message):
        return value_type(message.fields_by_name["value"])
    return _struct(message, path, within)


def is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def is_timestamp(message: Any) -> bool:
    return bool(message.full_name == _TIMESTAMP)


def is_wrapper(message: Any) -> bool:
    return message.full_name in _WRAPPERS


def kind_of(field: Any) -> str:
    """Return a field's type in the word of descriptors without its prefix: "INT32", "MESSAGE"."""
    name: str = protobuf().FieldDescriptorProto.Type.Name(field.type)
    return name.removeprefix("TYPE_")


def type_name(field: Any) -> str:
    """Return a field's type as a .proto has it: "repeated shop.Item", "int32"."""
    named = field.message_type or field.enum_type
    word = named.full_name if named is not None else kind_of(field).lower()
    if is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return f"map<{type_name(key)}, {type_name(value)}>"
    return f"repeated {word}" if field.is_repeated else str(word)
