#!/usr/bin/env bash
# Build Kubernetes 1.20.2 into .tools/kubernetes/bin, from Debian bookworm's source package.
#
#   tools/build-kubernetes.sh
#
# Do nothing if it has been built. The package has the sources of all dependencies, so the build asks apt's mirror and
# nobody else. Compiler, etcd, kubectl and the network plugins are unpacked from bookworm's packages; the system's
# packages, sources and lists stay as they are. It takes about 10 minutes of CPU time, and 3 GB until it is done.
# Exit with code 4 and print the reason if it is not possible here (not Debian, no mirror, no C compiler).
set -euo pipefail

readonly version=1.20.2
readonly suite=bookworm
readonly place=${PWD}/.tools/kubernetes
readonly source=$place/kubernetes-$version
readonly root=$place/root
readonly packages=(golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev rsync libpopt0 libxxhash0
  etcd-server kubernetes-client containernetworking-plugins)
readonly commands=(kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy)

say() { printf 'build-kubernetes: %s\n' "$*" >&2; }
missing() { say "$*"; exit 4; }

main() {
  [ -e "$place/bin/.complete" ] && return
  command -v apt-get >/dev/null || missing "Kubernetes is built from Debian's source package, and this is not Debian"
  for program in gcc make jq xz; do
    command -v "$program" >/dev/null || missing "$program is not installed: sudo apt-get install gcc make jq xz-utils"
  done
  mkdir -p "$place/bin"
  unpack
  build
  install_rest
  touch "$place/bin/.complete"
  rm -rf "$source" "$root" "$place/apt" "$place/gocache" "$place/home" "$place/version"
  say "Kubernetes $version is in .tools/kubernetes/bin"
}

# Download source and packages with lists of our own, and unpack them beside the system.
unpack() {
  local apt uri package
  uri=$(apt-get indextargets --format '$(REPO_URI)' | grep -m 1 '/debian/*$') || missing "apt has no Debian mirror"
  mkdir -p "$place/apt/lists/partial" "$place/apt/cache/archives/partial" "$place/apt/parts" "$root"
  local signed="[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $suite main"
  printf 'deb %s\ndeb-src %s\n' "$signed" "$signed" >"$place/apt/sources.list"
  apt=(apt-get -o "Dir::Etc::sourcelist=$place/apt/sources.list" -o "Dir::Etc::sourceparts=$place/apt/parts"
    -o "Dir::State::lists=$place/apt/lists" -o "Dir::Cache=$place/apt/cache" -o APT::Sandbox::User=root)
  say "downloading sources, Go and etcd"
  quietly "${apt[@]}" update
  cd "$place/apt"
  quietly "${apt[@]}" download "${packages[@]}"
  quietly "${apt[@]}" source --download-only kubernetes
  for package in *.deb; do
    dpkg-deb -x "$package" "$root"
  done
  rm -rf "$source"
  tar -xzf kubernetes_*"$version".orig.tar.gz -C "$place"
  # Compiled with Go 1.18 or later, reflect2 1.0.1 crashes the API server at the first custom resource.
  rm -r "$source/vendor/github.com/modern-go/reflect2"
  cp -r "$root/usr/share/gocode/src/github.com/modern-go/reflect2" "$source/vendor/github.com/modern-go/"
}

build() {
  local package flags="-s -w"
  export GOROOT=$root/usr/lib/go-1.19 GO111MODULE=off GOCACHE=$place/gocache CGO_ENABLED=0 HOME=$place/home
  export PATH=$GOROOT/bin:$root/usr/bin:$PATH LD_LIBRARY_PATH=$root/usr/lib/$(gcc -print-multiarch)
  export KUBE_GIT_VERSION_FILE=$place/version
  mkdir -p "$HOME"
  printf 'KUBE_GIT_%s\n' COMMIT=debian TREE_STATE=clean "VERSION=v$version" MAJOR=1 MINOR=20 >"$KUBE_GIT_VERSION_FILE"
  say "generating code"
  cd "$source"
  quietly make generated_files
  say "compiling ${commands[*]}"
  export GOPATH=$source/_output/local/go
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    for package in "$package" "k8s.io/kubernetes/vendor/$package"; do
      flags+=" -X $package.gitVersion=v$version -X $package.gitMajor=1 -X $package.gitMinor=20"
    done
  done
  cd "$GOPATH/src/k8s.io/kubernetes"
  quietly go build -tags providerless -ldflags "$flags" -o "$place/bin/" "${commands[@]/#/./cmd/}"
}

install_rest() {
  install -m 755 "$root/usr/bin/etcd" "$root/usr/bin/kubectl" "$root"/usr/lib/cni/{bridge,host-local,loopback} "$place/bin"
  quietly gcc -Os -static -DVERSION="v$version" -o "$place/bin/pause" "$source/build/pause/linux/pause.c"
}

# Run a command; show its output only if it fails.
quietly() {
  local output
  output=$("$@" 2>&1) || missing "$* failed:
$(tail -n 8 <<<"$output")"
}

main "$@"
