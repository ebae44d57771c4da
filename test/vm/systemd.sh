#!/bin/bash
# The unit under a systemd that runs: started, reloaded, refused a reload, killed, stopped. It is for
# a guest (sluice-bench vm run), in which systemd is the first process of a PID namespace, and has
# units of its own beside deploy/systemd/sluice.service: targets that do nothing.
set -eu
units=$(mktemp -d)
log=$(mktemp)
mkdir -p /etc/sluice/manifests
chmod 755 /etc/sluice /etc/sluice/manifests
install -m 755 bin/sluice /usr/local/bin/sluice
ip link add eth0 type veth peer name eth0-peer
ip addr add 192.0.2.1/24 dev eth0
ip link set eth0-peer up
ip link set eth0 up
ip link set lo up
printf '%s\n' 'apiVersion: sluice.dev/v1alpha1' 'kind: GatewayConfiguration' 'interfaces: [{name: eth0}]' \
	'manifests: {directory: /etc/sluice/manifests}' 'drain: {handOver: true}' > /etc/sluice/gateway.yaml
cp deploy/systemd/sluice.service "$units"
mkdir "$units/sluice.service.d"
printf '[Service]\nStandardOutput=append:%s\nStandardError=append:%s\n' "$log" "$log" \
	> "$units/sluice.service.d/log.conf"
for target in sysinit basic shutdown network-online network umount all; do
	printf '[Unit]\nDescription=%s\nDefaultDependencies=no\n' $target > "$units/$target.target"
done
printf 'Wants=sluice.service\n' >> "$units/all.target"
container=vm SYSTEMD_UNIT_PATH=$units SYSTEMD_LOG_TARGET=console unshare -p -f -m --mount-proc sh -c \
	'mount -t tmpfs tmpfs /run && exec /lib/systemd/systemd --system --unit=all.target' > "$log.systemd" 2>&1 &
until systemd=$(pgrep -x systemd); do sleep 0.1; done

within() { nsenter -t "$systemd" -m -p "$@"; }
shown() { within systemctl show sluice -p "$1" --value; }
fail() {
	echo "FAILED: $1"
	tail -n 40 "$log.systemd" "$log"
	exit 1
}
# forwards waits until the process that systemd has for the main one is ready.
forwards() {
	for _ in $(seq 180); do
		if within /usr/local/bin/sluice status 2> /dev/null > "$log.status" && grep -q '^Ready: *yes' "$log.status" &&
			grep -q "pid $(shown MainPID)," "$log.status"; then
			return
		fi
		sleep 1
	done
	fail "$1"
}

forwards 'it is not ready after its start'
echo "started: main process $(shown MainPID)"
for n in 1 2 3; do
	before=$(shown MainPID)
	within systemctl reload sluice || fail "reload $n"
	[ "$(shown MainPID)" != "$before" ] || fail "reload $n: the main process is the one before"
	forwards "it is not ready after reload $n"
	grep '^Taken over' "$log.status" || fail "reload $n: it did not take over"
	[ "$(shown ActiveState) $(shown NRestarts)" = 'active 0' ] || fail "reload $n: $(shown ActiveState), restarted"
done
# The process that took over is heard, too: its service has a watchdog, of 60 s.
before=$(shown MainPID)
sleep 75
[ "$(shown MainPID) $(shown NRestarts)" = "$before 0" ] || fail 'a process that took over is ended by the watchdog'
echo 'flows: {ipv4: 4096, ipv6: 4096}' >> /etc/sluice/gateway.yaml
if within systemctl reload sluice; then fail 'a reload with another size of the flow table succeeds'; fi
[ "$(shown ActiveState) $(shown MainPID)" = "active $before" ] || fail 'a reload that is refused ends the process'
grep 'does not hand over, and goes on' "$log" || fail 'a reload that is refused does not say why'
within kill -9 "$before"
until [ "$(shown NRestarts)" = 1 ]; do sleep 1; done
forwards 'it is not ready after a kill'
echo "killed, and started again: main process $(shown MainPID)"
within kill -STOP "$(shown MainPID)"
for _ in $(seq 150); do
	[ "$(shown NRestarts)" = 1 ] || break
	sleep 1
done
[ "$(shown NRestarts)" = 2 ] || fail 'a process that is stopped is not started again'
forwards 'it is not ready after the watchdog'
echo "stopped by SIGSTOP, ended by the watchdog, started again: main process $(shown MainPID)"
within systemctl stop sluice
[ "$(shown Result) $(shown ActiveState)" = 'success inactive' ] || fail "stop: $(shown Result), $(shown ActiveState)"
if pgrep -f 'sluice run'; then fail 'a process is left after the stop'; fi
echo 'stopped: no process is left'
