// Package nodes runs nodes of a Kubernetes cluster on one machine: each a kubelet, a containerd and
// the pods that they start.
//
//	machine ─ first (outer) ─┬─ first (inner), process 1 of the node
//	                         │   ├─ containerd ── shims ── pods
//	                         │   └─ kubelet
//	                         └  network: a host of test/bed/topo
//
// A node has namespaces of its own for processes, mounts, host name, control groups and IPC, and
// the network namespace of its host. It sees the machine's files, but /run, /var/lib, /var/log,
// /sys, /proc and the BPF file system are its own: images, pods, pins and the gateway's state lie
// in memory and are gone with the last of its processes. Those are killed by the kernel when
// process 1 ends, and that ends when the process that started the node does. The kernel does not
// remove the node's control groups: Stop removes them, or the next node that is started, if there
// is no Stop.
//
// Settings of the kernel that a kubelet changes are the machine's (vm.overcommit_memory,
// kernel.panic_on_oops and others). The node shows it files in their place.
//
// Images are made here (Image) and imported; nothing is pulled.
package nodes
