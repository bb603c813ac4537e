#!/usr/bin/env bash
# Serves and evaluates with an installed evald: smoke.sh BIN, the directory with its commands.
set -euo pipefail
bin=$1
cd "$(mktemp -d)" # away from the checkout, so that nothing but the installed packages is imported
unset "${!EVALD_@}" PYTHONPATH

fail() {
  echo "smoke: $*" >&2
  cat server.log >&2
  exit 1
}

# Every generated module imports under the protobuf and grpc that are installed.
"$bin/python" -W error - <<'PYTHON'
import importlib, pathlib, evald
root = pathlib.Path(evald.__path__[0])
names = sorted(file.relative_to(root.parent).with_suffix("").as_posix() for file in root.rglob("*_pb2*.py"))
assert len(names) >= 9, names
for name in names:
    importlib.import_module(name.replace("/", "."))
PYTHON

"$bin/evald" serve --listen 127.0.0.1:0 --http 127.0.0.1:0 >server.log 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
address=
for _ in $(seq 100); do # 10 s
  address=$(grep -m 1 -oE '127\.0\.0\.1:[0-9]+' server.log | head -n 1) && break
  kill -0 "$server" 2>/dev/null || fail "the server ended"
  sleep 0.1
done
[ -n "$address" ] || fail "the server was not ready within 10 s"

echo '[{"role": "user", "content": "Where to?"}, {"role": "assistant", "content": "You fly to Lisbon, BK-12345."}]' >conversation.json
"$bin/evald" evaluate conversation.json --server "$address" \
  -e regex:pattern='BK-[0-9]+' -e contains:text=Lisbon -e response-length || fail "a turn that is good did not pass"
code=0
"$bin/evald" evaluate conversation.json --server "$address" -e contains:text=Porto >failed.log || code=$?
[ "$code" = 1 ] || fail "a turn that is bad ended with $code, wanted 1: $(cat failed.log)"

kill -TERM "$server"
wait "$server" || fail "the server did not stop cleanly"
echo "smoke: serves and evaluates with $("$bin/python" --version)"
