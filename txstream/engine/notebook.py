"""What a notebook shows below a cell while a run goes on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

_UPDATE_SECONDS = 0.5


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook: then a display can be changed after it was shown."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def show_live(html: Callable[[], str], shown_run: threading.Thread) -> threading.Thread:
    """Show what `html` returns below the cell, and replace it there while `shown_run` lives, by the thread
    that is returned. It makes the last replacement as soon as the run has ended, and ends."""
    ipython: Any = import_module("IPython.display")  # the kernel has it, whatever is installed here
    shown = html()
    handle = ipython.display(ipython.HTML(shown), display_id=True)

    def follow() -> None:
        nonlocal shown
        goes_on = True
        while goes_on:
            shown_run.join(_UPDATE_SECONDS)
            goes_on = shown_run.is_alive()
            now = html()
            if now != shown:
                shown = now
                handle.update(ipython.HTML(now))

    follower = threading.Thread(target=follow, name="txstream-notebook", daemon=True)
    follower.start()
    return follower
