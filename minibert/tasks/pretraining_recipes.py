"""Named sets of settings for pre-training: the original BERT's decisions, or those that learn fastest."""

from typing import Any

# What each changes of the defaults, which are the original's decisions. docs/pretraining.md explains "fast",
# and benchmarks/results/speedrun.md has what some of its settings bring.
PRETRAINING_RECIPES: dict[str, dict[str, Any]] = {
    "original": {},
    "fast": {
        "word_initializer": "counts",
        "attention_initializer": "neighbours",
        "optimiser": "muon",
        "learning_rate": 1e-3,
        "schedule": "trapezoid",
        "weight_decay": 0.1,
        "nsp": False,
        "whole_sentences": False,
        "masked_lm_prob": 0.4,
        "max_predictions": 1000,  # no limit
        "steps": 2400,
    },
}
