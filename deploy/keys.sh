#!/bin/sh
# keys.sh: certificates, node keys, secrets and folders of a deployment. What is there already is kept, never overwritten.
#
#   keys.sh local N [NAME...]     all on one machine: server, N nodes, .env for `docker compose up`
#   keys.sh server [NAME...]      the server's side and its .env; NAMEs are the DNS names and addresses that sites reach it by
#   keys.sh node FOLDER CA_CRT    one site, on the site's own machine: its private key never leaves it
#
# The server's files lie in $FEDVEIL_DEPLOYMENT, ./deployment unless set; settings in $FEDVEIL_ENV, else .env beside docker-compose.yml. Keys of nodes are EC P-384, of servers EC P-256.
set -eu
umask 077
here=$(cd "$(dirname "$0")" && pwd)
top=${FEDVEIL_DEPLOYMENT:-$(dirname "$here")/deployment}
case "$top" in /*) ;; *) top=$(pwd)/$top ;; esac
settings=${FEDVEIL_ENV:-$(dirname "$here")/.env}
days=${FEDVEIL_CERTIFICATE_DAYS:-825}
# Containers run as you, so that you can read what they write; where you are root, as user 10001.
uid=${FEDVEIL_UID:-$(id -u)}; gid=${FEDVEIL_GID:-$(id -g)}
if [ "$uid" = 0 ]; then uid=10001; gid=10001; fi

# printf, for an echo may read a backslash in a path as more than that
warn() { printf 'keys.sh: %s\n' "$*" >&2; }
die() { warn "$@"; exit 2; }
for tool in openssl ssh-keygen; do command -v "$tool" >/dev/null || die "$tool is missing: install it and run this again."; done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' HUP INT TERM

# set_there KEY: KEY=VALUE in the settings of `docker compose`; nothing where it is not set
set_there() { [ ! -e "$settings" ] || sed -n "s/^$1=/$1=/p" "$settings" | tail -1; }

# keep KEY=VALUE...: the settings of `docker compose`; what is set there already stays, and is told where it differs
keep() {
  for pair in "$@"; do
    there=$(set_there "${pair%%=*}")
    if [ -z "$there" ]; then
      # an editor may leave the last line without an end
      [ ! -s "$settings" ] || [ -z "$(tail -c 1 "$settings")" ] || echo >>"$settings"
      echo "$pair" >>"$settings"
    elif [ "$there" != "$pair" ]; then warn "$settings keeps $there; for what you asked now set $pair there."; fi
  done
}

give() { if [ "$(id -u)" = 0 ]; then chown -R "$uid:$gid" "$@"; fi; }

secret() { [ -s "$1" ] || openssl rand -hex 32 | tr -d '\n' >"$1"; }

# names NAME...: subjectAltName of DNS names and addresses
names() {
  list=
  for name in "$@"; do
    case "$name" in
      *[!0-9A-Za-z.:-]*) die "'$name' is neither a DNS name nor an address." ;;
      *:* | [0-9]*.[0-9]*.[0-9]*.[0-9]*) list="$list,IP:$name" ;;
      *) list="$list,DNS:$name" ;;
    esac
  done
  echo "${list#,}"
}

# private KEY: a server's or an authority's private key
private() { [ -s "$1" ] || openssl ecparam -name prime256v1 -genkey -noout -out "$1"; }

# authority KEY CRT: a certificate authority that may sign servers only; of a key that is there, so that what it signed stays good
authority() {
  [ -s "$2" ] && return
  private "$1"
  openssl req -x509 -new -sha256 -key "$1" -days 3650 -subj "/CN=FedVeil deployment" -out "$2" \
    -addext "basicConstraints=critical,CA:TRUE,pathlen:0" -addext "keyUsage=critical,keyCertSign,cRLSign"
  chmod 644 "$2"
}

# certificate FOLDER STEM CA_KEY CA_CRT NAME...: FOLDER/STEM.key and FOLDER/STEM.crt
certificate() {
  stem=$1/$2; ca_key=$3; ca_crt=$4; shift 4
  san=$(names "$@") || exit 2
  if [ -s "$stem.crt" ]; then
    has=$(openssl x509 -in "$stem.crt" -noout -ext subjectAltName 2>/dev/null | tr ',' '\n' | sed -n 's/.*DNS:/DNS:/p; s/.*IP Address:/IP:/p') || has=
    for name in $(echo "$san" | tr ',' ' '); do
      echo "$has" | grep -qxiF "$name" || warn "$stem.crt stays as it is, without $name: delete $stem.* and run this again to have it."
    done
    return
  fi
  [ -s "$ca_key" ] || die "$ca_key is not here: bring it back to sign $stem.crt."
  extensions=$scratch/extensions
  printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth\nbasicConstraints=critical,CA:FALSE\n' "$san" >"$extensions"
  made=; [ -s "$stem.key" ] || made=$stem.key
  private "$stem.key"
  openssl req -new -key "$stem.key" -subj "/CN=$1" |
    openssl x509 -req -sha256 -CA "$ca_crt" -CAkey "$ca_key" -set_serial "0x$(openssl rand -hex 16)" -days "$days" \
      -extfile "$extensions" -out "$stem.crt" 2>"$extensions.said" || { [ -z "$made" ] || rm -f "$made"; die "openssl makes no certificate for $san: $(grep -v '^$' "$extensions.said" | head -1)"; }
  chmod 644 "$stem.crt"
}

# shown: what the proxy shows and proves, certificate and key in one file; written in place, so that its mode and owner stay
shown() {
  proxy=$top/proxy/proxy
  [ -s "$proxy.key" ] || die "$proxy.key is not here: bring it back, or delete $proxy.* and run this again."
  cat "$proxy.crt" "$proxy.key" | cmp -s - "$proxy.pem" 2>/dev/null || cat "$proxy.crt" "$proxy.key" >"$proxy.pem"
}

server() {
  case "$top" in
    *'"'* | *'\'* | *[[:cntrl:]]*) die "$top has a quotation mark, a backslash or a control character, which config.toml cannot hold: set FEDVEIL_DEPLOYMENT to another folder." ;;
  esac
  mkdir -p "$top/ca" "$top/superlink/state" "$top/server/data" "$top/proxy" "$top/runs" "$top/operator" "$top/operator-container/nodes"
  [ -e "$top/.gitignore" ] || echo '*' >"$top/.gitignore"
  authority "$top/ca/ca.key" "$top/ca/ca.crt"
  certificate "$top/superlink" server "$top/ca/ca.key" "$top/ca/ca.crt" superlink localhost 127.0.0.1
  certificate "$top/proxy" proxy "$top/ca/ca.key" "$top/ca/ca.crt" localhost proxy operator-proxy 127.0.0.1 "$@"
  shown
  secret "$top/superlink/superexec.secret"
  port=$(set_there FEDVEIL_CONTROL_PORT | sed 's/^[^=]*=["'"'"']*//; s/[^0-9].*//')
  port=${FEDVEIL_CONTROL_PORT:-${port:-8444}}
  connection "$top/operator/config.toml" "127.0.0.1:$port" "$top/ca/ca.crt"
  connection "$top/operator-container/config.toml" "operator-proxy:8444" /run/secrets/ca-certificate
  give "$top/ca/ca.crt" "$top/superlink" "$top/server" "$top/proxy" "$top/runs" "$top/operator-container"
  chmod 755 "$top" "$top/ca"
}

