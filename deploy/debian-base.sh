#!/bin/sh
# debian-base.sh [IMAGE]: a Debian 12 base image with HAProxy, made with debootstrap where no image can be pulled. As root.
# Then: docker build --build-arg PROXY_BASE=IMAGE deploy/proxy
set -eu
image=${1:-fedveil-debian:bookworm}
if docker image inspect "$image" >/dev/null 2>&1; then exit 0; fi
command -v debootstrap >/dev/null || {
  apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap >/dev/null
} || { echo "debian-base.sh: debootstrap is missing and could not be installed: install it, or give PROXY_BASE." >&2; exit 1; }
root=$(mktemp -d)
trap 'rm -rf "$root" "$root.log"' EXIT
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
debootstrap --variant=minbase --include=haproxy,ca-certificates bookworm "$root" "$mirror" >"$root.log" 2>&1 ||
  { tail -5 "$root.log" >&2; exit 1; }
rm -rf "$root.log" "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
tar -C "$root" --one-file-system -c . | docker import - "$image" >/dev/null
