"""Tells open pages that there is something new: server-sent events, from one poller for each topology.

Invariants.
- A topic (a topology, or all of them) is polled by one task while a page that shows it is open, and by none
  otherwise.
- A page that was closed leaves nothing: its queue goes when its connection ends, which a comment that is sent
  every few seconds brings to light.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from starlette.concurrency import run_in_threadpool

MOST_PAGES = 200
"""How many pages may be open; a further one is not live."""

_POLL_SECONDS = 1.0
_COMMENT_SECONDS = 5.0


@dataclass
class _Topic:
    mark: str | None = None
    pages: set[asyncio.Event] = field(default_factory=set)
    poller: asyncio.Task[None] | None = None


class Live:
    """`look` returns a topic's mark, which changes with what its pages show; it may block, and never
    raises."""

    def __init__(self, look: Callable[[str | None], str], *, poll_seconds: float = _POLL_SECONDS) -> None:
        self._look = look
        self._poll_seconds = poll_seconds
        self._topics: dict[str | None, _Topic] = {}

    @property
    def open_pages(self) -> int:
        return sum(len(topic.pages) for topic in self._topics.values())

    @property
    def polled(self) -> set[str | None]:
        """The topics that are polled now."""
        return set(self._topics)

    async def events(self, name: str | None) -> AsyncGenerator[bytes]:
        """Yield an event at once and at every change, until the page is closed."""
        topic = self._topics.setdefault(name, _Topic())
        news = asyncio.Event()
        topic.pages.add(news)
        if topic.poller is None:
            topic.poller = asyncio.create_task(self._poll(name, topic))
        elif topic.mark is not None:
            news.set()
        try:
            while True:
                try:
                    async with asyncio.timeout(_COMMENT_SECONDS):
                        await news.wait()
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                news.clear()
                mark = hashlib.sha256((topic.mark or "").encode()).hexdigest()[:16]
                yield f"data: {mark}\n\n".encode()
        finally:
            topic.pages.discard(news)
            if not topic.pages:
                topic.poller.cancel()
                if self._topics.get(name) is topic:
                    del self._topics[name]

    async def close(self) -> None:
        """End all pollers."""
        for topic in list(self._topics.values()):
            if topic.poller is not None:
                topic.poller.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await topic.poller

    async def _poll(self, name: str | None, topic: _Topic) -> None:
        while True:
            mark = await run_in_threadpool(self._look, name)
            if mark != topic.mark:
                topic.mark = mark
                for news in topic.pages:
                    news.set()
            await asyncio.sleep(self._poll_seconds)
