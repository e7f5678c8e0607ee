"""The Java command of a small server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from txstream.cli.java import Java

# slf4j and log4j, for ZooKeeper and for Kafka, whose own jars come without a logging back end.
LOGGING_JARS = ("slf4j-api-*.jar", "log4j-api-*.jar", "log4j-core-*.jar", "log4j-slf4j2-impl-*.jar")

# With SerialGC and only the first compiler tier a small server starts in half the time and leaves the
# machine's cores to Spark.
SMALL_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")


def java_command(java: Java, *, heap_mb: int, classpath: Sequence[str]) -> list[str]:
    """Return the `java` command with the flags of a small server, up to and including the class path."""
    heap = ("-Xms32m", f"-Xmx{heap_mb}m")
    log_config = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"
    return [str(java.path), *SMALL_JVM, *heap, log_config, "-cp", os.pathsep.join(classpath)]
