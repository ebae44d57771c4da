#!/usr/bin/env bash
# instructions.sh [4|6 [FEW MANY]]: instructions per packet of a known flow, for the worker by
# function and for the reference, counted by valgrind: a busy machine gives the same figures as a
# quiet one. Both are counted for two numbers of packets, so that the work before the packets
# cancels out. The worker's sum is the mean of all kinds of chunks (hot and cold, clients and both),
# without the rings of its links, which in memory are copies by the runtime; C's is for hot headers
# and clients, rings included. FEW and MANY are the windows of the worker's two counts (10, 60):
# smaller numbers take less time, but give rare work more weight. It needs an x86 processor, go,
# valgrind and clang, gcc or cc.
set -euo pipefail
cd "$(dirname "$0")/../.."
family=${1:-4} few=${2:-10} many=${3:-60}
other=$((10 - family))
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
go build -ldflags=-compressdwarf=false -o "$dir/bench" ./cmd/sluice-bench
compiler=$(command -v clang || command -v gcc || command -v cc)
"$compiler" -std=c17 -O3 -march=haswell -g -o "$dir/reference" bench/pipeline/reference/main.c # valgrind does not support AVX-512

count() { # FILE COMMAND...
  valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file="$dir/$1" "${@:2}" >"$dir/log" 2>&1 || { cat "$dir/log" >&2; exit 1; }
}
worker() { # WINDOWS
  count "worker$1" "$dir/bench" pipeline --scenario steady "--ipv$other=false" --flows 1000 --repeat 1 --windows "$1" --reference=false
}
reference() { # WINDOWS
  count "reference$1" "$dir/reference" -family "$family" -flows 1000 -backends 64 -capacity 1396 -cpu -1 <<<"sample hot clients $1 pipelined"
}
# A sample has WINDOWS/10+2 more chunks, of 4096 packets; the worker takes four samples, one of each
# kind.
difference() { # FEW MANY PACKETS PATTERN
  awk -v packets="$3" -v wanted="$4" '
    FNR == 1 { sign = NR == 1 ? -1 : 1 }
    /^fn=/ { fn = substr($0, 4) }
    /^[0-9]/ { n[fn] += sign * $2 }
    END {
      for (fn in n) if (fn ~ wanted && fn !~ /bench/ && n[fn] >= packets / 2) { printf "%8.2f %s\n", n[fn] / packets, fn | "sort -rn"; sum += n[fn] }
      close("sort -rn")
      printf "%8.2f in all\n", sum / packets
    }' "$dir/$1" "$dir/$2"
}
chunks() { echo $(($1 + $1 / 10 + 2)); } # of a sample
worker "$few"
worker "$many"
echo "worker, IPv$family, instructions a packet"
difference "worker$few" "worker$many" $((4 * ($(chunks "$many") - $(chunks "$few")) * 4096)) 'sluice/(fastpath|flowtable|nat/header|nat[.])'
reference 20
reference 120
echo "reference"
difference reference20 reference120 $(((134 - 24) * 4096)) '^chunk'
