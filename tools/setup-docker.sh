#!/usr/bin/env bash
# Make Docker and Compose v2 usable on this machine, changing only what is missing.
#
#   tools/setup-docker.sh
#
# Do nothing if `docker info` answers and `docker compose` is version 2. On Debian as root, install Docker from the
# system's own sources, and Compose too if they have version 2. bookworm does not, so take the one binary out of
# trixie's package, from the same mirror and with apt's signature check. Start a daemon if none answers.
# Exit with code 4 and print the reason if Docker is not available (not Debian, not root, no privileges for a daemon).
#
# DOCKER_HOST    a unix:// socket: the daemon is started there
# DOCKERD_FLAGS  more flags for a daemon started here
# DOCKERD_LOG    its log (default /var/log/dockerd.log)
set -euo pipefail

readonly plugins=/usr/local/lib/docker/cli-plugins
readonly log=${DOCKERD_LOG:-/var/log/dockerd.log}
readonly compose_suite=trixie

say() { printf 'setup-docker: %s\n' "$*" >&2; }
missing() { say "$*"; exit 4; }
answers() { timeout 20 docker info >/dev/null 2>&1; }
has_compose() { [[ "$(docker compose version --short 2>/dev/null)" =~ ^v?([2-9]|[1-9][0-9])\. ]]; }

main() {
  if has_compose && answers; then
    return
  fi
  command -v docker >/dev/null || install_docker
  has_compose || install_compose
  answers || start_daemon
  say "docker $(docker version --format '{{.Server.Version}}') with compose $(docker compose version --short)"
}

require_debian_root() {
  command -v apt-get >/dev/null || missing "$1; it is installed here on Debian only, see docs.docker.com"
  [ "$(id -u)" = 0 ] || missing "$1; run this once as root: tools/setup-docker.sh"
}

install_docker() {
  require_debian_root "docker is not installed"
  say "installing docker.io"
  quietly apt-get update
  quietly apt-get install -y --no-install-recommends docker.io ca-certificates
}

install_compose() {
  require_debian_root "the Compose v2 plugin of docker is not installed"
  if [[ "$(candidate)" =~ ^([2-9]|[1-9][0-9])\. ]]; then
    say "installing docker-compose"
    quietly apt-get install -y --no-install-recommends docker-compose
  else
    compose_from_newer_debian
  fi
  has_compose || missing "docker compose was installed, but does not run: $(docker compose version 2>&1 | tail -1)"
}

# Unpack one binary of a newer Debian release; the system's sources, lists and package database stay as they are.
compose_from_newer_debian() {
  local work uri binary
  work=$(mktemp -d)
  # shellcheck disable=SC2064  # expand the folder now
  trap "rm -rf '$work'" EXIT
  uri=$(debian_mirror)
  [ -n "$uri" ] || missing "no Debian mirror in apt's sources to take docker-compose from"
  say "extracting Compose v2 from $compose_suite"
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/parts"
  printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' "$uri" "$compose_suite" \
    >"$work/sources.list"
  local apt=(apt-get -o "Dir::Etc::sourcelist=$work/sources.list" -o "Dir::Etc::sourceparts=$work/parts"
    -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
  quietly "${apt[@]}" update
  (cd "$work" && quietly "${apt[@]}" download docker-compose)
  dpkg-deb -x "$work"/docker-compose_*.deb "$work/unpacked"
  binary=$(find "$work/unpacked" -type f -path '*/cli-plugins/docker-compose' | head -n 1)
  [ -n "$binary" ] || missing "the docker-compose package of $compose_suite holds no cli-plugins/docker-compose"
  install -D -m 755 "$binary" "$plugins/docker-compose"
}

candidate() {
  apt-cache policy docker-compose 2>/dev/null | sed -n 's/^ *Candidate: *//p'
}

# Print the first archive of apt's own sources that has this system's release.
debian_mirror() {
  local codename
  # shellcheck disable=SC1091
  codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 2>/dev/null |
    awk -v codename="$codename" '$1 == codename { print $2; exit }'
}

start_daemon() {
  case "${DOCKER_HOST:-unix://}" in
    unix://*) ;;
    *) missing "the docker daemon at DOCKER_HOST=$DOCKER_HOST does not answer: $(last_of docker info)" ;;
  esac
  [ "$(id -u)" = 0 ] || missing "no docker daemon answers this user: $(last_of docker info)"
  command -v dockerd >/dev/null || install_docker # a client alone is installed
  local daemon=
  if [ -d /run/systemd/system ] && [ -z "${DOCKER_HOST:-}" ]; then
    systemctl start docker || missing "systemctl start docker failed; see: journalctl -u docker"
  else
    say "starting dockerd, log in $log"
    # shellcheck disable=SC2086  # flags are separate words
    nohup setsid dockerd ${DOCKER_HOST:+-H "$DOCKER_HOST"} ${DOCKERD_FLAGS:-} >>"$log" 2>&1 </dev/null &
    daemon=$!
  fi
  wait_for_daemon "$daemon"
}

wait_for_daemon() {
  local attempt
  for attempt in $(seq 60); do
    answers && return
    if [ -n "$1" ] && ! kill -0 "$1" 2>/dev/null && [ "$attempt" -gt 3 ]; then
      break
    fi
    sleep 1
  done
  missing "the docker daemon did not start; last lines of $log:
$(tail -n 5 "$log" 2>/dev/null)"
}

last_of() { "$@" 2>&1 | tail -n 1; }

# Run a command; show its output only if it fails.
quietly() {
  local output
  output=$(DEBIAN_FRONTEND=noninteractive "$@" 2>&1) || missing "$* failed:
$(tail -n 8 <<<"$output")"
}

main "$@"
