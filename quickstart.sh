#!/usr/bin/env bash
# Set up, build, and train a vision transformer on real images: Fashion-MNIST, with a checkpoint per block and plain
# SGD without state, in about three minutes on two cores. Ends with the accuracy and where the memory went.
#
#   ./quickstart.sh [--no-install] [--any-key value …]     keys as in `refrain train --help`
set -euo pipefail
cd "$(dirname "$0")"

arguments=()
for argument in "$@"; do
  if [ "$argument" = --no-install ]; then NO_INSTALL=1; else arguments+=("$argument"); fi
done

source cmake/packages.sh
install_packages "${REFRAIN_BUILD_PACKAGES[@]}" "${REFRAIN_DATA_PACKAGES[@]}"

echo "Building…"
# CUDA where it can be used: nvcc takes minutes, which a machine without a GPU should not wait for.
cuda=OFF
if command -v nvcc >/dev/null && nvidia-smi -L >/dev/null 2>&1; then cuda=ON; fi
cmake --preset release -DREFRAIN_CUDA=$cuda -DREFRAIN_CUDA_ARCHITECTURES=native >build-configure.log 2>&1 || { cat build-configure.log; rm -f build-configure.log; exit 1; }
rm -f build-configure.log
cmake --build build/release --target refrain

exec build/release/apps/refrain train examples/vit-fashion-mnist.toml ${arguments[@]+"${arguments[@]}"}
