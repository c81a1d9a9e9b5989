from small_pretraining import config, make_batch, model  # noqa: F401  (fixtures)
