"""From an election to the first batch. The order of a start is `Driver.start`, in `driver`; its last
steps, which need the epoch, are gone through by `takeover`."""
