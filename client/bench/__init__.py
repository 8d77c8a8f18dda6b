"""Load on a running server and what it costs: the parts of ``python -m client bench``, one noun a file.

session goes through the levels. A load sends the requests of a workload (speech says texts, transcripts writes down
clips) at the times of a schedule and gives a record of each; level sums them up with distribution, stages and metrics;
report prints the tables, with those of speech_tables or transcript_tables; machine says where it ran.
"""
