"""The acker of tracked tuples: which trees of tuples are complete, failed or late. Pure: arrays in, arrays
out.

`docs/acker.md` explains the algorithm. `ids` gives out the numbers and folds messages about a root into one,
`ledger` keeps the trees and says what ended, `ackers` shares them among several ledgers.
"""
