#!/usr/bin/env bash
# Runs pytest, and what failed once more by itself: .ci/pytest.sh BIN [PYTEST OPTION...]
#
# A machine that stood still for a moment is no fault of evald; what fails twice fails. The first failure stays in the
# output, and a test that is often there wants mending.
set -euo pipefail
bin=$1
shift
# Images of containers often set it; every process would then compile every test and evald anew.
unset PYTHONDONTWRITEBYTECODE
# Seconds, of pytest-timeout: a test that hangs fails, and says where. The slowest takes a tenth of it.
export PYTEST_TIMEOUT=${PYTEST_TIMEOUT:-300}
# What failed is noted in a place of this run's own: another one beside it would write over a common one.
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
code=0
"$bin/python" -m pytest -q -o cache_dir="$cache" "$@" || code=$?
[ "$code" = 1 ] || exit "$code"
printf '\n=== What failed runs once more, by itself\n'
"$bin/python" -m pytest -q -o cache_dir="$cache" "$@" -n 0 --last-failed --last-failed-no-failures none --maxfail 10
