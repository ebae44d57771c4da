package xdpnat

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -type counts -type entry -type tuple -type frontend -type service -type backend -cflags "-mcpu=v3 -Wall -Wextra -Werror" nat nat.bpf.c
