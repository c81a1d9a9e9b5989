#!/usr/bin/env bash
# BERT-small of benchmarks/small_gpu.toml on a GPU, in pieces: trains for at most MINUTES (9) and saves; called
# again, it goes on. When the run is over, its model lies in OUT/small in files of at most 16 MiB, and the page of
# results in OUT.
#
#     CORPUS="wikipedia/ novels/" OUT=results benchmarks/small_gpu.sh
#
# Without CORPUS (paths with spaces between them) it reads the documentation that comes with Python. Arguments are
# flags of `minibert pretrain`, which must be the same in every call. Where SST2 or MRPC name two files, one to learn
# from and one to measure on, the model is then fine-tuned for these.
set -euo pipefail
cd "$(dirname "$0")/.."

OUT=${OUT:-benchmarks/results/gpu}
PYTHON=${PYTHON:-.venv/bin/python}
run=$OUT/runs/small
read -ra corpus <<<"${CORPUS:-}"

flags=(--config benchmarks/small_gpu.toml --device "${DEVICE:-cuda}" --out "$OUT/runs" --prepared "$OUT/prepared")
[ ${#corpus[@]} -eq 0 ] || flags+=(--corpus "${corpus[@]}")
compgen -G "$run/checkpoint-*" >/dev/null && flags+=(--resume)

code=0
timeout --signal=INT --kill-after=60 "${MINUTES:-9}m" "$PYTHON" -m minibert pretrain "${flags[@]}" "$@" || code=$?
if [ $code -eq 124 ]; then
    echo "not over yet: call this again, and it goes on"
    exit 0
fi
[ $code -eq 0 ] || exit $code
rm -rf "$OUT/small"
"$PYTHON" -m minibert export "$run/final" --output "$OUT/small" --dtype float16 --max-shard-size 16MiB
"$PYTHON" -m benchmarks.pretraining "$run" --results "$OUT"

finetune() { # RECIPE "TRAIN DEV"
    local train dev
    [ -n "$2" ] || return 0
    read -r train dev <<<"$2"
    "$PYTHON" -m minibert finetune --recipe "$1" --model "$run/final" --train "$train" --dev "$dev" \
        --device "${DEVICE:-cuda}" --out "$OUT/runs" --name "small-$1" --overwrite
}
finetune sst2 "${SST2:-}"
finetune mrpc "${MRPC:-}"
