#!/usr/bin/env bash
# Install from Debian's own sources what tests need and this machine lacks; no daemon is started.
#
#   tools/setup-tests.sh
#
# Chromium opens bench's report and the page of `top --web`, HAProxy routes to replicas. promtool checks the rules for
# Prometheus: it is one binary taken out of that package, which would start a server.
# Exit with code 4 and print the reason if one cannot be installed (not Debian, not root, no package source).
set -euo pipefail

readonly policy=/usr/sbin/policy-rc.d

say() { printf 'setup-tests: %s\n' "$*" >&2; }
missing() { say "$*"; exit 4; }
has() { command -v "$1" >/dev/null || [[ -x /usr/sbin/$1 ]]; }

main() {
  local lacking=()
  has chromium || has chromium-browser || has google-chrome || lacking+=(chromium)
  has haproxy || lacking+=(haproxy)
  has promtool || lacking+=(promtool)
  ((${#lacking[@]})) || return 0
  command -v apt-get >/dev/null || missing "no ${lacking[*]} here, and only Debian's can be installed"
  [[ $(id -u) == 0 ]] || missing "no ${lacking[*]} here; run this once as root: tools/setup-tests.sh"
  say "installing ${lacking[*]} from Debian"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq >/dev/null 2>&1 || missing "the package sources do not answer, so there is no ${lacking[*]}"
  start_nothing
  local failed=() name
  for name in "${lacking[@]}"; do
    get "$name" || failed+=("$name")
  done
  ((${#failed[@]} == 0)) || missing "apt-get cannot install ${failed[*]}"
}

get() {
  if [[ $1 == promtool ]]; then
    take_promtool
  else
    apt-get install -y -qq --no-install-recommends "$1" >/dev/null 2>&1
  fi
}

take_promtool() (
  cd "$work" || exit
  apt-get -o APT::Sandbox::User=root download -qq prometheus >/dev/null 2>&1 || exit
  dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool || exit
  install -m 755 usr/bin/promtool "${PREFIX:-/usr/local}/bin/promtool"
)

# A package's own server stays off: Debian asks this program before it starts one.
start_nothing() {
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  if [[ ! -e $policy && -w ${policy%/*} ]]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    trap 'rm -rf "$work" "$policy"' EXIT
  fi
}

main
