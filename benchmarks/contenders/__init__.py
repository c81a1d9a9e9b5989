"""Who takes part: one file for each library. See ``benchmarks/worker.py`` for what a contender is."""
