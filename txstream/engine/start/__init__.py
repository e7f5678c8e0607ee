"""From an election to the first batch. The order of a start is `Driver.start`, in `driver/driver.py`; its
last steps, which need the epoch, are here: `takeover` goes through them."""
