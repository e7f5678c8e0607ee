"""Where users import `FileSpout` from; the code is a plug-in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txstream.core.lazy_names import home_of, lazily

if TYPE_CHECKING:
    from txstream.plugins.files import FileSpout as FileSpout

_HOME_OF = home_of({"txstream.plugins.files": ("FileSpout",)})

__all__ = ["FileSpout"]
__getattr__, __dir__ = lazily(__name__, _HOME_OF, __all__)
