package tail

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -type event -type name -type cursor -type stack -cflags "-mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter" trace trace.bpf.c
