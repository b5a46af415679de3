#!/usr/bin/env bash
# Everything of distui that only a machine with NVIDIA GPUs can prove: `bash tests/gpu/run.sh`.
# Uses the virtual environment of `make install` (or makes it), runs the checks on all GPUs that nvidia-smi lists, and writes
# docs/development/gpu-report.md. `--rehearse` runs what it can on gloo, without a GPU, and writes to the standard output only.
# It changes no setting of a GPU. Exit status 0 when no check failed.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -x .venv/bin/distui ] || make install
rehearse=0
for word in "$@"; do [ "$word" = --rehearse ] && rehearse=1; done
if [ "$rehearse" -eq 0 ] && ! nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then
  echo "tests/gpu/run.sh: nvidia-smi lists no GPU here; --rehearse tries the checks on gloo" >&2
  exit 2
fi
if [ "$rehearse" -eq 0 ] && ! .venv/bin/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "tests/gpu/run.sh: torch in .venv sees no GPU; install a CUDA build of torch there" >&2
  exit 2
fi
PYTHONPATH=tests exec .venv/bin/python -m gpu "$@"
