#!/usr/bin/env bash
# The Python example with PyTorch tensors must print the checksum that it prints with NumPy arrays.
# Exits 77 where there is no Python with PyTorch and NumPy: $MONOLAYER_TORCH_PYTHON, an environment of
# this tree, or python3.
#   torch_example_test.sh SOURCE_DIR LIBRARY
set -euo pipefail
source_dir=$1 library=$2
for candidate in "${MONOLAYER_TORCH_PYTHON:-}" "$source_dir"/.venv{-torch,-clients,}/bin/python python3; do
  if [[ -n $candidate ]] && "$candidate" -c 'import numpy, torch' 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [[ -z ${python:-} ]]; then
  echo "torch example: no Python with PyTorch, skipped"
  exit 77
fi
example=$source_dir/examples/python/tiny_decode.py
said=$(mktemp)
trap 'rm -f "$said"' EXIT
torch=$("$python" "$example" "$library" 2>"$said")
grep -qx 'tensors of torch' "$said" || { cat "$said" >&2; exit 1; }
numpy=$("$python" "$example" "$library" --numpy 2>/dev/null)
echo "$("$python" -c 'import torch; print("PyTorch", torch.__version__)'): $torch; NumPy: $numpy"
[[ $torch == checksum\ * && $torch == "$numpy" ]]
