#!/usr/bin/env bash
# Runs pytest, and what failed once more by itself: .ci/pytest.sh BIN [PYTEST OPTION...]
#
# A machine that stood still for a moment is no fault of evald; what fails twice fails. The first failure stays in the
# output, and a test that is often there wants mending.
set -euo pipefail
bin=$1
shift
code=0
"$bin/python" -m pytest -q "$@" || code=$?
[ "$code" = 1 ] || exit "$code"
printf '\n=== What failed runs once more, by itself\n'
exec "$bin/python" -m pytest -q "$@" -n 0 --last-failed --last-failed-no-failures none
