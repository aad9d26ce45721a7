#!/bin/sh
# The operator's container: `register` registers every public key in /operator/nodes, anything else is given to `flwr`.
set -eu
[ "${1:-}" = register ] || exec flwr "$@"
nodes=${FLWR_HOME:-/operator}/nodes
patience=60  # seconds that a SuperLink may take to start

# register KEY NAME: what flwr says; asked again while the SuperLink behind the proxy is still starting
register() {
  until answer=$(flwr supernode register "$1" deployment --name "$2" 2>&1); do
    echo "$answer" | grep -qE "503 Service Unavailable|Connection refused|ConnectError" && [ "$patience" -gt 0 ] || return 1
    sleep 2; patience=$((patience - 2))
  done
}

set -- "$nodes"/*.pub
[ -e "$1" ] || [ -L "$1" ] || { echo "register: no public key in $nodes: copy the sites' .pub files there." >&2; exit 2; }

failed=0
for key in "$@"; do
  name=$(basename "$key" .pub)
  if ! [ -f "$key" ] || ! [ -r "$key" ]; then
    echo "$name: $key cannot be read: copy the site's .pub file itself there, no link to it." >&2; failed=1
  elif register "$key" "$name"; then
    node=$(echo "$answer" | sed -n 's/.*SuperNode \([0-9][0-9]*\).*/\1/p' | head -1)
    echo "$name: registered${node:+ as node $node}"
  elif echo "$answer" | grep -qi "already in use"; then
    echo "$name: registered before"
  else
    echo "$name: $answer" >&2; failed=1
  fi
done
exit $failed
