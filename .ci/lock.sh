#!/usr/bin/env bash
# Resolves deploy/requirements.lock: every runtime package of evald[server,fast,postgres,web], by version and hash, for all Pythons.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=build/lock
[ -x $tools/bin/uv ] || { ${PYTHON:-python3} -m venv $tools && $tools/bin/pip install --quiet 'uv==0.13.*'; }
$tools/bin/uv pip compile pyproject.toml --extra server --extra fast --extra postgres --extra web --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-annotate --custom-compile-command 'make lock' --upgrade --quiet -o deploy/requirements.lock
