#!/usr/bin/env bash
# A queue over HTTP without any client of Segue: push, wait, work, settle.
# Beside it runs: segue serve data. Usage: curl.sh [URL]; with tokens, SEGUE_TOKEN is sent.
set -euo pipefail

queue="${1:-http://localhost:8000}/api/v1/queues/jobs"

ask() { # PATH BODY: repeated with the same key, so that it is done once
    curl --silent --show-error --fail-with-body --max-time 60 --retry 5 --retry-connrefused \
        -H "Authorization: Bearer ${SEGUE_TOKEN:-}" -H "Idempotency-Key: $RANDOM$RANDOM$RANDOM" \
        -d "$2" "$queue/$1"
}

ask messages '{"messages": [{"json": {"id": 1}}, {"json": {"id": 2}, "priority": 1}]}'
echo

while :; do
    jobs=$(ask lease '{"wait": 1, "ttl": 30, "owner": "curl.sh"}')
    receipt=$(grep -o '"receipt":"[^"]*"' <<< "$jobs" | cut -d '"' -f 4) || break # nothing is left
    echo "working on $jobs"
    ask ack "{\"receipts\": [\"$receipt\"]}"
done