# connection FILE ADDRESS CA_CRT: what `flwr run APP deployment` reads in FLWR_HOME
connection() {
  if [ -s "$1" ]; then
    for line in "address = \"$2\"" "root-certificates = \"$3\""; do
      grep -qxF "$line" "$1" || warn "$1 stays as it is, without $line: set it there, or delete the file and run this again."
    done
    return
  fi
  printf '[superlink]\ndefault = "deployment"\n\n[superlink.deployment]\naddress = "%s"\nroot-certificates = "%s"\n' "$2" "$3" >"$1"
}

# identity FOLDER: node.key and node.key.pub, by which the server knows the site
identity() {
  if ! [ -s "$1/node.key" ]; then
    rm -f "$1/node.key" "$1/node.key.pub"  # an empty one, of a full disk: ssh-keygen would ask whether to overwrite it
    ssh-keygen -q -t ecdsa -b 384 -N "" -C "$(basename "$1")" -f "$1/node.key"
  elif ! [ -s "$1/node.key.pub" ]; then
    ssh-keygen -y -P "" -f "$1/node.key" >"$scratch/public" 2>/dev/null ||
      die "$1/node.key is no private key without a passphrase: bring the right one back, or delete it for a new one, which the operator must register."
    cp "$scratch/public" "$1/node.key.pub"
  fi
}

