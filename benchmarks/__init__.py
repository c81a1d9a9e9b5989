"""minibert against what else there is, on the same machine in the same run: ``python -m benchmarks --help``.

measure.py      processes that take turns; medians, quartiles, paired ratios
worker.py       what runs in such a process
contenders/     who takes part: one file for each library, ours among them
inputs.py       what all models are given; texts.py: what all tokenizers are given
products.py     the bare matrix products of a step; operations.py: where the time of a step goes
parts/          the measurements, each with its table: training step, memory, inference, …
speedrun/, finetuning/, ablations/: programs of their own, see README.md
results.py      the file of all that was measured, and what the report is made with
"""
