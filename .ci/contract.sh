#!/usr/bin/env bash
# Checks the contract: lint, format, no breaking change since the last release, generated code up to date.
set -euo pipefail
cd "$(dirname "$0")/.."
buf=.venv/bin/buf
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

$buf lint protos
$buf format protos --diff --exit-code

if [ -e protos/baseline.binpb ]; then
  $buf breaking protos --against protos/baseline.binpb
else
  echo "no protos/baseline.binpb: nothing has been released yet that could be broken"
fi
# The check itself must bite: a field with another number has to be found.
cp -R protos "$work/renumbered"
sed 's/string evaluation_id = 1;/string evaluation_id = 100;/' \
  protos/evald/v1/evaluation_service.proto >"$work/renumbered/evald/v1/evaluation_service.proto"
if $buf breaking "$work/renumbered" --against protos >"$work/found"; then
  echo "buf breaking did not find a renumbered field" >&2
  exit 1
fi
grep -q 'evaluation_id' "$work/found"

digest() { (cd "$1" && find client server deploy \( -name '*_pb2*.py*' -o -name evald.binpb \) -not -path '*/__pycache__/*' -exec cksum {} + | LC_ALL=C sort -k 3); }
.ci/generate.sh "$work"
if ! diff <(digest .) <(digest "$work"); then
  echo "the generated code does not follow the contract (left: committed, right: generated): run 'make proto'" >&2
  exit 1
fi
echo "contract: lint, format, breaking changes and generated code are fine"