# node FOLDER CA_CRT
node() {
  mkdir -p "$1/data" "$1/state"
  [ -e "$1/.gitignore" ] || echo '*' >"$1/.gitignore"
  identity "$1"
  if ! [ -s "$1/superlink-ca.crt" ]; then cp "$2" "$1/superlink-ca.crt"
  elif ! cmp -s "$2" "$1/superlink-ca.crt"; then
    warn "$1/superlink-ca.crt stays as it is, and $2 is another: if the operator's authority is new, delete $1/superlink-ca.crt and run this again."
  fi
  # between SuperNode and SuperExec of this site: an authority of its own, whose key is not kept
  if ! [ -s "$1/runtime.crt" ]; then
    rm -f "$1/runtime-ca.crt"
    authority "$1/runtime-ca.key" "$1/runtime-ca.crt"
    certificate "$1" runtime "$1/runtime-ca.key" "$1/runtime-ca.crt" supernode localhost 127.0.0.1
    rm -f "$1/runtime-ca.key"
  fi
  secret "$1/superexec.secret"
  [ ! -d "$1/policy.toml" ] || die "$1/policy.toml is a folder, which compose makes where the file was missing: remove it, run this again, then docker compose up --force-recreate."
  [ -e "$1/policy.toml" ] || cp "$here/policy.toml" "$1/policy.toml"
  [ -e "$1/site.env" ] || printf '%s\n' "# where the operator said the proxy listens; this site's number from 0; the number of all sites" SUPERLINK= PARTITION= NODES= \
    "SITE=$(cd "$1" && pwd)" "FEDVEIL_UID=$uid" "FEDVEIL_GID=$gid" >"$1/site.env"
  chmod 644 "$1/policy.toml" "$1/superlink-ca.crt" "$1/node.key.pub"
  give "$1"
}

# settle: what the server's containers need to know
settle() {
  keep "FEDVEIL_DEPLOYMENT=$top" "FEDVEIL_UID=$uid" "FEDVEIL_GID=$gid"
  [ -z "${FEDVEIL_CONTROL_PORT:-}" ] || keep "FEDVEIL_CONTROL_PORT=$FEDVEIL_CONTROL_PORT"
}

case ${1:-} in
  local)
    count=${2:-}; case "$count" in '' | 0* | *[!0-9]*) die "local needs the number of nodes, 1 to 5: keys.sh local 3." ;; esac
    [ "$count" -ge 1 ] && [ "$count" -le 5 ] || die "local makes 1 to 5 nodes, got $count: for more, give each site its own compose project (deploy/site)."
    shift 2; server "$@"
    for k in $(seq "$count"); do
      node "$top/nodes/node-$k" "$top/ca/ca.crt"
      cp "$top/nodes/node-$k/node.key.pub" "$top/operator-container/nodes/node-$k.pub"
    done
    chmod 755 "$top/nodes"; give "$top/operator-container"
    profile=$(echo one two three four five | cut -d' ' -f"$count")
    keep "COMPOSE_PROFILES=$profile" "FEDVEIL_NODES=$count"
    settle
    echo "Ready: $top, settings in $settings. Next:"
    echo "  1. put each node's records into $top/nodes/node-K/data, and read its policy.toml"
    echo "  2. docker compose up --detach --build"
    echo "  3. FLWR_HOME=$top/operator flwr run flwr_apps/fedsva deployment --stream --run-config run.toml   (docs/deploy.md has one)"
    ;;
  server)
    shift; server "$@"
    settle
    echo "Ready: $top, settings in $settings. Give sites $top/ca/ca.crt; put the .pub they send into $top/operator-container/nodes/, then:"
    echo "  docker compose run --rm operator register"
    ;;
  node)
    [ $# -eq 3 ] || die "node needs a folder and the server's ca.crt: keys.sh node ./site-a ca.crt."
    [ -n "$2" ] || die "the folder's name is empty: keys.sh node ./site-a ca.crt."
    for name in "$2" "$3"; do case "$name" in -*) die "'$name' begins like an option: write ./$name." ;; esac; done
    [ -s "$3" ] || die "$3 is not there: ask the operator for ca.crt."
    openssl x509 -in "$3" -noout 2>/dev/null || die "$3 is no certificate: ask the operator for ca.crt."
    node "$2" "$3"
    echo "Ready: $2. Next:"
    echo "  1. send $2/node.key.pub to the operator, and nothing else of that folder"
    echo "  2. put the records into $2/data; read $2/policy.toml; fill in $2/site.env"
    echo "  3. docker compose --env-file $2/site.env -f deploy/site/docker-compose.yml up --detach --build"
    ;;
  *) sed -n '2,8p' "$0" | cut -c3-; exit 2 ;;
esac
