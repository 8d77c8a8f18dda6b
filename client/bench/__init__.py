"""Load on a running server and what it costs: the parts of ``python -m client bench``, one noun a file.

session goes through the levels. A load sends the requests (with schedule and texts) and gives a record of each; level
sums them up with distribution, stages and metrics; report prints the tables; machine says where it ran.
"""
