#!/usr/bin/env bash
# Checks and trains on a machine with one GPU, in stages that end within SECONDS and can be separate calls:
#
#     .ci/gpu.sh check OUT [SECONDS]       tests on the GPU; bf16 there beside float32 on the CPU; tokens/s, memory
#     .ci/gpu.sh notebooks OUT [SECONDS]   all chapters: times, errors, outputs and verdicts that differ
#     .ci/gpu.sh train OUT [SECONDS]       the models of PLAN in its order, JOBS at a time; called again, it goes on
#     .ci/gpu.sh pack PARTS [NUMBER]       DATA/train.npy as so many files under xz, for the way to that machine
#     .ci/gpu.sh unpack PARTS              and back, once all are there
#
# Logs and results are written to OUT: at most 8 files of 16 MiB. Without a GPU all this runs on the CPU, where it is
# only good for tests. Set in the environment, if need be:
PYTHON=${PYTHON:-python3}
DATA=${DATA:-corpus}            # packed tokens, with held_out.npy and tokenizer.json
RUNS=${RUNS:-runs/gpu}          # of train, and the short ones of check
PLAN=${PLAN:-.ci/gpu_plan.txt}  # a line for each model
SETTINGS=${SETTINGS:-}          # more of them for all models: lr=2e-3
JOBS=${JOBS:-3}                 # trainings at a time: one alone leaves the GPU waiting for its Python
CONFIG=${CONFIG:-attn-only-2l}  # of check
BATCHES=${BATCHES:-16 32 64 128 256}
NOTEBOOKS=${NOTEBOOKS:-}        # some of them; all if empty
SPARE=${SPARE:-20}              # seconds for the last step, its checkpoint, and the archive
set -uo pipefail
cd "$(dirname "$0")/.." || exit
stage=${1:-} out=$(realpath -m "${2:?.ci/gpu.sh STAGE FOLDER}") limit=${3:-240} failed=0
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
mkdir -p "$out" "$RUNS" "$DATA"
trainer="$PYTHON -m transformer_circuits.training.train --data $DATA"

left() { echo $((limit - SPARE - SECONDS)); }
within() { # COMMAND, while there is time
  timeout --signal=INT --kill-after=10 "$(($(left) > 0 ? $(left) : 1))" "$@" || { echo "FAILED ($?): $*"; failed=1; }
}

check() {
  local compiled=''
  nvidia-smi && compiled=--compile || echo "no GPU"
  within $PYTHON -m pytest -q -p no:cacheprovider tests/unit/test_cuda.py
  local brief="tokens=40_960 batch=4 snapshots=4 evaluate_windows=8 few_windows=2 repeats=4 film=false"
  rm -rf "$RUNS"/check-{cpu,gpu}
  CUDA_VISIBLE_DEVICES='' within $trainer --config "$CONFIG" --out "$RUNS/check-cpu" --set $brief precision=no
  within $trainer --config "$CONFIG" --out "$RUNS/check-gpu" --set $brief precision=bf16
  within $PYTHON .ci/gpu_report.py losses "$RUNS"/check-{cpu,gpu}/training.jsonl
  within $PYTHON benchmarks/training_throughput.py --config "$CONFIG" --batch $BATCHES
  [[ ! $compiled ]] || within $PYTHON benchmarks/training_throughput.py --config "$CONFIG" --batch 32 --compile
  return $failed
}

notebooks() {
  # Kernels are forked from a process that imports PyTorch; it must not start CUDA, not even to count GPUs.
  PYTORCH_NVML_BASED_CUDA_CHECK=1 within $PYTHON .ci/gpu_report.py notebooks $NOTEBOOKS
  tar -czf "$out/failed.tar.gz" --ignore-failed-read -C _build failed 2>/dev/null || rm -f "$out/failed.tar.gz"
  return $failed
}

train() {
  local name config settings shared='' names=() sizes=0 size finished=()
  while read -r name config settings; do
    [[ $name && $name != \#* ]] || continue
    [[ $name != all ]] || { shared="$config $settings"; continue; }
    names+=("$name")
    [[ ! -d $RUNS/$name/model ]] || continue
    while (($(jobs -rp | wc -l) >= JOBS)); do wait -n; done
    (($(left) > 10)) || continue
    mkdir -p "$RUNS/$name"
    timeout --signal=TERM --kill-after="$SPARE" "$(left)" \
      $trainer --name "$name" --out "$RUNS/$name" --config "$config" --set $shared $settings $SETTINGS >> "$RUNS/$name/log" 2>&1 &
  done < "$PLAN"
  wait
  for name in "${names[@]}"; do
    if [[ ! -d $RUNS/$name/model ]]; then
      echo "$name: not finished; $(tail -n 1 "$RUNS/$name/log" 2>/dev/null | tr '\r' '\n' | tail -n 1)"
    elif [[ ! -e $RUNS/$name/sent ]]; then
      size=$(du -sb "$RUNS/$name/model" | cut -f 1)
      ((sizes + size < 58 << 20)) || { echo "$name: finished, for the next call"; continue; }
      ((sizes += size))
      finished+=("$name/model")
      touch "$RUNS/$name/sent"
      echo "$name: finished; $(tail -n 1 "$RUNS/$name/log")"
    fi
  done
  ((${#finished[@]} == 0)) || tar -cf - -C "$RUNS" "${finished[@]}" | split -b 16M - "$out/models.tar."
  (cd "$RUNS" && tar -czf "$out/logs.tar.gz" --exclude=model -- */log */training.jsonl)
}

pack() { # in Python: not every machine has xz
  split -n "$parts" -d "$DATA/train.npy" "$out/train.npy."
  $PYTHON - "$out"/train.npy.* << 'END'
import lzma, sys
from pathlib import Path

for part in map(Path, sys.argv[1:]):
    Path(f"{part}.xz").write_bytes(lzma.compress(part.read_bytes(), preset=9))
    part.unlink()
END
}

unpack() { # what else is needed, the repository has
  $PYTHON - "$out" "$DATA" << 'END'
import lzma, shutil, sys
from pathlib import Path
import numpy as np

parts, data = map(Path, sys.argv[1:])
with open(data / "train.npy", "wb") as file:
    for part in sorted(parts.glob("train.npy.*.xz")):
        shutil.copyfileobj(lzma.open(part), file, 1 << 20)
np.save(data / "held_out.npy", np.load("data/held_out.npz")["tokens"])
shutil.copy("data/tokenizer.json", data)
END
}

case $stage in
  check | notebooks | train) "$stage" 2>&1 | tee "$out/$stage.log"; exit "${PIPESTATUS[0]}" ;;
  pack) parts=${3:-3} pack ;;
  unpack) unpack ;;
  *) sed -n '2,12s/^# \?//p' "$0" >&2; exit 2 ;;
esac
