#!/bin/sh
# The operator's container: `register` registers every public key in /operator/nodes, anything else is given to `flwr`.
set -eu
[ "${1:-}" = register ] || exec flwr "$@"
failed=0
for key in /operator/nodes/*.pub; do
  [ -e "$key" ] || { echo "register: no public key in /operator/nodes: copy the sites' .pub files there." >&2; exit 2; }
  name=$(basename "$key" .pub)
  if answer=$(flwr supernode register "$key" deployment --name "$name" 2>&1); then
    echo "$name: registered"
  elif echo "$answer" | grep -qi "already in use"; then
    echo "$name: registered before"
  else
    echo "$name: $answer" >&2; failed=1
  fi
done
exit $failed
