#!/usr/bin/env bash
# Install Chromium from Debian's own sources if it is missing; the tests open bench's report in it.
#
#   tools/setup-chromium.sh
#
# Exit with code 4 and print the reason if it cannot be installed (not Debian, not root, no package source).
set -euo pipefail

say() { printf 'setup-chromium: %s\n' "$*" >&2; }
missing() { say "$*"; exit 4; }

main() {
  for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null && return
  done
  [[ -r /etc/debian_version ]] || missing "no Chromium here, and only Debian's can be installed"
  [[ $EUID -eq 0 ]] || missing "no Chromium here, and root is needed to install it: sudo apt-get install chromium"
  say "installing Chromium from Debian"
  export DEBIAN_FRONTEND=noninteractive
  apt-get install -qq --no-install-recommends chromium >/dev/null 2>&1 && return
  apt-get update -qq >/dev/null 2>&1 || missing "the package sources do not answer"
  apt-get install -qq --no-install-recommends chromium >/dev/null 2>&1 || missing "apt-get cannot install chromium"
}

main
