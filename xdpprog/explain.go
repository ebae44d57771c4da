package xdpprog

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// explain turns a refusal of the kernel into what is missing. A rejection by the
// verifier carries the same errno as a missing capability; only the log tells.
func explain(err error) error {
	var rejected *ebpf.VerifierError
	if errors.As(err, &rejected) && len(rejected.Log) > 0 {
		return fmt.Errorf("this kernel's BPF verifier rejects the program; Sluice needs Linux 5.18 or later: %w", err)
	}
	switch {
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES):
		if missing := missingCapabilities(); missing != "" {
			return fmt.Errorf("the process lacks %s: %w", missing, err)
		}
		return fmt.Errorf("refused although the capabilities are there; look for kernel lockdown, an LSM, or a user namespace: %w", err)
	case errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("this kernel does not know it; Sluice needs Linux 5.18 or later, 6.6 for egress programs, with CONFIG_BPF_SYSCALL and CONFIG_XDP_SOCKETS: %w", err)
	}
	return err
}

// missingCapabilities names what loading and attaching needs and the process has
// not (capabilities(7)). CAP_SYS_ADMIN stands for CAP_BPF.
func missingCapabilities() string {
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(status), "CapEff:")
	line, _, _ := strings.Cut(rest, "\n")
	effective, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if err != nil {
		return ""
	}
	has := func(c uint) bool { return effective>>c&1 != 0 }
	var missing []string
	if !has(unix.CAP_NET_ADMIN) {
		missing = append(missing, "CAP_NET_ADMIN")
	}
	if !has(unix.CAP_BPF) && !has(unix.CAP_SYS_ADMIN) {
		missing = append(missing, "CAP_BPF")
	}
	return strings.Join(missing, " and ")
}
