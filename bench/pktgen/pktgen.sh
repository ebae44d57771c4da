#!/usr/bin/env bash
# The stateless loads of bench/trex/stl.py, sent by the kernel's packet generator
# (Documentation/networking/pktgen.rst), for machines with NICs.
#
# It was run on veth, not on hardware. README.md describes how to run it against a gateway.
set -euo pipefail

usage() {
	cat <<'EOF'
usage: pktgen.sh --device NAME --mac GATEWAY [options]

  --device NAME     interface to send on; each thread uses one of its queues
  --mac MAC         the MAC address of the gateway, or of the router before it
  --load NAME       udp (64 bytes), imix (7:4:1 of 64, 594, 1518), udp6 (78 bytes)
  --flows N         source address and port pairs, about (default 1000000; udp6 has 50000 at most)
  --rate PPS        of all threads together; 0 is as fast as possible (default 0)
  --seconds N       (default 30)
  --threads N       (default 1)
  --vip ADDRESS     (default 10.83.0.1, fd00:83::1)
  --vlan ID
  --print           print the commands and their files; change nothing

Sizes are on the wire, with the check sequence. Use it only in a network that you own: it
sends a flood.
EOF
	exit 2
}

device='' mac='' load=udp flows=1000000 rate=0 seconds=30 threads=1 vip='' vlan='' print=''
while [ $# -gt 0 ]; do
	case $1 in
	--device) device=${2:?} ;;
	--mac) mac=${2:?} ;;
	--load) load=${2:?} ;;
	--flows) flows=${2:?} ;;
	--rate) rate=${2:?} ;;
	--seconds) seconds=${2:?} ;;
	--threads) threads=${2:?} ;;
	--vip) vip=${2:?} ;;
	--vlan) vlan=${2:?} ;;
	--print)
		print=yes
		shift
		continue
		;;
	*) usage ;;
	esac
	shift 2
done
[ -n "$device" ] && [ -n "$mac" ] || usage

# pktgen cannot restrict random IPv6 sources to one network, so there is only one address.
if [ "$load" = udp6 ] && [ "$flows" -gt 50000 ]; then
	echo "pktgen.sh: udp6 has one source address: 50000 flows instead of $flows" >&2
	flows=50000
fi

readonly pgdir=/proc/net/pktgen
readonly port=5000 first_port=10000 ports=50000

# put FILE WORDS writes one command, and ends the script with the kernel's answer if it is rejected.
put() {
	local file=$1
	shift
	if [ -n "$print" ]; then
		echo "$file: $*"
		return
	fi
	if ! echo "$*" >"$pgdir/$file"; then
		echo "pktgen.sh: $pgdir/$file refused '$*': $(grep Result: "$pgdir/$file" || true)" >&2
		exit 1
	fi
}

# The generator adds the 4 bytes of the check sequence.
sizes() {
	case $load in
	udp) put "$1" pkt_size 60 ;;
	udp6) put "$1" pkt_size 74 ;;
	imix)
		put "$1" pkt_size 1514
		put "$1" imix_weights 60,7 590,4 1514,1
		;;
	*) usage ;;
	esac
}

# Ports are random for each packet, and so are addresses if one is not enough. The kernel's
# upper bounds of random values are exclusive (net/core/pktgen.c, mod_cur_headers), so they
# are one more than the last value.
addresses() {
	local n=$(((flows + ports - 1) / ports)) end=$((first_port + ports))
	[ "$n" -le 253 ] || {
		echo "pktgen.sh: $flows flows need $n addresses; 253 at most, which is $((253 * ports)) flows" >&2
		exit 2
	}
	[ "$flows" -ge "$ports" ] || end=$((first_port + flows))
	if [ "$load" = udp6 ]; then
		put "$1" dst6 "${vip:-fd00:83::1}"
		put "$1" src6 fd00:81::1
	else
		put "$1" dst_min "${vip:-10.83.0.1}"
		put "$1" dst_max "${vip:-10.83.0.1}"
		put "$1" src_min 10.81.0.1
		put "$1" src_max "10.81.0.$((n > 1 ? n + 1 : 1))"
		[ "$n" -eq 1 ] || put "$1" flag IPSRC_RND
	fi
	put "$1" udp_src_min "$first_port"
	put "$1" udp_src_max "$end"
	put "$1" flag UDPSRC_RND
	put "$1" udp_dst_min "$port"
	put "$1" udp_dst_max "$port"
}

configure() {
	local thread
	for ((thread = 0; thread < threads; thread++)); do
		local to=$device@$thread
		put "kpktgend_$thread" rem_device_all
		put "kpktgend_$thread" add_device "$to"
		put "$to" count 0
		put "$to" delay 0
		put "$to" clone_skb 0 # every packet is built separately: a copy would belong to the same flow
		put "$to" dst_mac "$mac"
		put "$to" queue_map_min "$thread"
		put "$to" queue_map_max "$thread"
		put "$to" flag UDPCSUM # so that the gateway must adjust the checksum
		[ -z "$vlan" ] || put "$to" vlan_id "$vlan"
		sizes "$to"
		addresses "$to"
		[ "$rate" -eq 0 ] || put "$to" ratep "$((rate / threads))"
	done
}

# report adds up the threads' results: packets, and packets per second.
report() {
	local thread
	for ((thread = 0; thread < threads; thread++)); do
		sed -n '/^Result:/,$p' "$pgdir/$device@$thread"
	done
	awk '/pps/ {sub("pps", "", $1); n += $1} END {printf "sum: %d pps\n", n}' $(
		for ((thread = 0; thread < threads; thread++)); do echo "$pgdir/$device@$thread"; done
	)
}

if [ -z "$print" ]; then
	[ "$(id -u)" -eq 0 ] || { echo 'pktgen.sh: needs root' >&2 && exit 1; }
	[ -d "$pgdir" ] || modprobe pktgen
	put pgctrl reset
fi
configure
if [ -n "$print" ]; then
	echo 'pgctrl: start'
	exit 0
fi
# The command start returns when pktgen is stopped.
echo "sending $load on $device for $seconds s" >&2
(sleep "$seconds" && echo stop >"$pgdir/pgctrl") &
stopper=$!
trap 'kill "$stopper" 2>/dev/null || true; echo stop >"$pgdir/pgctrl" 2>/dev/null || true' EXIT INT TERM
put pgctrl start
report
