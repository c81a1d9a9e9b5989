#!/usr/bin/env bash
# Everything that wants a GPU, in one go, for whoever has one for an hour:
#
#     OUT=results benchmarks/gpu_session.sh            OUT: where results go (benchmarks/results/gpu)
#     DEVICE=cpu QUICK=1 benchmarks/gpu_session.sh     see that it works, without a GPU
#
# PYTHON (.venv/bin/python) has minibert's dev and cuda12 or cuda13 extras and, for the comparison, torch.
# CORPUS names the text for the run of BERT-small: see small_gpu.sh.
# Every stage has a time limit in minutes and a log of its own; one that fails does not stop the next.
# summary.txt tells how each went; the exit code is the number of stages that failed.
set -uo pipefail
cd "$(dirname "$0")/.."

OUT=${OUT:-benchmarks/results/gpu}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
PYTHON=${PYTHON:-.venv/bin/python}
DEVICE=${DEVICE:-cuda}
export OUT PYTHON DEVICE
library=cupy steps=300 suite=() quick=()
[ "$DEVICE" = cpu ] && library=numpy
[ -n "${QUICK:-}" ] && steps=20 suite=(tests/train) quick=(--quick)
failed=0

stage() {  # stage NAME MINUTES COMMAND …
    local name=$1 minutes=$2 start=$SECONDS code result=passed
    shift 2
    echo "== $name: $*"
    timeout --kill-after=20 "${minutes}m" "$@" >"$OUT/$name.log" 2>&1
    code=$?
    if [ $code -ne 0 ]; then
        failed=$((failed + 1))
        result="FAILED with exit code $code"
        [ $code -eq 124 ] && result="FAILED: not done after $minutes minutes"
    fi
    tail -n 3 "$OUT/$name.log"
    echo "$name: $result, $((SECONDS - start)) s" | tee -a "$OUT/summary.txt"
}

pretrain() {  # pretrain NAME FLAGS …: a short run as anybody would start it
    local name=$1
    shift
    stage "train_$name" 10 "$PYTHON" -m minibert pretrain --device "$DEVICE" --strict-kernels --out "$OUT/runs" \
        --prepared "$OUT/prepared" --name "$name" --overwrite --steps $steps --eval-every 100 --eval-batches 5 \
        --log-every 10 --dropout 0.1 "$@"
}

{ date -u; git rev-parse HEAD; nvidia-smi; "$PYTHON" -m pip list; } >"$OUT/machine.txt" 2>&1
: >"$OUT/summary.txt"

# The kernels first: what is wrong with them is wrong with all that follows.
stage compile 5 "$PYTHON" -m minibert.kernels.cuda.compile
stage kernels 10 "$PYTHON" -m pytest -q tests/kernels/cuda tests/test_replay.py
stage gradcheck 5 "$PYTHON" -m minibert gradcheck --device "$DEVICE"
stage suite 25 "$PYTHON" -m pytest -q --library $library "${suite[@]}"
if [ "$DEVICE" != cpu ] && command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck initcheck; do
        stage $tool 10 compute-sanitizer --tool $tool --error-exitcode 9 \
            "$PYTHON" -m pytest -q tests/kernels/cuda/test_model.py
    done
else
    echo "memcheck, racecheck, initcheck: left out, no compute-sanitizer" | tee -a "$OUT/summary.txt"
fi

# Replayed twice and called once: the same bits each time. Then the other precisions, for their curves.
pretrain graph
pretrain again
pretrain called --no-graph
stage same_bits 1 cmp "$OUT/runs/graph/final/model.safetensors" "$OUT/runs/again/final/model.safetensors"
stage same_as_called 1 cmp "$OUT/runs/graph/final/model.safetensors" "$OUT/runs/called/final/model.safetensors"
if [ "$DEVICE" != cpu ]; then
    for precision in float32 tf32 float16; do
        pretrain $precision --precision $precision
    done
fi

# BERT-small, in pieces.
small=()
[ -n "${QUICK:-}" ] && small=(--layers 1 --hidden 64 --heads 2 --steps 20 --batch-size 8 --precision float32)
for piece in 1 2 3; do
    stage small_$piece 11 benchmarks/small_gpu.sh "${small[@]}"
done

stage benchmarks 40 "$PYTHON" -m benchmarks gpu_step --device "$DEVICE" --results "$OUT" "${quick[@]}"

echo "$failed failed; all results are in $OUT"
exit $failed
