"""A request to the driver that runs a topology, and its answer: for commands and for the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from txstream.core.errors import ServiceUnavailableError, TxstreamError, UsageError

if TYPE_CHECKING:
    from txstream.zookeeper import ZooKeeper


class NotRunningError(TxstreamError):
    """No driver runs the topology, so nobody would answer."""

    exit_status: ClassVar[int] = 1


def ask(
    zookeeper: ZooKeeper,
    topology_id: str,
    kind: str,
    body: Mapping[str, Any],
    timeout: float,
    *,
    later: bool | None = None,
    by: str | None = None,
) -> tuple[str, Mapping[str, Any] | None]:
    """Make a request and wait for the answer. Return the request's id and the driver's answer. With `later`
    do not wait, and return None for the answer; `later` is None for requests that cannot wait. `by` says who
    asks, by default this process's user. Raises NotRunningError when nobody could answer, UsageError when
    the driver refuses."""
    from txstream.zookeeper import Kind

    if not later and zookeeper.leader(topology_id) is None:
        remedy = (
            "nothing has to be stopped"
            if later is None
            else "start it first, or add --later to have its next run begin so"
        )
        raise NotRunningError(f"nothing runs topology {topology_id!r} now, so nobody could answer; {remedy}")
    operator = zookeeper.requests(topology_id)
    request_id = operator.ask(Kind(kind), body, by)
    if later:
        return request_id, None
    answer = operator.wait_answer(request_id, timeout)
    if answer is None:
        raise ServiceUnavailableError(
            f"{zookeeper.leader(topology_id) or 'the driver, which is gone,'} has not answered within "
            f"{timeout:g} s; the request is stored, and the driver that runs topology {topology_id!r} will "
            "still carry it out"
        )
    if answer.refused is not None:
        raise UsageError(f"{topology_id} stays as it is: {answer.refused}")
    return request_id, answer.told
