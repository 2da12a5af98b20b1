#!/bin/sh
# Make .venv-transformers/ at the root of the checkout: PyTorch and transformers, for the comparison in decode.py alone.
# Plain pip and not uv: pip may find a CPU build of torch where uv finds one for CUDA, of several gigabytes.
set -eu
cd "$(dirname "$0")/../.."
"${PYTHON:-python3}" -m venv .venv-transformers
.venv-transformers/bin/pip install --quiet "torch==2.13.0" "transformers==5.24.0"
.venv-transformers/bin/python -c 'import torch, transformers; print("torch", torch.__version__, "transformers", transformers.__version__)'
