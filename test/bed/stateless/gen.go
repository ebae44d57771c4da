package stateless

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -type counts -type sample -type arrival -cflags "-mcpu=v3 -Wall -Wextra -Werror" receive receive.bpf.c
