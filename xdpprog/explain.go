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

// explain adds the missing capability, descriptor or kernel feature to an error of the kernel. If
// the verifier rejects a program, the errno is the same as for a missing capability. A missing
// capability may also be the cause, so explain blames the program or the kernel only if none is
// missing.
func explain(err error) error {
	missing := missingCapabilities()
	var rejected *ebpf.VerifierError
	if errors.As(err, &rejected) && len(rejected.Log) > 0 && missing == "" {
		return fmt.Errorf("this kernel's BPF verifier rejects the program; Sluice needs Linux 6.12 or later: %w", err)
	}
	switch none := withoutDescriptors(); {
	case none != nil: // package ebpf's feature tests report a missing feature if they cannot load a program
		return fmt.Errorf("%w (LimitNOFILE= of the unit, or fs.file-max): %w", none, err)
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES):
		if missing != "" {
			return fmt.Errorf("the process lacks %s: %w", missing, err)
		}
		return fmt.Errorf("refused although the capabilities are present; look for kernel lockdown, an LSM, or a user "+
			"namespace: %w", err)
	case errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("this kernel does not support it; Sluice needs Linux 6.12 or later, with CONFIG_BPF_SYSCALL "+
			"and CONFIG_XDP_SOCKETS: %w", err)
	}
	return err
}

// withoutDescriptors returns EMFILE or ENFILE if no file can be opened.
func withoutDescriptors() error {
	f, err := os.Open(os.DevNull)
	if err == nil {
		return f.Close()
	}
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return err
	}
	return nil
}

// missingCapabilities returns the names of the capabilities that loading and attaching need and the
// thread lacks (capabilities(7)). Without CAP_PERFMON the verifier allows no arithmetic on packet
// pointers. CAP_SYS_ADMIN implies CAP_PERFMON and CAP_BPF.
func missingCapabilities() string {
	has, err := capabilities()
	if err != nil {
		return ""
	}
	var missing []string
	if !has(unix.CAP_NET_ADMIN) {
		missing = append(missing, "CAP_NET_ADMIN")
	}
	if !has(unix.CAP_BPF) && !has(unix.CAP_SYS_ADMIN) {
		missing = append(missing, "CAP_BPF")
	}
	if !has(unix.CAP_PERFMON) && !has(unix.CAP_SYS_ADMIN) {
		missing = append(missing, "CAP_PERFMON")
	}
	return strings.Join(missing, ", ")
}

// capabilities returns a function that reports whether the thread has a capability in effect.
func capabilities() (has func(c uint) bool, err error) {
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return nil, err
	}
	_, rest, _ := strings.Cut(string(status), "CapEff:")
	line, _, _ := strings.Cut(rest, "\n")
	effective, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	return func(c uint) bool { return effective>>c&1 != 0 }, err
}
