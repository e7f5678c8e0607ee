"""The acker of tracked tuples: which trees of tuples are complete, failed or late. Pure: arrays in, arrays
out.

`docs/acker.md` explains the algorithm; `ids` gives out the numbers, `folds` makes one message per root of
many, `ledger` keeps the trees and says what ended, `ackers` shares them among several ledgers.
"""
