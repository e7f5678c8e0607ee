"""Why attempts failed, and the batch that keeps failing: for `status`, `show` and `batches`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from txstream.cli.context import Cli
from txstream.cli.databases import open_zookeeper
from txstream.cli.inspection import shown_attempt, shown_time
from txstream.cli.tables import escaped
from txstream.core.errors import ServiceUnavailableError
from txstream.core.wording import counted
from txstream.engine.loop.report import shown_reasons
from txstream.inspect.json_documents import failing_document

if TYPE_CHECKING:
    from txstream.core.failing_batch import FailingBatch
    from txstream.inspect.records import Batch


def failing_text(batch: FailingBatch) -> str:
    """Say how often the batch failed, and how often for each reason."""
    failed = f"{counted(batch.failed_attempts, 'attempt')} failed"
    last = f"the last one ({shown_attempt(batch.attempt)}) at {shown_time(batch.at)}"
    return f"txid {batch.txid}: {failed}, {last}: {escaped('; '.join(shown_reasons(batch.reasons)))}"


def failing_batch(cli: Cli, topology_id: str) -> FailingBatch | None:
    """Return the batch that fails now, which the ledgers do not have. None if ZooKeeper does not answer."""
    from txstream.inspect.overview import look

    if not cli.settings.zookeeper:
        return None
    try:
        with open_zookeeper(cli.settings) as zookeeper:
            return look(zookeeper, topology_id).failing
    except ServiceUnavailableError:
        return None


def show_failing(cli: Cli, topology_id: str, txid: int) -> bool:
    """Show a txid that no ledger has because it keeps failing. False if this is not such a txid."""
    batch = failing_batch(cli, topology_id)
    if batch is None or batch.txid != txid:
        return False
    if cli.as_json:
        cli.print_json({"topology": topology_id, **failing_document(batch)})
    else:
        cli.print(f"not committed yet: {failing_text(batch)}")
    return True


def say_reasons(cli: Cli, topology_id: str, batches: Iterable[Batch]) -> None:
    """Print, below a list of batches, why attempts of them failed, and the batch that fails now."""
    from txstream.engine.letters.retry_policy import reason_of
    from txstream.inspect.ledgers import failed_attempts

    reasons = Counter(
        reason_of(failed.error)
        for batch in batches
        for failed in max((failed_attempts(entry) for entry in batch.entries), key=len)
    )
    for line in shown_reasons(reasons):
        cli.print(escaped(line))
    batch = failing_batch(cli, topology_id)
    if batch is not None:
        cli.print(f"not committed yet: {failing_text(batch)}")
