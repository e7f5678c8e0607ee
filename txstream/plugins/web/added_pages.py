"""The pages of a topology that installed packages add, and their buttons (`txstream.inspect.pages`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txstream.core.errors import TxstreamError

if TYPE_CHECKING:
    from txstream.inspect.pages import Button, Page
    from txstream.plugins.web.site import Site


class UnknownPageError(TxstreamError):
    """There is nothing at this address, or not any more."""


def also_or_why_not(site: Site, topology_id: str) -> tuple[list[Page], str | None]:
    """Return what installed packages have of a topology, or why that is not known."""
    try:
        return list(site.pages(topology_id).values()), None
    except TxstreamError as error:
        return [], f"what else there is of {topology_id} is not known: {error}"


def also(site: Site, topology_id: str, name: str) -> Page:
    """Return one of these pages."""
    page = site.pages(topology_id).get(name)
    if page is None:
        raise UnknownPageError(f"topology {topology_id!r} has no page {name!r} now")
    return page


def button(site: Site, topology_id: str, name: str, pressed: str) -> Button:
    """Return a button of one of them."""
    found = also(site, topology_id, name).buttons.get(pressed)
    if found is None:
        raise UnknownPageError(f"the page {name!r} has no button {pressed!r}")
    return found
