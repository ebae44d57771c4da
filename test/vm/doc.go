// Package vm runs a command in a QEMU guest, on a kernel and on network cards that this machine
// need not have.
//
// Processors are emulated (TCG), so that it needs neither hardware for virtualization nor a tun
// device nor root, and says nothing of speed: a connection takes tens of milliseconds. The emulated
// NICs are driven by the drivers of real ones, the package's purpose: igb and virtio-net bind
// AF_XDP sockets in zero-copy mode, vmxnet3 has native XDP, e1000e has neither.
//
//	host                            guest
//	/            ── 9p, read only ──  lower layer of /; what is written lies in memory above it
//	--share DIR  ── 9p, writable ───  DIR
//	stdout, stderr  ◄ virtio ports ─  those of COMMAND
//	hub left     ── QEMU's ─────────  NIC left, NIC left-peer
//
// Kernels, QEMU and the few tools that a guest needs (modprobe, ethtool) are Debian's, fetched by
// apt with a list of sources of its own and unpacked into the user's cache: nothing is installed,
// and nothing on the machine is changed. Of a suite the newest kernel is taken, once; Fetch with
// Refresh looks again.
//
// The guest's first process is this program (package pid1). It ends every process before the guest
// does: Linux 7.3 dereferences a null pointer in igb_txrx_ring_disable when it powers off with a
// zero-copy socket bound.
package vm
