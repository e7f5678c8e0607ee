"""A module for `txstream run`: a queue of files, which delivers again what was not acked, and a bolt."""

MODULE = '''
import os
import pathlib
import signal
import time
import zlib

from txstream import BasicBolt, RichBolt, Spout, TopologyBuilder


class Queue(Spout):
    """Each file of a folder is a message; it is removed when its tree is complete. Tasks share the files."""

    output = "word string"

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def open(self, context, collector):
        self.context, self.collector = context, collector
        self.in_flight = set()
        self.active = False

    def activate(self):
        self.active = True

    def deactivate(self):
        self.active = False

    def next_tuple(self):
        assert self.active
        for file in sorted((self.folder / "queue").iterdir()):
            mine = zlib.crc32(file.name.encode()) % self.context.task_count == self.context.task_index
            if mine and file.name not in self.in_flight:
                self.in_flight.add(file.name)
                self.collector.emit([file.name], file.name)

    def ack(self, name):
        (self.folder / "queue" / name).unlink()
        self.in_flight.remove(name)

    def fail(self, name):
        self.note("failed", name)
        self.in_flight.remove(name)

    def close(self):
        self.note("closed", str(len(self.in_flight)))

    def note(self, where, what):
        with open(self.folder / where, "a") as file:
            print(what, file=file)


class Note(BasicBolt):
    """Appends a word to a file; with `hold` it waits, with `die` it kills what the file says."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def execute(self, tup, collector):
        (self.folder / "entered").touch()
        while (self.folder / "hold").exists():
            time.sleep(0.01)
        try:
            (self.folder / "die").unlink()
        except FileNotFoundError:
            pass
        else:
            import psutil

            process = psutil.Process()
            parents = [one for one in process.parents() if one.name() == "java"]
            (parents[0] if parents and (self.folder / "executor").exists() else process).kill()
        with open(self.folder / "words", "a") as file:
            print(tup["word"], file=file)


def topology(folder: str, timeout: float = 30.0, ackers: int = 1, spouts: int = 1):
    builder = TopologyBuilder("files", message_timeout_seconds=timeout, ackers=ackers)
    builder.set_spout("queue", Queue(folder), spouts)
    builder.set_bolt("note", Note(folder), 2).shuffle_grouping("queue")
    return builder.build()
'''
